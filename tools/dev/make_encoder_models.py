#!/usr/bin/env python3
"""Writes tiny random text encoders and rerankers, with embeddings or scores of HF transformers.

make_encoder_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
LLAMA_CPP_DIR: see make_family_models.py. Needs transformers, torch (the CPU is enough), numpy, safetensors,
sentencepiece and protobuf from PyPI; downloads no model.

Files per model:
  NAME.gguf         made by llama.cpp's converter of a checkpoint with a small vocabulary of its own; its weights are
                    exact in F16, so those of the file are those of the checkpoint
  NAME.json         "texts", ids of tokens; for each of them "embeddings", pooled and not normalised, or "scores", the
                    head's outputs. All types of tokens are 0, as llama.cpp has them; where types matter, "typed" has
                    the results with "types". "published" of neobert: the results if rows of qkv are in the order of
                    the published code, which neither llama.cpp nor its converter takes into account. "pairs" of
                    rerankers: a query and a document, their ids, the score; "typed" as transformers has types of pairs
  NAME.tokens.json  of three kinds of tokenizers: "strings" and their "ids", with control tokens around them; where they
                    differ, also "written": control tokens in a string are text; "plain": what the sentencepiece package
                    makes of it
The script fails if a trait of a family hardly changes the results; -v prints by how much.
"""
import copy
import json
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers as hf
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

LLAMA_CPP = Path(next((a for a in sys.argv[1:] if not a.startswith("-")), "."))
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]  # before gguf is imported

import embedding_gemma
import encoder_parts as parts
import encoder_vocabularies as vocabularies
from make_tiny_models import TOLERANCE

WINDOW = 16  # of both kinds of windows: a token and 8 on each side of it
LENGTHS = (2, 5, 17, 40, 60)  # of the texts, and one of a single token
SMALL, WIDE = 32, 64
PAIRS = [("the quick fox", "a lazy dog."), ("Äpfel?", "apfel fur 12 naïve cafés"), ("yes", "no"),
         ("query", "don't query 日本語!")]


# ---- models

def bert(dim=SMALL, layers=2, **changes):
    """The common shape of BERT's family; eps is large, so that a wrong one shows."""
    return dict(hidden_size=dim, intermediate_size=dim * 3 // 2, num_hidden_layers=layers,
                num_attention_heads=dim // 16, max_position_embeddings=64, layer_norm_eps=0.03,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0) | changes


def xlmr(**changes):
    return bert(type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, max_position_embeddings=66) | changes


def causal(dim=SMALL, **changes):
    return dict(hidden_size=dim, intermediate_size=dim, num_hidden_layers=2, num_attention_heads=dim // 16,
                num_key_value_heads=dim // 32, head_dim=16, max_position_embeddings=512, rms_norm_eps=0.03,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0}) | changes


def modernbert(**changes):
    kinds = ["full_attention" if i % 3 == 0 else "sliding_attention" for i in range(changes["num_hidden_layers"])]
    return hf.ModernBertConfig(**dict(
        hidden_size=SMALL, intermediate_size=SMALL, num_attention_heads=2, max_position_embeddings=128, norm_eps=0.03,
        local_attention=WINDOW, layer_types=kinds, rope_parameters=two_ropes(1000.0, 10.0), pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2) | changes)


def two_ropes(all_tokens, window):
    return {kind: {"rope_type": "default", "rope_theta": base}
            for kind, base in (("full_attention", all_tokens), ("sliding_attention", window))}


def one_rope(base):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base}}


def filled(part, value):
    def edit(encoder):
        for name, p in encoder.named_parameters():
            if part in name:
                p.fill_(value)
    return edit


def halves_exchanged(part):
    def edit(encoder):
        for name, p in encoder.named_parameters():
            if part in name:
                p.copy_(p.roll(p.shape[0] // 2, 0))
    return edit


def other_type(encoder):
    for name, p in encoder.named_parameters():
        if "token_type" in name:
            p.copy_(p.roll(1, 0))


def next_position(encoder):
    for name, p in encoder.named_parameters():
        if "position_embeddings" in name:
            p.copy_(p.roll(-1, 0))


def without(attribute):
    return lambda encoder: setattr(encoder, attribute, torch.nn.ModuleList())


class Linear(torch.nn.Module):
    """A head of XLM-RoBERTa without its tanh."""
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, states):
        return self.head.out_proj(self.head.dense(states[:, 0]))


def linear_head(encoder):
    encoder.model.classifier = Linear(encoder.model.classifier)


def seeing(which):
    """Attention with another mask: "earlier": only tokens that are not later; "all": all tokens."""
    def attention(module, query, key, value, attention_mask, **more):
        own = sys.modules[type(module).__module__].eager_attention_forward
        hidden = torch.full((query.shape[2], key.shape[2]), -1e30).triu(1) if which == "earlier" else None
        mask = hidden if attention_mask is None or hidden is None else attention_mask + hidden
        return own(module, query, key, value, mask, **more)

    AttentionInterface.register(which, attention)
    AttentionMaskInterface.register(which, AttentionMaskInterface()["eager"])
    return lambda encoder: setattr(encoder.model.config, "_attn_implementation", which)


BERT = {"SiLU": {"hidden_act": "silu"}, "epsilon": {"layer_norm_eps": 1e-6}}
POSITIONS = {"no positions": filled("position_embeddings", 0.0), "positions from 1": next_position,
             "no types": filled("token_type", 0.0)}
WINDOWS = {"no window": {"local_attention": 4 * WINDOW * 4}, "twice the window": {"local_attention": 2 * WINDOW},
           "a window of one token less": {"local_attention": WINDOW - 2}, "SiLU": {"hidden_activation": "silu"},
           "RoPE of windows as elsewhere": {"rope_parameters": two_ropes(1000.0, 1000.0)},
           "RoPE elsewhere as in windows": {"rope_parameters": two_ropes(10.0, 10.0)},
           "gate and up exchanged": halves_exchanged("mlp.Wi"), "epsilon": {"norm_eps": 1e-6}}
ALIBI = {"no slopes": {"far": 0}, "half the slopes": {"far": 0.5}, "slopes from 2^-4": {"bias": 4},
         "tokens ahead without slopes": {"ahead": 0}, "causal attention": {"causal": True}}
ROPE = {"another base of RoPE": one_rope(500.0)}
# Keys of published configs that transformers does not write.
PUBLISHED = {"global_attn_every_n_layers": 3, "layer_norm_eps": 0.03}
GEMMA_LAYERS = ["sliding_attention"] * 5 + ["full_attention"]


BY_HEADS = "q, k and v of a head together"


OWN = (parts.NeoBert, parts.JinaBert)  # not of transformers: masks are their own


def neobert_config():
    return SimpleNamespace(hidden_size=SMALL, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
                           norm_eps=0.03, rope_theta=10000.0, pairs="neighbours", swapped=False, thirds="matrix")


def jina_bert(dim, heads, **changes):
    """From bias on: what mistakes change."""
    return SimpleNamespace(**bert(dim, num_attention_heads=heads, intermediate_size=64, type_vocab_size=2,
                                  max_position_embeddings=128, hidden_act="gelu", code=False, gated=True, bias=8,
                                  far=1, ahead=1, causal=False, swapped=False, norms_heads=True,
                                  sums_twice=True) | changes)


def rows():
    """name -> the vocabulary, config and class of the model, its pooling, its checkpoint, mistakes that tests must
    notice (see make_family_models.py), options of the converter, type of the file."""
    plain = parts.as_it_is
    gemma = dict(hidden_size=SMALL, intermediate_size=48, num_hidden_layers=6, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16, max_position_embeddings=128,
                 rms_norm_eps=0.03, sliding_window=WINDOW, layer_types=GEMMA_LAYERS, use_bidirectional_attention=True,
                 hidden_activation="gelu_pytorch_tanh", rope_parameters=two_ropes(1000.0, 10.0))
    no_pool = dict(add_pooling_layer=False)
    pieces, modern = dict(vocabulary="wordpiece", pre="bert-bge"), dict(vocabulary="modern", pre="modern-bert")
    other_types = {"no types": filled("token_type", 0.0), "types of the second sentence": other_type}
    swapped = {"gate and up exchanged": {"swapped": True}}
    gelu = {"GELU": {"hidden_act": "gelu"}}
    ln_eps, rms_eps = {"epsilon": {"layer_norm_eps": 1e-6}}, {"epsilon": {"rms_norm_eps": 1e-6}}
    return {
        "bert": dict(
            **pieces, config=hf.BertConfig(**bert(WIDE)), make=lambda c: hf.BertModel(c, **no_pool), pooling="cls",
            save=plain, f16=True, strings=True, mistakes=BERT | POSITIONS | other_types),
        "bert_reranker": dict(
            **pieces, config=hf.BertConfig(**bert(layers=3, num_labels=1)), pooling="rank", save=plain,
            make=lambda c: parts.without_pooler(hf.BertForSequenceClassification(c)),
            mistakes=BERT | POSITIONS | other_types),
        "xlmr": dict(
            vocabulary="unigram", config=hf.XLMRobertaConfig(**xlmr()), save=plain, pooling="mean", strings=True,
            make=lambda c: hf.XLMRobertaModel(c, **no_pool), mistakes=BERT | POSITIONS),
        "xlmr_reranker": dict(
            vocabulary="unigram", config=hf.XLMRobertaConfig(**xlmr(num_labels=1)), pooling="rank", save=plain,
            make=hf.XLMRobertaForSequenceClassification,
            mistakes=BERT | POSITIONS | {"head without tanh": linear_head}),
        "modernbert": dict(
            **modern, config=modernbert(num_hidden_layers=4), make=hf.ModernBertModel, pooling="mean", save=plain,
            extra=PUBLISHED, strings=True, mistakes=WINDOWS),
        "modernbert_reranker": dict(
            **modern, config=modernbert(num_hidden_layers=5, num_labels=1, classifier_pooling="mean"), pooling="rank",
            make=hf.ModernBertForSequenceClassification, save=plain, extra=PUBLISHED, f16=True,
            mistakes=WINDOWS | {"head of the first state": {"classifier_pooling": "cls"},
                                "head with SiLU": {"classifier_activation": "silu"},
                                "head without activation": {"classifier_activation": "linear"}}),
        "gemma_embedding": dict(
            vocabulary="gemma", config=hf.Gemma3TextConfig(**gemma), make=hf.Gemma3TextModel, pooling="mean", f16=True,
            dense=(SMALL, 48, SMALL), save=parts.with_dense, extra=dict(window=WINDOW),
            options=dict(sentence_transformers_dense_modules=True),
            mistakes=rms_eps | {
                "no dense layers": without("dense"), "SiLU": {"hidden_activation": "silu"},
                "no window": {"sliding_window": 129}, "twice the window": {"sliding_window": WINDOW + 1},
                "a window of one token less": {"sliding_window": WINDOW // 2},
                "RoPE of windows as elsewhere": {"rope_parameters": two_ropes(1000.0, 1000.0)},
                "RoPE elsewhere as in windows": {"rope_parameters": two_ropes(10.0, 10.0)},
                "windows in all layers": {"layer_types": GEMMA_LAYERS[:1] * 6},
                "scale of queries": {"query_pre_attn_scalar": 64},
                "embedding not scaled": lambda e: e.model.embed_tokens.embed_scale.fill_(1.0)}),
        # Layers without a window have heads and RoPE of their own; the file has the window's two sides together.
        "gemma_embedding2": dict(
            vocabulary="gemma", pooling="mean", make=hf.EmbeddingGemma2TextModel, write=embedding_gemma.write_file,
            config=hf.EmbeddingGemma2TextConfig(
                hidden_size=SMALL, intermediate_size=48, num_hidden_layers=6, num_attention_heads=2,
                num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1,
                max_position_embeddings=128, rms_norm_eps=0.03, sliding_window=WINDOW // 2, embedding_dim=48,
                hidden_size_per_layer_input=24, rope_parameters=two_ropes(1000.0, 10.0)),
            mistakes=rms_eps | {
                "SiLU": {"hidden_activation": "silu"}, "no window": {"sliding_window": 128},
                "twice the window": {"sliding_window": WINDOW},
                "a window of one token less": {"sliding_window": WINDOW // 2 - 1},
                "RoPE of windows as elsewhere": {"rope_parameters": two_ropes(1000.0, 1000.0)},
                "RoPE elsewhere as in windows": {"rope_parameters": two_ropes(10.0, 10.0)}} | embedding_gemma.MISTAKES),
        "nomic_bert": dict(
            **pieces, config=hf.NomicBertConfig(**bert(WIDE, intermediate_size=WIDE), **one_rope(1000.0)),
            make=hf.NomicBertModel, pooling="mean", save=parts.as_nomic, raw=True, f16=True,
            mistakes=ROPE | gelu | ln_eps | other_types),
        "nomic_bert_moe": dict(
            vocabulary="unigram_plain", pooling="mean", make=parts.nomic_moe, save=parts.as_nomic_moe, raw=True,
            config=hf.JinaEmbeddingsV3Config(**xlmr(num_hidden_layers=4), num_experts=4, moe_top_k=2,
                                             **one_rope(1000.0)), f16=True,
            mistakes=ROPE | BERT | {"one expert": {"moe_top_k": 1}, "weights with sum 1": {"normed_experts": True},
                                    "no types": filled("token_type", 0.0)}),
        "jina_v3": dict(
            vocabulary="unigram_plain", pooling="mean", make=lambda c: hf.JinaEmbeddingsV3Model(c, **no_pool),
            config=hf.JinaEmbeddingsV3Config(**xlmr(hidden_size=WIDE, num_attention_heads=4), **one_rope(20000.0)),
            save=parts.as_jina, raw=True, f16=True, mistakes=ROPE | BERT | {"no types": filled("token_type", 0.0)}),
        "jina_v2": dict(
            **pieces, config=jina_bert(48, 3), make=parts.JinaBert, pooling="mean", save=parts.as_jina_bert, raw=True,
            f16=True, mistakes=ALIBI | BERT | other_types | swapped),
        "jina_v2_plain": dict(
            **pieces, config=jina_bert(48, 3, gated=False), make=parts.JinaBert, pooling="mean",
            save=parts.as_jina_bert, raw=True, mistakes=ALIBI | BERT | other_types),
        "jina_v2_code": dict(
            **pieces, config=jina_bert(WIDE, 4, code=True), make=parts.JinaBert, pooling="mean",
            save=parts.as_jina_bert, raw=True,
            mistakes=ALIBI | BERT | other_types | swapped | {"queries and keys without norms": {"norms_heads": False},
                                                   "one sum behind attention": {"sums_twice": False}}),
        "eurobert": dict(
            vocabulary="euro", pre="llama-bpe", make=hf.EuroBertModel, pooling="mean", f16=True,
            config=hf.EuroBertConfig(**causal(WIDE, pad_token_id=0, bos_token_id=1, eos_token_id=2, mask_token_id=3)),
            save=plain, raw=True, extra={"classifier_pooling": None, "clf_pooling": "late"},
            mistakes=ROPE | gelu | rms_eps),
        "neobert": dict(
            **pieces, config=neobert_config(), make=parts.NeoBert, pooling="cls", save=parts.as_neobert, raw=True,
            mistakes={"halves rotated instead of neighbours": {"pairs": "halves"}, "epsilon": {"norm_eps": 1e-6},
                      "gate and up exchanged": {"swapped": True}, "another base of RoPE": {"rope_theta": 500.0},
                      BY_HEADS: {"thirds": "heads"}}),
        "llama_embed": dict(
            vocabulary="llama3", pre="llama-bpe", config=hf.LlamaConfig(**causal()), pooling="mean", f16=True,
            make=lambda c: parts.bidirectional(hf.LlamaModel(c)), save=parts.as_llama_embed, raw=True,
            mistakes=ROPE | gelu | rms_eps),
        "qwen3_embedding": dict(
            vocabulary="qwen", pre="qwen2", config=hf.Qwen3Config(**causal()), make=hf.Qwen3Model, pooling="last",
            save=plain, mistakes=ROPE | gelu | rms_eps),
        # The pooling is that of the tokens "yes" and "no"; the converter knows such rerankers by their name.
        "qwen3_reranker": dict(
            vocabulary="qwen", pre="qwen2", config=hf.Qwen3Config(**causal(tie_word_embeddings=True)), pooling="rank",
            make=hf.Qwen3ForCausalLM, save=plain, folder="Qwen3-Reranker", answers=["yes", "no"],
            mistakes=ROPE | gelu | rms_eps),
    }


# ---- weights

def is_norm(name):
    return any(part in name.split(".")[-2].lower() for part in ("norm", "ln"))


def weights(name, shape, rng, config):
    n = rng.standard_normal(shape)
    if is_norm(name) and name.endswith("weight"):
        return 0.3 * n + (0.0 if config.__class__.__name__.startswith("Gemma3") else 1.0)
    if name.endswith("bias"):
        return 0.3 * n
    if "embed" in name or name.startswith("model.encoder.weight"):
        return (0.1 if config.__class__.__name__.startswith("Gemma3") else 0.6) * n
    if "router" in name:
        return 2.0 * n / shape[-1] ** 0.5
    sharp = any(part in name for part in ("query", "key", "q_proj", "k_proj", "qkv"))
    return (1.3 if sharp else 1.0) * n / shape[-2 if name.endswith("w2") else -1] ** 0.5


def build(row, size, seed):
    c = row["config"]
    c.vocab_size = size
    c._attn_implementation = "eager"
    encoder = parts.Encoder(row["make"](c), row["pooling"], row.get("dense", ())).float().eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in sorted(encoder.named_parameters()):
            p.copy_(torch.from_numpy(weights(name, p.shape, rng, c).astype(np.float16).astype(np.float32)))
        for name, b in sorted(encoder.named_buffers()):
            if name.endswith("layer_scalar"):
                b.copy_(torch.from_numpy(np.float32(1 + 0.3 * rng.standard_normal(b.shape))))
    return encoder


# ---- results

def texts(tokenizer, size, seed):
    """Lists of ids with control tokens around them; the last one is a pair. Without a tokenizer: BOS 1, EOS 2."""
    rng = np.random.default_rng(seed)
    special = set(tokenizer.all_special_ids) if tokenizer else {0, 1, 2}
    usable = [i for i in range(size) if i not in special]
    around = tokenizer("").input_ids if tokenizer else [1, 2]
    behind = len(around) == 2 or tokenizer.bos_token_id not in around
    first, last = (around[:-1], around[-1:]) if behind else (around, [])
    some = lambda n: rng.choice(usable, max(n - len(around), 0)).tolist()
    out = [(first or last)[:1]] + [first + some(n) + last for n in LENGTHS]
    return out + [first + some(12) + last + some(20) + last]


@torch.no_grad()
def results(encoder, ids, types=None):
    return [encoder(one, types and types[i]).double().numpy() for i, one in enumerate(ids)]


def moved(changed, expected):
    """The largest difference relative to the largest result, of the text that shows it best."""
    scale = max(np.abs(e).max() for e in expected)
    return max(float(np.abs(a - e).max() if a.shape == e.shape else scale) for a, e in zip(changed, expected)) / scale


def mutants(row, encoder):
    """(mistake, encoder with it): every norm, every bias, every other pooling, every trait once."""
    def changed(edit):
        m = copy.deepcopy(encoder)
        with torch.no_grad():
            edit(m)
        return m

    names = [n for n, _ in encoder.named_parameters()]
    kind = lambda n: ".".join(n.split(".")[-3:-1]) if "LayerNorm" in n else n.split(".")[-2]
    shift = 0.0 if encoder.model.config.__class__.__name__.startswith("Gemma3") else 1.0
    for what in sorted({kind(n) for n in names if is_norm(n) and n.endswith("weight")}):
        of = [n for n in names if kind(n) == what and n.endswith("weight")]
        yield f"{what} without weight", changed(lambda m: [m.get_parameter(n).fill_(shift) for n in of])
    of_keys = {"key", "k_proj", "layer_norm_k"}  # no or little effect
    for what in sorted({kind(n) for n in names if n.endswith("bias")} - of_keys):
        of = [n for n in names if kind(n) == what and n.endswith("bias")]
        yield f"{what} without bias", changed(lambda m: [m.get_parameter(n).zero_() for n in of])
    for other in set(parts.POOLING) - {row["pooling"]} if row["pooling"] in parts.POOLING else ():
        yield f"pooling by {other}", changed(lambda m: setattr(m, "pooling", other))
    decoder = type(encoder.model).__name__.startswith("Qwen3")
    mask = {"attention to all tokens": seeing("all")} if decoder else {"causal attention": seeing("earlier")}
    for what, change in (row["mistakes"] | (mask if row["make"] not in OWN else {})).items():
        if callable(change):
            yield what, changed(change)
            continue
        m, config = copy.deepcopy(encoder), copy.deepcopy(encoder.model.config)
        for key, value in change.items():
            setattr(config, key, value)
        m.model = row["make"](config).float().eval()
        m.model.load_state_dict(encoder.model.state_dict())
        yield what, m


def check_sensitivity(name, row, encoder, ids, expected, verbose):
    for what, mutant in mutants(row, encoder):
        by = moved(results(mutant, ids), expected)
        if verbose:
            print(f"    {what}: {by:.1e}")
        if by < 5 * TOLERANCE:
            sys.exit(f"{name}: '{what}' moves the results by {by:.2e} only; a program that gets it wrong would pass")


# ---- files

def convert(row, folder, path):
    import gguf
    from conversion import ModelBase, get_model_class

    raw = json.loads(Path(folder, "config.json").read_text())
    cls = get_model_class(raw["architectures"][0])

    class Tiny(cls):
        model_arch = cls.model_arch

        def get_vocab_base_pre(self, tokenizer):
            return row["pre"]  # the converter knows published vocabularies only

        def set_vocab(self):
            if row["vocabulary"] == "gemma":
                return vocabularies.write_gemma(self.gguf_writer)
            # That of the mixture would name the mask of the published vocabulary.
            arch, self.model_arch = self.model_arch, gguf.MODEL_ARCH.BERT
            super().set_vocab()
            self.model_arch = arch

    options = row.get("options", {}) | ({"hparams": raw} if row.get("raw") else {})
    kind = gguf.LlamaFileType.MOSTLY_F16 if row.get("f16") else gguf.LlamaFileType.ALL_F32
    Tiny(Path(folder), kind, Path(path), is_big_endian=False, use_temp_file=False, eager=True,
         model_name="tiny random encoder", **options).write()


def numbers(arrays):
    return [[float(f"{x:.8g}") for x in a] for a in arrays]


def write_json(path, doc):
    """One line per entry of a list."""
    def value(v):
        if isinstance(v, list) and v and isinstance(v[0], (list, str, dict)):
            return "[\n  " + ",\n  ".join(json.dumps(x) for x in v) + "\n ]"
        return json.dumps(v)
    text = ",\n ".join(f"{json.dumps(k)}: {value(v)}" for k, v in doc.items())
    Path(path).write_text("{\n " + text + "\n}\n")


def pairs(path, row, encoder, tokenizer):
    """What a reranker's file makes of queries and documents."""
    from gguf import GGUFReader

    template = GGUFReader(path).fields.get("tokenizer.chat_template.rerank")
    for query, document in PAIRS:
        pair = tokenizer(query, document)
        if template:
            text = template.contents().replace("{query}", query).replace("{document}", document)
            pair = tokenizer(text, add_special_tokens=False)
        score = lambda types: float(f"{results(encoder, [pair.input_ids], types)[0][0]:.8g}")
        doc = {"query": query, "document": document, "ids": pair.input_ids, "score": score(None)}
        if getattr(encoder.model.config, "type_vocab_size", 1) > 1:
            doc |= {"types": pair.token_type_ids, "typed": score([pair.token_type_ids])}
        yield doc


def write_results(path, row, encoder, tokenizer, ids, expected):
    kind = "embeddings" if row["pooling"] in parts.POOLING else "scores"
    module = type(encoder.model).__module__
    doc = {"by": f"{type(encoder.model).__name__} of " + ("transformers " + hf.__version__ if module.startswith(
        "transformers") else "encoder_parts.py, torch " + torch.__version__),
        "pooling": row["pooling"] if kind == "embeddings" else "rank", "texts": ids, kind: numbers(expected)}
    if getattr(encoder.model.config, "type_vocab_size", 1) > 1:
        doc["types"] = types = [[int(i >= len(t) // 2) for i in range(len(t))] for t in ids]
        doc["typed"] = numbers(results(encoder, ids, types))
    if hasattr(encoder.model.config, "thirds"):
        doc["published"] = numbers(results(next(m for what, m in mutants(row, encoder) if what == BY_HEADS), ids))
    if kind == "scores":
        doc["pairs"] = list(pairs(path.replace(".json", ".gguf"), row, encoder, tokenizer))
    write_json(path, doc)


def write_strings(path, row, tokenizer, folder):
    doc = {"by": f"{type(tokenizer).__name__} of transformers {hf.__version__}",
           "strings": vocabularies.STRINGS, "ids": [tokenizer(s).input_ids for s in vocabularies.STRINGS]}
    ids = doc["ids"]
    written = [tokenizer(s, split_special_tokens=True).input_ids for s in vocabularies.STRINGS]
    doc["written"] = [{"string": i, "ids": a} for i, (a, b) in enumerate(zip(written, ids)) if a != b]
    if row["vocabulary"] == "unigram":
        plain = [vocabularies.plain_ids(folder, s) for s in vocabularies.STRINGS]
        doc["plain"] = [{"string": i, "ids": p} for i, (p, h) in enumerate(zip(plain, ids)) if p != h]
    write_json(path, doc)


def write_model(name, row, out, verbose):
    seed = zlib.crc32(name.encode())
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, row.get("folder", name))
        folder.mkdir()
        tokenizer, size = getattr(vocabularies, row["vocabulary"])(folder)
        if row.get("answers"):
            row["pooling"] = tuple(tokenizer.convert_tokens_to_ids(row["answers"]))
        encoder = build(row, size, seed)
        ids = texts(tokenizer, size, seed + 1)
        expected = results(encoder, ids)
        check_sensitivity(name, row, encoder, ids, expected, verbose)
        if "write" in row:
            row["write"](f"{root}/{name}.gguf", encoder.model)
        else:
            row["save"](folder, encoder, **row.get("extra", {}))
            if row["pooling"] in parts.POOLING and name != "neobert":
                parts.pooling_files(folder, row["pooling"], len(encoder.dense))
            convert(row, folder, f"{root}/{name}.gguf")  # beside it are adapters without tensors
        shutil.copyfile(f"{root}/{name}.gguf", f"{out}/{name}.gguf")
        write_results(f"{out}/{name}.json", row, encoder, tokenizer, ids, expected)
        if row.get("strings"):
            write_strings(f"{out}/{name}.tokens.json", row, tokenizer, folder)
    print(f"{name}: {os.path.getsize(f'{out}/{name}.gguf')} bytes")


def main():
    args = [a for a in sys.argv[1:] if a != "-v"]
    if len(args) < 2 or args[0].startswith("-"):
        sys.exit(__doc__.strip())
    out, wanted, table = args[1], args[2:], rows()
    for name in wanted:
        if name not in table:
            sys.exit(f"no model '{name}'; there are: {' '.join(table)}")
    torch.set_num_threads(1)
    for name, row in table.items():
        if not wanted or name in wanted:
            write_model(name, row, out, "-v" in sys.argv)


if __name__ == "__main__":
    main()

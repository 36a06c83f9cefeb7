#!/usr/bin/env python3
"""Writes tiny random checkpoints of every family, with logits of HF transformers.

make_tiny_models.py [-v] OUT_DIR [NAME...]
Needs transformers, torch (the CPU is enough), numpy and gguf from PyPI; downloads no model.

Files per model: NAME.gguf (F32 weights, an SPM-style vocabulary of 300 entries), NAME.tokens.npy (T) i32 and
NAME.logits.npy (T, vocab) f32, one row per position. LongRope models have two pairs, NAME.short.* and NAME.long.*: a
prompt within the original context and one beyond it. The script fails if a part of a family hardly changes the logits,
because a program that gets this part wrong could then pass; -v prints the change for each part.
"""
import copy
import math
import os
import sys
import zlib
from unittest import mock

import gguf
import numpy as np
import torch
import transformers as hf
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

VOCAB = 300
PROMPT = 40
ORIGINAL_CONTEXT = 32  # of scaled RoPE: prompts of PROMPT tokens are longer
SHORT_PROMPT = 24
TOLERANCE = 1e-3  # allowed by the tests, relative to the largest logit


# ---- models

def rope(theta=10000.0, **scaling):
    return {"rope_type": "default", "rope_theta": theta} | scaling


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": ORIGINAL_CONTEXT}


def longrope(pairs, **more):
    return {"rope_type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
            "long_factor": [1.0 + 0.6 * i for i in range(pairs)],
            "original_max_position_embeddings": ORIGINAL_CONTEXT} | more


def base(**changes):
    """The common shape; eps is large relative to the embeddings, so that a wrong eps shows."""
    return dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-3, bos_token_id=1, eos_token_id=2,
                pad_token_id=None, tie_word_embeddings=False) | changes


# name -> (GGUF architecture, HF config)
def models():
    long = dict(num_attention_heads=3, original_max_position_embeddings=ORIGINAL_CONTEXT)
    return {
        "llama": ("llama", hf.LlamaConfig(**base(hidden_size=32, rope_parameters=rope()))),
        "llama_tied": ("llama", hf.LlamaConfig(**base(tie_word_embeddings=True, num_attention_heads=6,
                                                      rope_parameters=rope(500000.0)))),
        "llama3_rope": ("llama", hf.LlamaConfig(**base(num_attention_heads=3, num_key_value_heads=1,
                                                       rope_parameters=rope(500000.0) | LLAMA3))),
        # Mistral files name llama as their architecture; Nemo's head_dim is not hidden_size / heads.
        "mistral": ("llama", hf.MistralConfig(**base(head_dim=16, sliding_window=None, num_key_value_heads=1,
                                                     rope_parameters=rope(1000000.0)))),
        "qwen2": ("qwen2", hf.Qwen2Config(**base(num_attention_heads=6, rope_parameters=rope(1000000.0)))),
        # Qwen2.5 reaches long contexts by YaRN, older Llama and CodeLlama fine-tunes by linear scaling.
        "qwen2_yarn": ("qwen2", hf.Qwen2Config(**base(
            num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True, max_position_embeddings=128,
            rope_parameters=rope() | {"rope_type": "yarn", "factor": 4.0,
                                      "original_max_position_embeddings": ORIGINAL_CONTEXT}))),
        "llama_linear": ("llama", hf.LlamaConfig(**base(
            hidden_size=32, tie_word_embeddings=True,
            rope_parameters=rope() | {"rope_type": "linear", "factor": 4.0}))),
        "qwen3": ("qwen3", hf.Qwen3Config(**base(hidden_size=32, head_dim=32, rope_parameters=rope(1000000.0)))),
        "phi3": ("phi3", hf.Phi3Config(**base(num_attention_heads=3, num_key_value_heads=3, rope_parameters=rope()))),
        "phi3_longrope": ("phi3", hf.Phi3Config(**base(num_key_value_heads=3, rope_parameters=rope() | longrope(8),
                                                       **long))),
        # Phi-4-mini rotates three quarters of a head, shares kv heads and ties its output.
        "phi3_partial": ("phi3", hf.Phi3Config(**base(num_key_value_heads=1, tie_word_embeddings=True,
                                                      rope_parameters=rope() | longrope(6, partial_rotary_factor=0.75),
                                                      **long))),
    }


def is_longrope(config):
    return config.rope_parameters["rope_type"] == "longrope"


def build(config, seed, embedding=0.2):
    """A model with random weights: large enough that every part affects the logits, small enough that f16 keys and
    values do not."""
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "q_norm" in name or "k_norm" in name:
                a = 0.5 + 0.2 * rng.standard_normal(p.shape)  # scores of order 1, so that f16 keys have little effect
            elif "norm" in name:
                a = 1.0 + 0.3 * rng.standard_normal(p.shape)
            elif name.endswith("bias"):
                a = 0.4 * rng.standard_normal(p.shape)
            elif "embed_tokens" in name:
                a = embedding * rng.standard_normal(p.shape)
            elif "lm_head" in name:
                a = rng.standard_normal(p.shape) / math.sqrt(p.shape[-1])
            else:
                a = (0.25 if "o_proj" in name else 0.7) * rng.standard_normal(p.shape) / math.sqrt(p.shape[-1])
            p.copy_(torch.from_numpy(a.astype(np.float32)))
    return model


def logits(model, tokens):
    with torch.no_grad():
        ids = torch.from_numpy(np.asarray(tokens, np.int64))[None]
        return model(input_ids=ids, use_cache=False).logits[0].float().numpy()


def logits_f16_kv(model, tokens):
    """Logits with keys and values stored as f16, the only difference that a correct program may show."""
    def attention(module, query, key, value, attention_mask, **kwargs):
        own = sys.modules[type(module).__module__]  # of the family: softcaps, sinks
        forward = getattr(own, "eager_attention_forward", eager_attention_forward)
        return forward(module, query, key.half().float(), value.half().float(), attention_mask, **kwargs)

    # These choose tokens only in the attention that is called "eager".
    if any(hasattr(model.config, key) for key in ("index_topk", "index_topk_blocks")):
        own = sys.modules[type(model).__module__]
        plain = own.eager_attention_forward
        with mock.patch.object(own, "eager_attention_forward", lambda module, query, key, value, *args, **kwargs: plain(
                module, query, key.half().float(), value.half().float(), *args, **kwargs)):
            return logits(model, tokens)
    AttentionInterface.register("f16_kv", attention)
    AttentionMaskInterface.register("f16_kv", AttentionMaskInterface()["eager"])
    model.config._attn_implementation = "f16_kv"
    out = logits(model, tokens)
    model.config._attn_implementation = "eager"
    return out


def prompt(n, seed):
    rng = np.random.default_rng(seed)
    return np.concatenate([[1], rng.integers(3, VOCAB, n - 1)]).astype(np.int32)


# ---- the expectations must depend on every part of the family

def relative(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def mutants(model):
    """(mistake, model with it) for every mistake that the tests must notice."""
    def changed(edit):
        m = copy.deepcopy(model)
        with torch.no_grad():
            edit(m)
        return m

    def each(what):
        return lambda m: [what(layer) for layer in m.model.layers]

    def unit(norm):
        norm.weight.fill_(1.0)

    def swap_kv_heads(layer):
        a, c = layer.self_attn, model.config
        if c.num_key_value_heads < 2:
            return
        d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        w = a.qkv_proj.weight[c.num_attention_heads * d:] if hasattr(a, "qkv_proj") else a.k_proj.weight
        first, second = w[:d].clone(), w[d:2 * d].clone()
        w[:d], w[d:2 * d] = second, first

    def other_pairs(layer):
        a, c = layer.self_attn, model.config
        d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
        if hasattr(a, "qkv_proj"):
            q, k = c.num_attention_heads * d, c.num_key_value_heads * d
            for rows, n in ((a.qkv_proj.weight[:q], c.num_attention_heads), (a.qkv_proj.weight[q:q + k], k // d)):
                rows.copy_(torch.from_numpy(permute(rows.numpy().copy(), n)))
        else:
            for part, n in heads.items():
                w = getattr(a, part).weight
                w.copy_(torch.from_numpy(permute(w.numpy().copy(), n)))

    def eps(m):
        for x in m.modules():
            if hasattr(x, "variance_epsilon"):
                x.variance_epsilon = 1e-6

    def drop_bias(layer):
        for x in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            x.bias.zero_()

    def plain_rope(m):
        r = m.model.rotary_emb
        c = m.config
        d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        d = int(d * c.rope_parameters.get("partial_rotary_factor", 1.0))
        r.rope_type = "default"
        r.inv_freq = 1.0 / c.rope_parameters["rope_theta"] ** (torch.arange(0, d, 2).float() / d)
        r.attention_scaling = 1.0

    def slower(m, power):  # the base to another power; 0: no rotation
        r = m.model.rotary_emb
        if power == 0:
            for x in ("inv_freq", "original_inv_freq", "long_inv_freq"):
                setattr(r, x, torch.zeros_like(r.inv_freq))
        else:
            r.inv_freq, r.original_inv_freq = r.inv_freq ** power, r.inv_freq ** power
            if is_longrope(m.config):
                r.long_inv_freq = r.long_inv_freq ** power

    def no_attention_scale(m):
        m.model.rotary_emb.attention_scaling = 1.0

    layer, c = model.model.layers[0], model.config
    out = [("positions ignored", changed(lambda m: slower(m, 0.0))),
           ("another rope base", changed(lambda m: slower(m, 0.5))),
           ("neighbours rotated instead of halves", changed(each(other_pairs))),
           ("input norms without weight", changed(each(lambda l: unit(l.input_layernorm)))),
           ("mlp norms without weight", changed(each(lambda l: unit(l.post_attention_layernorm)))),
           ("final norm without weight", changed(lambda m: unit(m.model.norm))),
           ("epsilon", changed(eps))]
    if c.num_key_value_heads > 1:
        out.append(("kv heads in another order", changed(each(swap_kv_heads))))
    if hasattr(layer.self_attn, "q_proj") and layer.self_attn.q_proj.bias is not None:
        out.append(("biases ignored", changed(each(drop_bias))))
    if hasattr(layer.self_attn, "q_norm"):
        out.append(("q norm ignored", changed(each(lambda l: unit(l.self_attn.q_norm)))))
        out.append(("k norm ignored", changed(each(lambda l: unit(l.self_attn.k_norm)))))
    if c.rope_parameters["rope_type"] != "default":
        out.append(("rope scaling ignored", changed(plain_rope)))
    if model.model.rotary_emb.attention_scaling != 1.0:
        out.append(("attention scale of the rope ignored", changed(no_attention_scale)))
    return out


def check_sensitivity(name, model, tokens, expected, verbose):
    for what, mutant in mutants(model):
        moved = relative(logits(mutant, tokens), expected)
        if verbose:
            print(f"    {what}: {moved:.1e}")
        if moved < 5 * TOLERANCE:
            sys.exit(f"{name}: '{what}' moves the logits by {moved:.2e} only; a program that gets it wrong would pass")


def check_rounding(name, model, tokens, expected):
    moved = relative(logits_f16_kv(model, tokens), expected)
    # Mamba has no attention, and Falcon's code of transformers has its own.
    if moved > 0.3 * TOLERANCE or (moved == 0 and "mamba" not in name and "falcon" not in name):
        sys.exit(f"{name}: f16 keys and values move the logits by {moved:.2e}; choose calmer weights")
    return moved


# ---- GGUF

def vocabulary():
    """Tokens, scores and types: unknown, BOS, EOS, 256 bytes, then pieces in the order of their scores."""
    tokens, scores, types = [b"<unk>", b"<s>", b"</s>"], [0.0] * 3, [2, 3, 3]
    for b in range(256):
        tokens.append(f"<0x{b:02X}>".encode())
        scores.append(0.0)
        types.append(6)
    pieces = ["\u2581t", "he", "\u2581a", "\u2581the", "in", "re", "on", "an", "er", "\u2581s", "nd"]
    pieces += ["\u2581", *"etaoinshrdlucmfwypvbgk.,!"]
    for i, p in enumerate(pieces):
        tokens.append(p.encode())
        scores.append(-float(i))
        types.append(1)
    for i in range(VOCAB - len(tokens)):
        tokens.append(f"\u2581w{i}".encode())
        scores.append(-100.0 - i)
        types.append(1)
    return tokens, scores, types


def permute(w, heads):
    """Reorders rows of q or k from HF's halves to the interleaved pairs of llama files."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_factors(config, head_dim):
    r = config.rope_parameters
    freqs = 1.0 / r["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    wavelength = 2 * math.pi / freqs
    low = r["original_max_position_embeddings"] / r["low_freq_factor"]
    high = r["original_max_position_embeddings"] / r["high_freq_factor"]
    smooth = (r["original_max_position_embeddings"] / wavelength - r["low_freq_factor"]) / (
        r["high_freq_factor"] - r["low_freq_factor"])
    between = 1.0 / ((1 - smooth) / r["factor"] + smooth)
    return np.where(wavelength < high, 1.0, np.where(wavelength > low, r["factor"], between)).astype(np.float32)


def write_metadata(w, arch, config, file_type):
    c, r = config, config.rope_parameters
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_name("tiny random checkpoint")
    w.add_file_type(file_type)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_rope_freq_base(r["rope_theta"])
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    if arch == "phi3":
        w.add_rope_dimension_count(int(head_dim * r.get("partial_rotary_factor", 1.0)))
        w.add_sliding_window(0)
        w.add_rope_scaling_orig_ctx_len(c.original_max_position_embeddings)
    else:
        if head_dim * c.num_attention_heads != c.hidden_size:
            w.add_key_length(head_dim)
            w.add_value_length(head_dim)
        if arch == "llama":
            w.add_vocab_size(c.vocab_size)
            w.add_rope_dimension_count(head_dim)
    if is_longrope(c):
        scale = c.max_position_embeddings / c.original_max_position_embeddings
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(c.original_max_position_embeddings)))
    if r["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(r["factor"])
    if r["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(r["factor"])
        w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
    tokens, scores, types = vocabulary()
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens[:c.vocab_size])
    w.add_token_scores(scores[:c.vocab_size])
    w.add_token_types(types[:c.vocab_size])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}


def tensors(arch, model):
    """(GGUF name, array as in the file, number of heads whose rows were permuted or 0, HF name) of every weight."""
    c = model.config
    for name, p in model.state_dict().items():
        a, heads = p.detach().numpy(), 0
        part, kind = name.rsplit(".", 1)
        if part == "model.embed_tokens":
            yield f"token_embd.{kind}", a, heads, name
        elif part == "model.norm":
            yield f"output_norm.{kind}", a, heads, name
        elif part == "lm_head":
            if not c.tie_word_embeddings:
                yield f"output.{kind}", a, heads, name
        else:
            _, _, layer, part = part.split(".", 3)
            if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = c.num_attention_heads if part == "self_attn.q_proj" else c.num_key_value_heads
                a = permute(a, heads)
            yield f"blk.{layer}.{NAMES[part]}.{kind}", a, heads, name
    r = c.rope_parameters
    if r["rope_type"] == "llama3":
        yield "rope_freqs.weight", llama3_factors(c, c.head_dim), 0, None
    if is_longrope(c):
        yield "rope_factors_long.weight", np.array(r["long_factor"], np.float32), 0, None
        yield "rope_factors_short.weight", np.array(r["short_factor"], np.float32), 0, None


def write_gguf(path, arch, model, file_type=0, blocks=None, more=None):
    """blocks: GGUF name -> (raw rows, type) of weights other than F32; more: GGUF name -> values of further tensors."""
    w = gguf.GGUFWriter(path, arch)
    write_metadata(w, arch, model.config, file_type)
    for tensor, a, _, _ in tensors(arch, model):
        if blocks and tensor in blocks:
            w.add_tensor(tensor, blocks[tensor][0], raw_dtype=blocks[tensor][1])
        else:
            w.add_tensor(tensor, np.ascontiguousarray(a, np.float32))
    for tensor, a in (more or {}).items():
        w.add_tensor(tensor, a)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def check_sizes(paths):
    for path in paths:
        if os.path.getsize(path) >= 300_000:
            sys.exit(f"{path}: {os.path.getsize(path)} bytes, the limit for committed files is 300000")


def main():
    args = [a for a in sys.argv[1:] if a != "-v"]
    verbose = "-v" in sys.argv
    if not args or args[0].startswith("-"):
        sys.exit(__doc__.strip())
    out, wanted = args[0], args[1:]
    table = models()
    for name in wanted:
        if name not in table:
            sys.exit(f"no model '{name}'; there are: {' '.join(table)}")
    torch.set_num_threads(1)
    for name, (arch, config) in table.items():
        if wanted and name not in wanted:
            continue
        seed = zlib.crc32(name.encode())
        model = build(config, seed)
        write_gguf(f"{out}/{name}.gguf", arch, model)
        files = [f"{out}/{name}.gguf"]
        runs = {".short": SHORT_PROMPT, ".long": PROMPT} if is_longrope(config) else {"": PROMPT}
        for suffix, n in runs.items():
            tokens = prompt(n, seed + 1)
            expected = logits(model, tokens)
            rounding = check_rounding(name, model, tokens, expected)
            if n == PROMPT:
                check_sensitivity(name, model, tokens, expected, verbose)
            np.save(f"{out}/{name}{suffix}.tokens.npy", tokens)
            np.save(f"{out}/{name}{suffix}.logits.npy", expected)
            files.append(f"{out}/{name}{suffix}.logits.npy")
        check_sizes(files)
        sizes = ", ".join(f"{os.path.basename(f)} {os.path.getsize(f)} bytes" for f in files)
        print(f"{name}: f16 KV moves the logits by {rounding:.1e}; {sizes}")


if __name__ == "__main__":
    main()

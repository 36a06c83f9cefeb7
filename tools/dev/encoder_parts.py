"""For make_encoder_models.py: text encoders that transformers has in parts only, checkpoints with published names."""
import json
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers as hf
from safetensors.torch import save_file
from transformers.models.llama import modeling_llama as llama

from checkpoint_names import renamed


# ---- what becomes of the states

POOLING = {"mean": lambda x: x.mean(dim=0), "cls": lambda x: x[0], "last": lambda x: x[-1]}


class Encoder(torch.nn.Module):
    """A model of transformers and what its file says of pooling. pooling: a key of POOLING; "rank": the model's own
    head; ("yes", "no"): probabilities of these two tokens. dense: widths of layers behind pooling."""

    def __init__(self, model, pooling, dense=()):
        super().__init__()
        self.model, self.pooling = model, pooling
        self.dense = torch.nn.ModuleList(torch.nn.Linear(a, b, bias=False) for a, b in zip(dense, dense[1:]))

    def forward(self, ids, types=None):
        more = {} if types is None else {"token_type_ids": torch.tensor([types])}
        out = self.model(input_ids=torch.tensor([ids]), **more)
        if self.pooling == "rank":
            return out.logits[0]
        if isinstance(self.pooling, tuple):
            return out.logits[0, -1, list(self.pooling)].softmax(dim=0)
        x = POOLING[self.pooling](out.last_hidden_state[0])
        for layer in self.dense:
            x = layer(x)
        return x


class FirstState(torch.nn.Module):
    """BERT's pooler without its matrix, which the converter leaves out."""
    def forward(self, states):
        return states[:, 0]


def without_pooler(model):
    model.bert.pooler = FirstState()
    return model


def bidirectional(model):
    """A Llama whose tokens see each other."""
    def all_see(layer, args, more):
        return args, more | {"attention_mask": None}
    for layer in model.layers:
        layer.register_forward_pre_hook(all_see, with_kwargs=True)
    return model


# ---- nomic-embed-text-v2-moe: Jina's layers, every other one with experts

class Experts(torch.nn.Module):
    """A weighted sum of the outputs of the experts with the largest probabilities, whose sum is not one."""
    def __init__(self, config):
        super().__init__()
        self.config, d, n = config, config.hidden_size, config.intermediate_size
        self.router = torch.nn.Linear(d, config.num_experts, bias=False)
        self.w1 = torch.nn.Parameter(torch.empty(config.num_experts, n, d))
        self.w2 = torch.nn.Parameter(torch.empty(config.num_experts, n, d))

    def forward(self, x):
        weights = self.router(x).softmax(dim=-1)
        best, chosen = weights.topk(self.config.moe_top_k, dim=-1)
        if getattr(self.config, "normed_experts", False):
            best = best / best.sum(dim=-1, keepdim=True)
        inner = torch.einsum("btd,end->bten", x, self.w1)
        inner = torch.nn.functional.gelu(inner) if self.config.hidden_act == "gelu" else torch.nn.functional.silu(inner)
        outputs = torch.einsum("bten,end->bted", inner, self.w2)
        outputs = outputs.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
        return (best[..., None] * outputs).sum(dim=-2)


def nomic_moe(config):
    model = hf.JinaEmbeddingsV3Model(config, add_pooling_layer=False)
    for i, layer in enumerate(model.layers):
        if i % 2 == 1:
            layer.mlp = Experts(config)
    return model


# ---- NeoBERT, by the equations of llama.cpp's src/models/neo-bert.cpp (published code has q, k, v of a head together)

class NeoBertLayer(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config, d, n = c, c.hidden_size, c.intermediate_size * 2 // 3
        self.qkv, self.wo = torch.nn.Linear(d, 3 * d, bias=False), torch.nn.Linear(d, d, bias=False)
        self.ffn = torch.nn.ModuleDict({"w12": torch.nn.Linear(d, 2 * n, bias=False),
                                        "w3": torch.nn.Linear(n, d, bias=False)})
        self.attention_norm, self.ffn_norm = (llama.LlamaRMSNorm(d, c.norm_eps) for _ in range(2))

    def heads(self, x):
        """q, k and v (1, heads, T, head_dim), the thirds of one matrix, or of the rows of each head."""
        n = self.config.num_attention_heads
        rows = self.qkv(x).unflatten(-1, (3, n, -1) if self.config.thirds == "matrix" else (n, 3, -1))
        return [part.transpose(1, 2) for part in rows.unbind(2 if self.config.thirds == "matrix" else 3)]

    def rotated(self, x):
        """Pairs of neighbouring channels, turned."""
        c, t = self.config, torch.arange(x.shape[2])
        half = x.shape[-1] // 2
        angles = t[:, None] / c.rope_theta ** (torch.arange(half) / half)
        if c.pairs == "neighbours":
            a, b = x[..., 0::2], x[..., 1::2]
        else:
            a, b = x[..., :half], x[..., half:]
        turned = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        return torch.stack(turned, -1).flatten(-2) if c.pairs == "neighbours" else torch.cat(turned, -1)

    def forward(self, x):
        q, k, v = self.heads(self.attention_norm(x))
        q, k = self.rotated(q), self.rotated(k)
        scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(dim=-1)
        x = x + self.wo((scores @ v).transpose(1, 2).flatten(2))
        gate, up = self.ffn["w12"](self.ffn_norm(x)).chunk(2, dim=-1)
        if self.config.swapped:
            gate, up = up, gate
        return x + self.ffn["w3"](torch.nn.functional.silu(gate) * up)


class NeoBert(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer_encoder = torch.nn.ModuleList(NeoBertLayer(config) for _ in range(config.num_hidden_layers))
        self.layer_norm = llama.LlamaRMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, input_ids):
        x = self.encoder(input_ids)
        for layer in self.transformer_encoder:
            x = layer(x)
        return SimpleNamespace(last_hidden_state=self.layer_norm(x))


# ---- Jina Embeddings v2, by their paper (arXiv 2310.19923) and the names of published tensors

def slopes(heads, most=8):
    """ALiBi's factor of the distance of two tokens, for each head."""
    n = 1 << (heads.bit_length() - 1)
    first = [2 ** (-most * (i + 1) / n) for i in range(n)]
    between = [2 ** (-most * (i + 1) / (2 * n)) for i in range(0, 2 * n, 2)]
    return torch.tensor((first + between)[:heads])


class JinaBertLayer(torch.nn.Module):
    """config.code: as the model for code has it, with norms of queries and keys and a second sum behind attention.
    config.gated: a gate in the MLP."""
    def __init__(self, c):
        super().__init__()
        self.config, d, n = c, c.hidden_size, c.intermediate_size
        linear, norm = torch.nn.Linear, lambda: torch.nn.LayerNorm(d, c.layer_norm_eps)
        own = {part: linear(d, d) for part in ("query", "key", "value")}
        own |= {"layer_norm_q": norm(), "layer_norm_k": norm()} if c.code else {}
        self.attention = torch.nn.ModuleDict({
            "self": torch.nn.ModuleDict(own),
            "output": torch.nn.ModuleDict({"dense": linear(d, d), "LayerNorm": norm()})})
        if c.code:
            self.layer_norm_1, self.layer_norm_2 = norm(), norm()
        names = ("up_gated_layer", "down_layer") if c.code else ("gated_layers", "wo")
        if c.gated:
            self.mlp = torch.nn.ModuleDict({names[0]: linear(d, 2 * n, bias=False), names[1]: linear(n, d)})
            if not c.code:
                self.mlp["layernorm"] = norm()
        else:
            self.intermediate = torch.nn.ModuleDict({"dense": linear(d, n)})
            self.output = torch.nn.ModuleDict({"dense": linear(n, d), "LayerNorm": norm()})

    def attend(self, x):
        own, n = self.attention["self"], self.config.num_attention_heads
        q, k, v = (own[part](x) for part in ("query", "key", "value"))
        if self.config.code and self.config.norms_heads:
            q, k = own["layer_norm_q"](q), own["layer_norm_k"](k)
        q, k, v = (part.unflatten(-1, (n, -1)).transpose(1, 2) for part in (q, k, v))
        t = torch.arange(x.shape[1])
        apart = t[None, :] - t[:, None]
        away = torch.where(apart > 0, apart * self.config.ahead, -apart) * slopes(n, self.config.bias)[:, None, None]
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 - away * self.config.far
        scores = scores.masked_fill(apart > (0 if self.config.causal else len(t)), -1e30)
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)

    def forward(self, x):
        c, out, act = self.config, self.attention["output"], hf.activations.ACT2FN[self.config.hidden_act]
        attended = out["LayerNorm"](x + out["dense"](self.attend(x)))
        if c.code:
            attended = self.layer_norm_1(attended + x) if c.sums_twice else self.layer_norm_1(attended)
        if not c.gated:
            back = self.output["dense"](act(self.intermediate["dense"](attended)))
            return self.output["LayerNorm"](attended + back)
        into, back = (self.mlp[name] for name in list(self.mlp)[:2])
        gate, up = into(attended).chunk(2, dim=-1)
        if c.code != c.swapped:
            gate, up = up, gate
        x = attended + back(act(gate) * up)
        return self.layer_norm_2(x) if c.code else self.mlp["layernorm"](x)


class JinaBert(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embeddings = torch.nn.ModuleDict({
            "word_embeddings": torch.nn.Embedding(c.vocab_size, c.hidden_size),
            "token_type_embeddings": torch.nn.Embedding(2, c.hidden_size),
            "LayerNorm": torch.nn.LayerNorm(c.hidden_size, c.layer_norm_eps)})
        self.encoder = torch.nn.ModuleDict({
            "layer": torch.nn.ModuleList(JinaBertLayer(c) for _ in range(c.num_hidden_layers))})

    def forward(self, input_ids, token_type_ids=None):
        e = self.embeddings
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = e["LayerNorm"](e["word_embeddings"](input_ids) + e["token_type_embeddings"](types))
        for layer in self.encoder["layer"]:
            x = layer(x)
        return SimpleNamespace(last_hidden_state=x)


# ---- checkpoints

def save(folder, tensors, config):
    save_file({n: t.detach().contiguous().clone() for n, t in tensors.items()}, Path(folder, "model.safetensors"),
              {"format": "pt"})
    Path(folder, "config.json").write_text(json.dumps(config))


def as_it_is(folder, encoder, **config):
    """What transformers writes. config: other values of config.json; None: the published one lacks the key."""
    encoder.model.save_pretrained(folder)
    saved = json.loads(Path(folder, "config.json").read_text())
    saved = {k: v for k, v in (saved | config).items() if k not in config or v is not None}
    Path(folder, "config.json").write_text(json.dumps(saved))


def fused(tensors, name):
    """q, k and v of each layer in one tensor."""
    for q in [n for n in tensors if ".q_proj." in n]:
        parts = [tensors.pop(q.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        tensors[q.replace("self_attn.q_proj", name)] = torch.cat(parts)
    return tensors


NOMIC = {"layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj", "embeddings.LayerNorm": "emb_ln",
         "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2", "mlp.up_proj": "mlp.fc11",
         "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2"}
JINA = NOMIC | {"self_attn.o_proj": "mixer.out_proj"}


def of_nomic(c, **more):
    """config.json of a model by Nomic."""
    return {"model_type": "nomic_bert_old", "architectures": ["NomicBertModel"], "n_embd": c.hidden_size,
            "n_head": c.num_attention_heads, "n_layer": c.num_hidden_layers, "n_inner": c.intermediate_size,
            "vocab_size": c.vocab_size, "type_vocab_size": c.type_vocab_size, "prenorm": False, "causal": False,
            "layer_norm_epsilon": c.layer_norm_eps, "rotary_emb_base": c.rope_parameters["rope_theta"],
            "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None} | more


def as_nomic(folder, encoder):
    tensors = renamed(fused(dict(encoder.model.state_dict()), "attn.Wqkv"), NOMIC)
    save(folder, tensors, of_nomic(encoder.model.config, n_positions=8192, activation_function="swiglu",
                                   qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False))


def as_nomic_moe(folder, encoder):
    tensors = renamed(fused(dict(encoder.model.state_dict()), "attn.Wqkv"), NOMIC | {
        "mlp.router": "mlp.router.layer", "mlp.w1": "mlp.experts.mlp.w1", "mlp.w2": "mlp.experts.mlp.w2"})
    tensors = {n: t.flatten(0, 1) if ".experts." in n else t for n, t in tensors.items()}
    c = encoder.model.config
    save(folder, tensors, of_nomic(c, n_positions=2048, activation_function="gelu", qkv_proj_bias=True,
                                   mlp_fc1_bias=True, mlp_fc2_bias=True, moe_every_n_layers=2, moe_top_k=c.moe_top_k,
                                   num_experts=c.num_experts, pad_token_id=1))


def as_jina(folder, encoder):
    tensors = renamed(fused(dict(encoder.model.state_dict()), "mixer.Wqkv"), JINA)
    tensors = {"roberta." + n: t for n, t in tensors.items()}
    c = encoder.model.config
    config = c.to_dict() | {"model_type": "jina_old", "architectures": ["XLMRobertaModel"], "id2label": None,
                            "rope_parameters": None, "rotary_emb_base": c.rope_parameters["rope_theta"],
                            "lora_adaptations": ["none"]}
    save(folder, tensors, config)


def as_neobert(folder, encoder):
    c = encoder.model.config
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "norm_eps")
    save(folder, {"model." + n: t for n, t in encoder.model.state_dict().items()},
         {k: getattr(c, k) for k in keys} | {"architectures": ["NeoBERT"], "model_type": "neobert", "max_length": 128})


def as_jina_bert(folder, encoder):
    c = encoder.model.config
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
            "layer_norm_eps", "max_position_embeddings", "type_vocab_size")
    save(folder, dict(encoder.model.state_dict()), {k: getattr(c, k) for k in keys} | {
        "architectures": ["JinaBertModel"], "model_type": "bert", "position_embedding_type": "alibi",
        "feed_forward_type": "geglu" if c.gated else "original"})


def as_llama_embed(folder, encoder):
    config = encoder.model.config.to_dict() | {"architectures": ["LlamaBidirectionalModel"],
                                               "model_type": "llama_bidirec"}
    save(folder, dict(encoder.model.state_dict()), config)


def with_dense(folder, encoder, window):
    """EmbeddingGemma; window: of the published config, which transformers replaces by that of its masks."""
    as_it_is(folder, encoder, sliding_window=window)
    for i, layer in enumerate(encoder.dense):
        part = Path(folder, f"{i + 2}_Dense")
        part.mkdir()
        save_file({"linear.weight": layer.weight.detach().clone()}, part / "model.safetensors")
        part.joinpath("config.json").write_text(json.dumps({
            "in_features": layer.in_features, "out_features": layer.out_features, "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity"}))


def pooling_files(folder, pooling, dense):
    """modules.json and the folder it names, as sentence-transformers has them."""
    flag = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
    modules += [(str(i + 2), f"{i + 2}_Dense", "Dense") for i in range(dense)]
    Path(folder, "modules.json").write_text(json.dumps([
        {"idx": i, "name": name, "path": path, "type": "sentence_transformers.models." + kind}
        for i, (name, path, kind) in enumerate(modules)]))
    Path(folder, "1_Pooling").mkdir()
    Path(folder, "1_Pooling/config.json").write_text(json.dumps({f: p == pooling for p, f in flag.items()}))

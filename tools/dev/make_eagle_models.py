#!/usr/bin/env python3
"""Writes tiny EAGLE-3 layers (--draft FILE) of tiny checkpoints of the other tools, with their guesses.

make_eagle_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
LLAMA_CPP_DIR, packages and the seeds of the models: see make_family_models.py. transformers has no EAGLE-3. Norms,
RoPE, attention and MLP are those of its Llama; what surrounds them is computed here from the equations of the EAGLE-3
paper, 3.1, and of the published checkpoints' configs. llama.cpp's converter makes the files from a checkpoint with
published names.

Files per layer: NAME.gguf; NAME.tokens.npy (T + 1) i32, a text and the token behind it; NAME.states.npy (T, 3 * dim)
f32, hidden states of the model in transformers, in front of three layers; NAME.logits.npy (T + 2, draft vocab) f32: of
each position, then of two guesses that go on from the layer's own state. right.gguf and right.model.gguf: a model whose
next token depends on the latest one alone, and a layer that is always right.
"""
import json
import os
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file
from transformers.models.llama import modeling_llama as llama

import make_expert_models
import make_family_models as family
from make_family_models import LLAMA3, build, convert
from make_prediction_models import f16, main_file
from make_tiny_models import TOLERANCE, VOCAB, prompt, relative

T = 21
GUESSES = 2

# name of the model -> the layer: layers whose inputs it reads, sizes, flags of the config, tensors of its own
KINDS = {
    "qwen3moe": dict(layers=[0, 1, 1], draft_vocab=120, head=True),
    "gpt_oss": dict(layers=[1, 3, 4], dim=24, n_heads=2, draft_vocab=VOCAB, head=True, embedding=True,
                    norm_before_fc=True, rope=LLAMA3),
    "gemma4": dict(layers=[1, 2, 3], draft_vocab=VOCAB, norm_before_residual=True),
}


def models(names):
    tables = [make_expert_models.models(), family.models()]
    return {name: next(t[name][0] for t in tables if name in t) for name in names}


class Layer:
    """The tensors of a layer and its equations; `mistake` names what a wrong program does."""

    def __init__(self, kind, model, seed):
        target = model.config
        self.kind, dim = kind, kind.get("dim", target.hidden_size)
        heads = kind.get("n_heads", 4)
        self.config = hf.LlamaConfig(
            hidden_size=dim, intermediate_size=56, num_hidden_layers=1, num_attention_heads=heads,
            num_key_value_heads=heads // 2, head_dim=16, rms_norm_eps=1e-3, max_position_embeddings=256,
            vocab_size=VOCAB, rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | kind.get("rope", {}))
        self.config._attn_implementation = "eager"
        rng = np.random.default_rng(seed)
        matrix = lambda rows, cols, scale=1.0: f16(rng, rows, cols, scale=scale * cols ** -0.5)
        weights = lambda n: f16(rng, n, scale=0.3, mean=1)
        q, kv, states = heads * 16, heads // 2 * 16, 3 * target.hidden_size
        embed, head = model.model.embed_tokens.weight.detach(), model.get_output_embeddings().weight.detach()
        self.p = {
            "midlayer.self_attn.q_proj.weight": matrix(q, 2 * dim),
            "midlayer.self_attn.k_proj.weight": matrix(kv, 2 * dim),
            "midlayer.self_attn.v_proj.weight": matrix(kv, 2 * dim),
            "midlayer.self_attn.o_proj.weight": matrix(dim, q),
            "midlayer.mlp.gate_proj.weight": matrix(56, dim), "midlayer.mlp.up_proj.weight": matrix(56, dim),
            "midlayer.mlp.down_proj.weight": matrix(dim, 56), "midlayer.input_layernorm.weight": weights(dim),
            "midlayer.hidden_norm.weight": weights(dim), "midlayer.post_attention_layernorm.weight": weights(dim),
            "norm.weight": weights(dim), "fc.weight": matrix(dim, states),
        }
        if kind.get("norm_before_fc"):
            self.p["input_norm.weight"] = weights(states)
        if kind.get("embedding"):
            self.p["embed_tokens.weight"] = f16(rng, VOCAB, dim, scale=0.5)
        if kind.get("head"):
            self.p["lm_head.weight"] = matrix(kind["draft_vocab"], dim)
        self.embed, self.head = self.p.get("embed_tokens.weight", embed), self.p.get("lm_head.weight", head)
        self.ids = np.arange(VOCAB)
        if kind["draft_vocab"] < VOCAB:
            self.ids = np.sort(rng.choice(np.arange(3, VOCAB), kind["draft_vocab"], replace=False))

    def norm(self, x, name):
        n = llama.LlamaRMSNorm(x.shape[-1], self.config.rms_norm_eps)
        n.weight.data = self.p[name]
        return n(x)

    def rows(self, tokens, g, mistake):
        """(T, dim) the layer's output for the tokens behind positions 0 .. and their g."""
        p, c, n = self.p, self.config, len(tokens)
        normed = {"embedding": "midlayer.input_layernorm.weight", "state": "midlayer.hidden_norm.weight"}
        if mistake == "norms exchanged":
            normed = dict(zip(normed, reversed(normed.values())))
        embedded = self.embed[tokens] * (c.hidden_size ** 0.5 if mistake == "embedding scaled" else 1)
        e, h = self.norm(embedded, normed["embedding"]), self.norm(g, normed["state"])
        x = torch.cat([h, e] if mistake == "inputs exchanged" else [e, h], -1)
        heads = lambda name: (x @ p[f"midlayer.self_attn.{name}_proj.weight"].T).reshape(1, n, -1, 16).transpose(1, 2)
        cos, sin = llama.LlamaRotaryEmbedding(c)(x, torch.arange(n)[None])
        q, k = heads("q"), heads("k")
        if mistake != "no positions":
            q, k = llama.apply_rotary_pos_emb(q, k, cos, sin)
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        groups = SimpleNamespace(num_key_value_groups=c.num_attention_heads // c.num_key_value_heads, training=False)
        attended = llama.eager_attention_forward(groups, q, k, heads("v"), mask, 16 ** -0.5)[0].reshape(n, -1)
        normed_residual = bool(self.kind.get("norm_before_residual")) != (mistake == "the other residual")
        x = (h if normed_residual else g) + attended @ p["midlayer.self_attn.o_proj.weight"].T
        y = self.norm(x, "midlayer.post_attention_layernorm.weight")
        mlp = lambda name: p[f"midlayer.mlp.{name}_proj.weight"].T
        return x + (torch.nn.functional.silu(y @ mlp("gate")) * (y @ mlp("up"))) @ mlp("down")

    @torch.no_grad()
    def logits(self, tokens, states, mistake=""):
        if mistake == "states reversed":
            states = states.reshape(len(states), 3, -1).flip(1).reshape(len(states), -1)
        if "input_norm.weight" in self.p and mistake != "states without norm":
            states = self.norm(states, "input_norm.weight")
        g, tokens, out = states @ self.p["fc.weight"].T, list(tokens), None
        for _ in range(GUESSES + 1):
            x = self.rows(torch.tensor(tokens), g, mistake)
            y = self.norm(x, "norm.weight") @ self.head.T
            out = y if out is None else torch.cat([out, y[-1:]])
            best = int(y[-1].argmax())
            tokens.append(best if mistake == "rows of the output as tokens" else int(self.ids[best]))
            own = self.norm(x[-1:], "norm.weight") if mistake == "own state behind the final norm" else x[-1:]
            g = torch.cat([g, own])
        return out.numpy().astype(np.float32)


MISTAKES = ("norms exchanged", "embedding scaled", "inputs exchanged", "no positions", "the other residual",
            "states reversed", "states without norm", "rows of the output as tokens", "own state behind the final norm")


@torch.no_grad()
def hidden_states(model, tokens, layers):
    """(T, len(layers) * dim): the residual stream in front of the layers; behind the last one for their number."""
    seen = {}
    inner = model.model
    hooks = [m.register_forward_pre_hook(
        lambda m, args, kwargs, i=i: seen.__setitem__(i, (args[0] if args else kwargs["hidden_states"])[0]),
        with_kwargs=True) for i, m in enumerate([*inner.layers, inner.norm])]
    model(torch.tensor(tokens[None].astype(np.int64)))
    for hook in hooks:
        hook.remove()
    return torch.cat([seen[i] for i in layers], -1)


class Checkpoint:
    """The layer as published, for convert()."""

    def __init__(self, layer, target):
        self.layer, self.target = layer, target
        self.config = layer.config

    def save_pretrained(self, folder):
        kind, c = self.layer.kind, self.layer.config.to_dict()
        c |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": kind["draft_vocab"],
              "eagle_aux_hidden_state_layer_ids": kind["layers"], "target_hidden_size": self.target.hidden_size,
              "rope_theta": 10000.0}
        c |= {k: True for k in ("norm_before_fc", "norm_before_residual") if kind.get(k)}
        Path(folder, "config.json").write_text(json.dumps(c))
        tensors = {n: t.contiguous() for n, t in self.layer.p.items()}
        if kind["draft_vocab"] < VOCAB:  # published as distances
            ids = torch.from_numpy(self.layer.ids)
            tensors["d2t"] = ids - torch.arange(len(ids))
            tensors["t2d"] = torch.isin(torch.arange(VOCAB), ids)
        save_file(tensors, f"{folder}/model.safetensors")
        Path(folder, "target").mkdir()
        Path(folder, "target/config.json").write_text(
            json.dumps({"vocab_size": VOCAB, "num_hidden_layers": 99, "hidden_size": self.target.hidden_size}))


def write(layer, target, path):
    convert(Checkpoint(layer, target), path, target_model_dir="target")


def make(name, config, out, verbose):
    seed = zlib.crc32(name.encode())
    model = build(config, seed)
    layer = Layer(KINDS[name], model, seed + 21)
    tokens = prompt(T + 1, seed + 22)
    states = hidden_states(model, tokens[:T], KINDS[name]["layers"])
    expected = layer.logits(tokens[1:], states)
    later = [min(i + 1, config.num_hidden_layers) for i in KINDS[name]["layers"]]
    wrong = {"states of the layers behind": layer.logits(tokens[1:], hidden_states(model, tokens[:T], later)),
             "the token itself": layer.logits(tokens[:T], states)}
    wrong |= {m: layer.logits(tokens[1:], states, m) for m in MISTAKES}
    for what, logits in wrong.items():
        rows = slice(T, None) if "own state" in what or "as tokens" in what else slice(None)
        moved = relative(logits[rows], expected[rows])
        if verbose:
            print(f"    {what}: {moved:.1e}")
        applies = {"states without norm": "input_norm.weight" in layer.p, "embedding scaled": name == "gemma4",
                   "rows of the output as tokens": KINDS[name]["draft_vocab"] < VOCAB}.get(what, True)
        if applies and moved < 5 * TOLERANCE:
            sys.exit(f"{name}: '{what}' moves the logits by {moved:.2e} only; a program that gets it wrong would pass")
    path = f"{out}/{name}.gguf"
    write(layer, config, path)
    for what, a in (("tokens", tokens), ("states", states.numpy()), ("logits", expected)):
        np.save(f"{out}/{name}.{what}.npy", a)
    print(f"{name}: {os.path.getsize(path)} bytes")


def make_right(config, out):
    """Layers of the model add nothing. The layer attends to its own position, whose value is the embedding; its
    residual stream begins with 0."""
    from make_assistant_models import write_silent

    write_silent(f"{out}/right.model.gguf", main_file("qwen3moe"),
                 ("attn_output.weight", "ffn_down_exps.weight"), {})
    model = build(config, zlib.crc32(b"qwen3moe"))
    dim = config.hidden_size
    layer = Layer(dict(layers=[0, 1, 2], draft_vocab=VOCAB, norm_before_residual=True), model, 1)
    layer.config.num_attention_heads = layer.config.num_key_value_heads = 1
    layer.config.head_dim = dim
    own = torch.cat([torch.eye(dim), torch.zeros(dim, dim)], -1)
    for name, t in layer.p.items():
        t.zero_()
    layer.p["midlayer.input_layernorm.weight"] = torch.ones(dim)
    layer.p["midlayer.post_attention_layernorm.weight"] = torch.ones(dim)
    layer.p["norm.weight"] = model.model.norm.weight.detach().clone()
    for part, scale in (("q", 4.0), ("k", 4.0), ("v", 1.0)):
        layer.p[f"midlayer.self_attn.{part}_proj.weight"] = scale * own
    layer.p["midlayer.self_attn.o_proj.weight"] = torch.eye(dim)
    write(layer, config, f"{out}/right.gguf")


def main(models, make, make_right):
    args = [a for a in sys.argv[1:] if a != "-v"]
    if len(args) < 2 or args[0].startswith("-"):
        sys.exit(sys.modules["__main__"].__doc__.strip())
    torch.set_num_threads(1)
    for name, config in models.items():
        if args[2:] and name not in args[2:]:
            continue
        make(name, config, args[1], "-v" in sys.argv)
        if name == "qwen3moe":
            make_right(config, args[1])


if __name__ == "__main__":
    main(models(KINDS), make, make_right)

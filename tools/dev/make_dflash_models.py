#!/usr/bin/env python3
"""Writes tiny DFlash and DSpark layers (--draft FILE) of tiny checkpoints of the other tools, with their guesses.

make_dflash_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
LLAMA_CPP_DIR, packages and the seeds of the models: see make_family_models.py. Norms, RoPE, attention and MLP are those
of transformers' Qwen 3; what surrounds them is computed here from the equations of the DFlash paper and of the
published checkpoints' configs, and compared with its MuseGlimmerAssistantModel, which is plain DFlash. It has no
DSpark. llama.cpp's converter makes the files from a checkpoint with published names.

Files: NAME.gguf; NAME.tokens.npy (T + 1) i32, a text and the token behind it; NAME.states.npy (T, layers * dim) f32,
hidden states of the model in transformers; NAME.logits.npy (cuts, GUESSES, draft vocab) f32: of the guesses behind each
prefix of the text in CUTS and the token behind it. right.gguf: for ../eagle/right.model.gguf, which repeats its
latest token, layers that guess that.
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
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from make_eagle_models import hidden_states, main, models
from make_family_models import build, convert
from make_prediction_models import f16
from make_tiny_models import TOLERANCE, VOCAB, prompt, relative

T = 21
GUESSES = 5
CUTS = (1, 6, 12, T)  # tokens before the one that the guesses follow
BLOCK = 8
MASK = 7
WINDOW = 8
RANK = 8
HEAD_DIM = 16

# name of the model -> the layers: the model's layers whose outputs are read, windows of the drafting layers, and
# DSpark's Markov head; whether its first guess is the output of the token or that of the mask behind it.
KINDS = {
    "qwen3moe": dict(layers=[0, 0], windows=[False, False]),
    "gpt_oss": dict(layers=[0, 1, 2], windows=[True, False], markov=True, from_anchor=True, draft_vocab=120,
                    sinks=True),
    # Gemma 4's DSpark: norms behind attention and MLP, keys as values, factors of layers, scores and embedding; an
    # embedding of its own, which is the output too.
    "gemma4": dict(layers=[0, 2], windows=[True, True], markov=True, from_anchor=False, causal=True, gemma=True),
}


class Layers:
    """The tensors and their equations; `mistake` names what a wrong program does."""

    def __init__(self, kind, model, seed):
        self.kind, dim, n = kind, model.config.hidden_size, len(kind["windows"])
        self.config = hf.Qwen3Config(
            hidden_size=dim, intermediate_size=56, num_hidden_layers=n, num_attention_heads=4, num_key_value_heads=2,
            head_dim=HEAD_DIM, rms_norm_eps=1e-3, max_position_embeddings=256, vocab_size=VOCAB,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
        rng = np.random.default_rng(seed)
        matrix = lambda rows, cols: f16(rng, rows, cols, scale=cols ** -0.5)
        weights = lambda n: f16(rng, n, scale=0.3, mean=1)
        q, kv = 4 * HEAD_DIM, 2 * HEAD_DIM
        self.p = {"fc.weight": matrix(dim, len(kind["layers"]) * dim), "hidden_norm.weight": weights(dim),
                  "norm.weight": weights(dim)}
        for l in range(n):
            self.p |= {f"layers.{l}.{name}.weight": t for name, t in (
                ("self_attn.q_proj", matrix(q, dim)), ("self_attn.k_proj", matrix(kv, dim)),
                ("self_attn.v_proj", matrix(kv, dim)), ("self_attn.o_proj", matrix(dim, q)),
                ("self_attn.q_norm", weights(HEAD_DIM)), ("self_attn.k_norm", weights(HEAD_DIM)),
                ("mlp.gate_proj", matrix(56, dim)), ("mlp.up_proj", matrix(56, dim)),
                ("mlp.down_proj", matrix(dim, 56)), ("input_layernorm", weights(dim)),
                ("post_attention_layernorm", weights(dim)))}
        self.scale = HEAD_DIM ** -0.5
        if kind.get("gemma"):
            self.scale = 1.0
            for l in range(n):
                del self.p[f"layers.{l}.self_attn.v_proj.weight"]
                self.p[f"layers.{l}.self_attn.q_norm.weight"] *= 0.5  # so that scores do not choose one token
                for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                    self.p[f"layers.{l}.{name}.weight"] = weights(dim)
                self.p[f"layers.{l}.layer_scalar"] = f16(rng, 1, scale=0.2, mean=0.8)
        if kind.get("sinks"):
            self.p |= {f"layers.{l}.self_attn.sinks": f16(rng, 4) for l in range(n)}
        self.embed = model.model.embed_tokens.weight.detach()
        self.head = model.get_output_embeddings().weight.detach()
        if kind.get("gemma"):
            self.p["embed_tokens.weight"] = self.embed = self.head = f16(rng, VOCAB, dim, scale=0.3)
        self.ids = np.arange(VOCAB)
        if draft_vocab := kind.get("draft_vocab"):
            self.ids = np.sort(rng.choice(np.arange(3, VOCAB), draft_vocab, replace=False))
            self.p["lm_head.weight"] = self.head = matrix(draft_vocab, dim)
        if kind.get("markov"):
            self.p["markov_head.markov_w1.weight"] = f16(rng, VOCAB, RANK)
            self.p["markov_head.markov_w2.weight"] = f16(rng, len(self.ids), RANK, scale=RANK ** -0.5)

    def norm(self, x, name):
        n = qwen3.Qwen3RMSNorm(x.shape[-1], self.config.rms_norm_eps)
        n.weight.data = self.p[name]
        return n(x)

    def heads(self, x, l, part, normed=False):
        y = (x @ self.p[f"layers.{l}.self_attn.{part}_proj.weight"].T).reshape(len(x), -1, HEAD_DIM)
        return (self.norm(y, f"layers.{l}.self_attn.{part}_norm.weight") if normed else y).transpose(0, 1)[None]

    def block(self, tokens, g, mistake):
        """(tokens, dim) output of the block's positions behind the rows g of a text."""
        p, n, m = self.p, len(g), len(tokens)
        gemma = self.kind.get("gemma")
        x = self.embed[tokens] * (self.config.hidden_size ** 0.5 if gemma and mistake != "embedding not scaled" else 1)
        cos, sin = qwen3.Qwen3RotaryEmbedding(self.config)(x, torch.arange(n + m)[None])
        at, to = torch.arange(n, n + m)[:, None], torch.arange(n + m)[None]
        causal = bool(self.kind.get("causal")) != (mistake == "the other order")
        for l, windowed in enumerate(self.kind["windows"]):
            y = self.norm(x, f"layers.{l}.input_layernorm.weight")
            text = self.norm(g, f"layers.{l}.input_layernorm.weight") if mistake == "norm of the text" else g
            both = torch.cat([text, y])
            k = self.heads(both, l, "k", True)
            v = self.heads(both, l, "k" if gemma else "v")
            if gemma and mistake != "values without norm":
                v = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
            q = self.heads(y, l, "q", True)
            if mistake != "no positions":
                k = qwen3.apply_rotary_pos_emb(k, k, cos, sin)[0]
                q = qwen3.apply_rotary_pos_emb(q, q, cos[:, n:], sin[:, n:])[0]
            hidden = (to > at) & causal
            if windowed and mistake != "no windows":
                hidden |= at - to >= WINDOW
            mask = torch.zeros(m, n + m).masked_fill(hidden, float("-inf"))[None, None]
            groups = SimpleNamespace(num_key_value_groups=2, training=False)
            if "sinks" in self.kind and mistake != "no sinks":  # a key that adds nothing
                column = p[f"layers.{l}.self_attn.sinks"].reshape(1, 4, 1, 1).expand(1, 4, m, 1)
                mask = torch.cat([mask.expand(1, 4, m, n + m), column], -1)
                k, v = (torch.cat([t, torch.zeros(1, 2, 1, HEAD_DIM)], 2) for t in (k, v))
            scale = HEAD_DIM ** -0.5 if mistake == "scale of heads" else self.scale
            a = qwen3.eager_attention_forward(groups, q, k, v, mask, scale)[0].reshape(m, -1)
            a = a @ p[f"layers.{l}.self_attn.o_proj.weight"].T
            if gemma and mistake != "no norms behind":
                a = self.norm(a, f"layers.{l}.post_attention_layernorm.weight")
            x = x + a
            y = self.norm(x, f"layers.{l}.{'pre_feedforward' if gemma else 'post_attention'}_layernorm.weight")
            mlp = lambda name: p[f"layers.{l}.mlp.{name}_proj.weight"].T
            gate = y @ mlp("gate")
            if gemma and mistake != "SiLU":
                gate = torch.nn.functional.gelu(gate, approximate="tanh")
            else:
                gate = torch.nn.functional.silu(gate)
            y = (gate * (y @ mlp("up"))) @ mlp("down")
            if gemma and mistake != "no norms behind":
                y = self.norm(y, f"layers.{l}.post_feedforward_layernorm.weight")
            x = x + y
            if gemma and mistake != "no factors of layers":
                x = x * p[f"layers.{l}.layer_scalar"]
        return x

    @torch.no_grad()
    def behind(self, tokens, states, n, mistake=""):
        g = states[:n] @ self.p["fc.weight"].T
        if mistake != "states without norm":
            g = self.norm(g, "hidden_norm.weight")
        anchor = int(tokens[n])
        from_anchor = bool(self.kind.get("from_anchor")) != (mistake == "the other anchor")
        x = self.block(torch.tensor([anchor] + [MASK] * (GUESSES - from_anchor)), g, mistake)
        y = self.norm(x, "norm.weight") @ self.head.T
        y = y[:GUESSES] if from_anchor else y[1:]
        if self.kind.get("markov") and mistake != "no Markov head":
            w1, w2 = (self.p[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
            before, rows = anchor, []
            for row in y:
                rows.append(row + w2 @ w1[before])
                if mistake != "the same token before all":
                    best = int(rows[-1].argmax())
                    before = best if mistake == "rows of the output as tokens" else int(self.ids[best])
            y = torch.stack(rows)
        return y.numpy().astype(np.float32)

    def all(self, tokens, states, mistake=""):
        return np.stack([self.behind(tokens, states, n, mistake) for n in CUTS])


MISTAKES = ("norm of the text", "no positions", "the other order", "no windows", "states without norm",
            "the other anchor", "embedding not scaled", "values without norm", "scale of heads", "no norms behind",
            "SiLU", "no factors of layers", "no sinks",
            "no Markov head", "the same token before all", "rows of the output as tokens")


class Checkpoint:
    """The layers as published, for convert()."""

    def __init__(self, layers, target):
        self.layers, self.target, self.config = layers, target, layers.config

    def save_pretrained(self, folder):
        kind, c = self.layers.kind, self.layers.config.to_dict()
        own = {"mask_token_id": MASK, "target_layer_ids": kind["layers"]}
        arch = "Gemma4DSparkModel" if kind.get("gemma") else "Qwen3DSparkModel" if kind.get("markov") else None
        c |= {"architectures": [arch or "DFlashDraftModel"], "dflash_config": own,
              "block_size": BLOCK, "rope_theta": 10000.0, "has_embed_tokens": "embed_tokens.weight" in self.layers.p}
        if kind.get("gemma"):
            own |= {"use_swa": True, "swa_window_size": WINDOW}
            c |= {"attention_k_eq_v": True, "layer_types": ["full_attention"] * len(kind["windows"]),
                  "hidden_activation": "gelu_pytorch_tanh", "global_head_dim": HEAD_DIM,
                  "num_global_key_value_heads": c["num_key_value_heads"], "tie_word_embeddings": True}
        elif any(kind["windows"]):
            names = {True: "sliding_attention", False: "full_attention"}
            c |= {"use_sliding_window": True, "sliding_window": WINDOW,
                  "layer_types": [names[w] for w in kind["windows"]]}
        if kind.get("markov"):
            c |= {"sample_from_anchor": kind["from_anchor"], "draft_vocab_size": len(self.layers.ids)}
        if "causal" in kind:
            c["is_causal"] = kind["causal"]
        Path(folder, "config.json").write_text(json.dumps(c))
        tensors = {n: t.contiguous() for n, t in self.layers.p.items()}
        if "draft_vocab" in kind:  # published as distances
            tensors["d2t"] = torch.from_numpy(self.layers.ids) - torch.arange(len(self.layers.ids))
        save_file(tensors, f"{folder}/model.safetensors")
        Path(folder, "target").mkdir()
        Path(folder, "target/config.json").write_text(json.dumps({"vocab_size": VOCAB}))


@torch.no_grad()
def check_with_transformers(layers, tokens, states):
    """Plain DFlash is MuseGlimmerAssistantModel, which calls two tensors otherwise."""
    c = layers.config
    config = hf.MuseGlimmerAssistantConfig(
        hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD_DIM, rms_norm_eps=c.rms_norm_eps,
        max_position_embeddings=256, vocab_size=VOCAB, rope_parameters=c.rope_parameters, block_size=BLOCK,
        target_layer_ids=layers.kind["layers"], layer_types=["full_attention"] * c.num_hidden_layers)
    config._attn_implementation = "eager"
    model = hf.MuseGlimmerAssistantModel(config).float().eval()
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({names.get(n, n): t for n, t in layers.p.items()})
    for n in CUTS:
        block = torch.tensor([int(tokens[n])] + [MASK] * GUESSES)
        y = model(noise_embeds=layers.embed[block][None], context_hidden_states=states[None, :n]).last_hidden_state[0]
        if relative((y[1:] @ layers.head.T).numpy(), layers.behind(tokens, states, n)) > 1e-5:
            sys.exit("transformers computes other guesses")


def make(name, config, out, verbose):
    seed, kind = zlib.crc32(name.encode()), KINDS[name]
    model = build(config, seed)
    layers = Layers(kind, model, seed + 31)
    tokens = prompt(T + 1, seed + 32)
    states = hidden_states(model, tokens[:T], [l + 1 for l in kind["layers"]])
    expected = layers.all(tokens, states)
    if not kind.get("markov"):
        check_with_transformers(layers, tokens, states)
    wrong = {"states of the layers before": layers.all(tokens, hidden_states(model, tokens[:T], kind["layers"]))}
    wrong |= {m: layers.all(tokens, states, m) for m in MISTAKES}
    applies = {"no windows": any(kind["windows"]), "rows of the output as tokens": "draft_vocab" in kind,
               "no sinks": "sinks" in kind}
    applies |= {m: bool(kind.get("gemma")) for m in ("embedding not scaled", "values without norm", "scale of heads",
                                                     "no norms behind", "SiLU", "no factors of layers")}
    applies |= {m: bool(kind.get("markov")) for m in ("no Markov head", "the same token before all")}
    for what, logits in wrong.items():
        moved = relative(logits, expected)
        if verbose:
            print(f"    {what}: {moved:.1e}")
        if applies.get(what, True) and moved < 5 * TOLERANCE:
            sys.exit(f"{name}: '{what}' moves the logits by {moved:.2e} only; a program that gets it wrong would pass")
    path = f"{out}/{name}.gguf"
    convert(Checkpoint(layers, config), path, target_model_dir="target", mask=MASK)
    for what, a in (("tokens", tokens), ("states", states.numpy()), ("logits", expected)):
        np.save(f"{out}/{name}.{what}.npy", a)
    print(f"{name}: {os.path.getsize(path)} bytes")


def make_right(config, out):
    """For a model that repeats its latest token: the Markov head alone guesses, that token again."""
    model = build(config, zlib.crc32(b"qwen3moe"))
    layers = Layers(dict(layers=[0], windows=[False], markov=True, from_anchor=True), model, 1)
    for t in layers.p.values():
        t.zero_()
    one = torch.nn.functional.normalize(layers.embed, dim=-1)
    layers.p["markov_head.markov_w1.weight"], layers.p["markov_head.markov_w2.weight"] = one, one.clone()
    convert(Checkpoint(layers, config), f"{out}/right.gguf", target_model_dir="target", mask=MASK)


if __name__ == "__main__":
    main(models(KINDS), make, make_right)

#!/usr/bin/env python3
"""Adds a prediction layer (multi-token prediction) to tiny checkpoints of the other tools, with its logits.

make_prediction_models.py [-v] LLAMA_CPP_DIR OUT_DIR [NAME...]
LLAMA_CPP_DIR, packages and the seeds of the models: see make_family_models.py. transformers has no prediction layers.
What surrounds the layer (norms, join, output) is computed here from the equations of the DeepSeek-V3 report, 2.2; the
layer itself is a model of one layer of the same family in transformers, which llama.cpp's converter writes.

Files per model: NAME.gguf, the checkpoint with the layer behind it; NAME.tokens.npy (T) i32, the token behind each
position; NAME.states.npy (T, dim) f32, random hidden states of the positions; NAME.logits.npy (T + 2, vocab) f32: of
each position, then of two guesses that go on from the layer's own state. right.gguf: a model without context whose
prediction layer is always right.
"""
import copy
import os
import sys
import tempfile
import zlib

import numpy as np
import torch

from make_family_models import LLAMA_CPP, build, convert
import make_expert_models
import make_latent_models
import make_recurrent_models
from make_tiny_models import TOLERANCE, VOCAB, relative

import gguf

T = 21
GUESSES = 2


def layer_config(config):
    one = copy.deepcopy(config)
    kind = "full_attention"
    if one.model_type == "cohere2_moe":  # a layer with positions: one with a window that has room for the text
        kind, one.sliding_window = "sliding_attention", 256
    for key, value in (("num_hidden_layers", 1), ("layer_types", [kind]), ("first_k_dense_replace", 0),
                       ("mlp_layer_types", ["sparse"]), ("indexer_types", ["full"]),
                       ("index_topk", 256)):  # the layer attends to all tokens
        if hasattr(one, key) and getattr(one, key) is not None:
            setattr(one, key, value)
    return one


def norm(x, w, eps):
    """RMS norm; eps is negative for LayerNorm."""
    if eps < 0:
        x, eps = x - x.mean(-1, keepdim=True), -eps
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


class Prediction:
    """The layer: parts is what a file has, or a mistake of it."""

    def __init__(self, layer, parts, eps):
        self.layer, self.parts, self.eps = layer, parts, eps
        self.scale = getattr(layer.config, "logit_scale", None) or 1.0
        self.last = None
        layer.model.norm.register_forward_hook(lambda m, args, out: setattr(self, "last", args[0][0]))

    def rows(self, tokens, states, own, p):
        """Input of the layer: own[i] says whether state i is the layer's own."""
        e = norm(p["embed"][tokens], p["enorm"], self.eps)
        h = torch.stack([norm(s, p["own_norm"] if o else p["model_norm"], self.eps) if not p.get("raw") else s
                         for s, o in zip(states, own)])
        h = norm(h, p["hnorm"], self.eps)
        both = torch.cat([h, e] if p.get("swapped") else [e, h], -1)
        return both @ p["join"].T

    @torch.no_grad()
    def logits(self, tokens, states, **mistake):
        p = self.parts | mistake
        tokens, states, own, out = list(tokens), list(states), [False] * len(tokens), None
        for i in range(GUESSES + 1):
            x = self.rows(torch.tensor(tokens), states, own, p)
            self.layer.model(inputs_embeds=x[None], use_cache=False)
            y = norm(self.last, p["own_norm"], self.eps) @ p["head"].T * self.scale
            out = y if out is None else torch.cat([out, y[-1:]])
            tokens.append(int(y[-1].argmax())), states.append(self.last[-1].clone()), own.append(True)
        return out.numpy().astype(np.float32)


def f16(rng, *shape, scale=1.0, mean=0.0):
    return torch.from_numpy((mean + scale * rng.standard_normal(shape)).astype(np.float16).astype(np.float32))


def rewrite(path, source, key=lambda name, value: value, change=lambda name, data: data, added={}, tensors={}):
    """The file `source` again: key() gives the value of a key, None leaves it out; change() gives a tensor's data.
    added: keys, name -> u32. tensors: name -> (array, type)."""
    r = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(path, r.fields["general.architecture"].contents())
    for f in r.fields.values():
        value = None if f.name.startswith("GGUF.") or f.name == "general.architecture" else key(f.name, f.contents())
        if value is not None:
            w.add_key_value(f.name, value, f.types[0], f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None)
    for name, value in added.items():
        w.add_uint32(name, value)
    for t in r.tensors:
        w.add_tensor(t.name, change(t.name, np.array(t.data)), raw_dtype=t.tensor_type)
    for name, (data, kind) in tensors.items():
        w.add_tensor(name, data, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write(path, main, extra, change=lambda name, data: data):
    """The file `main` with the tensors of one more layer: name -> (array, type)."""
    arch = gguf.GGUFReader(main).fields["general.architecture"].contents()

    def key(name, value):
        if name == f"{arch}.block_count":
            return block_count(main) + 1
        if name == f"{arch}.attention.recurrent_layers":
            return list(value) + [False]
        return None if name == f"{arch}.nextn_predict_layers" else value

    rewrite(path, main, key, change, {f"{arch}.nextn_predict_layers": 1}, extra)


def main_file(name):
    return os.path.join(os.path.dirname(__file__), "../../tests/golden/tiny", f"{name}.gguf")


def block_count(path):
    r = gguf.GGUFReader(path)
    arch = r.fields["general.architecture"].contents()
    promised = r.fields.get(f"{arch}.nextn_predict_layers")  # the converter writes the key, and not the layer
    return r.fields[f"{arch}.block_count"].contents() - (promised.contents() if promised else 0)


def layer_tensors(layer, block, name):
    """Tensors of the one layer of a model like tiny/`name`, named as those of `block`."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{name}.gguf"
        convert(layer, path)
        r = gguf.GGUFReader(path)
        return {t.name.replace("blk.0.", f"blk.{block}."): (np.array(t.data), t.tensor_type)
                for t in r.tensors if t.name.startswith("blk.0.")}


def half(t):
    return t.numpy().astype(np.float16), gguf.GGMLQuantizationType.F16


def single(t):
    return t.detach().numpy().astype(np.float32), gguf.GGMLQuantizationType.F32


def make(name, config, out, verbose):
    seed = zlib.crc32(name.encode())
    model, one = build(config, seed), layer_config(config)
    layer = build(one, seed + 2)
    rng = np.random.default_rng(seed + 3)
    dim = config.hidden_size
    eps = -config.layer_norm_eps if config.model_type == "cohere2_moe" else config.rms_norm_eps
    shift = 1.0 if config.model_type.startswith("qwen3") else 0.0  # transformers adds 1 to weights of norms
    own = name in ("deepseek2_v3", "deepseek32", "glm_dsa")  # published files have these tensors
    parts = {
        "embed": f16(rng, VOCAB, dim, scale=0.5) if own else model.model.embed_tokens.weight.detach(),
        "head": f16(rng, VOCAB, dim, scale=dim ** -0.5) if own else model.get_output_embeddings().weight.detach(),
        "enorm": f16(rng, dim, scale=0.3, mean=1), "hnorm": f16(rng, dim, scale=0.3, mean=1),
        "join": f16(rng, dim, 2 * dim, scale=(2 * dim) ** -0.5),
        "model_norm": (model.model.norm.weight.detach() + shift), "own_norm": layer.model.norm.weight.detach() + shift}
    states, tokens = f16(rng, T, dim), rng.integers(3, VOCAB, T).astype(np.int32)
    p = Prediction(layer, parts, eps)
    expected = p.logits(tokens, states)
    ones = torch.ones(dim)
    for what, mistake in {
            "norms of the other input": {"enorm": parts["hnorm"], "hnorm": parts["enorm"]},
            "inputs exchanged": {"swapped": True}, "states before the final norm": {"raw": True},
            "no norm of embeddings": {"enorm": ones}, "no norm of states": {"hnorm": ones},
            "final norm of the model": {"own_norm": parts["model_norm"]},
            "embedding of the model": {"embed": model.model.embed_tokens.weight.detach()} if own else None,
            "output of the model": {"head": model.get_output_embeddings().weight.detach()} if own else None,
            "own states with the model's norm": {}}.items():
        if mistake is None:
            continue
        wrong = p.logits(tokens, states, **mistake)
        rows = slice(None)
        if what.startswith("own states"):
            rows, keep = slice(T, None), p.rows
            p.rows = lambda t, s, o, q: keep(t, s, [False] * len(o), q)
            wrong, p.rows = p.logits(tokens, states), keep
        moved = relative(wrong[rows], expected[rows])
        if verbose:
            print(f"    {what}: {moved:.1e}")
        if moved < 5 * TOLERANCE:
            sys.exit(f"{name}: '{what}' moves the logits by {moved:.2e} only; a program that gets it wrong would pass")
    block = block_count(main_file(name))
    extra = layer_tensors(layer, block, name)
    nextn = f"blk.{block}.nextn"
    own_norm = f"blk.{block}.layer_output_norm.weight" if name == "bailingmoe3" else f"{nextn}.shared_head_norm.weight"
    extra |= {f"{nextn}.eh_proj.weight": half(parts["join"]), f"{nextn}.enorm.weight": single(parts["enorm"]),
              f"{nextn}.hnorm.weight": single(parts["hnorm"]),
              own_norm: single(parts["own_norm"])}
    if own:
        extra |= {f"{nextn}.embed_tokens.weight": half(parts["embed"]),
                  f"{nextn}.shared_head_head.weight": half(parts["head"])}
    path = f"{out}/{name}.gguf"
    write(path, main_file(name), extra)
    for what, a in (("tokens", tokens), ("states", states.numpy()), ("logits", expected)):
        np.save(f"{out}/{name}.{what}.npy", a)
    print(f"{name}: {os.path.getsize(path)} bytes")
    return layer, dim


def make_right(layer, dim, out):
    """Layers add nothing, so the next token depends on the latest one alone; the prediction layer hands on the
    embedding."""
    silent = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")
    block = block_count(main_file("qwen35"))
    own = layer_tensors(layer, block, "qwen35")
    extra = {n: (np.zeros_like(d) if n.endswith(silent) else d, k) for n, (d, k) in own.items()}
    ones = torch.ones(dim)
    extra |= {f"blk.{block}.nextn.eh_proj.weight": half(torch.cat([torch.eye(dim), torch.zeros(dim, dim)], -1)),
              f"blk.{block}.nextn.enorm.weight": single(ones), f"blk.{block}.nextn.hnorm.weight": single(ones)}
    write(f"{out}/right.gguf", main_file("qwen35"), extra,
          change=lambda name, data: np.zeros_like(data) if name.endswith(silent) else data)


def main():
    args = [a for a in sys.argv[1:] if a != "-v"]
    if len(args) < 2 or args[0].startswith("-"):
        sys.exit(__doc__.strip())
    torch.set_num_threads(1)
    sources = ((make_recurrent_models.models(), ("qwen35", "qwen35moe", "bailingmoe3")),
               (make_expert_models.models(), ("glm4moe", "hy_v3", "cohere2moe")),
               (make_latent_models.models(), ("deepseek2_v3", "deepseek32", "glm_dsa")))
    table = {n: m[n][0] for m, names in sources for n in names}
    for name, config in table.items():
        if args[2:] and name not in args[2:]:
            continue
        layer, dim = make(name, config, args[1], "-v" in sys.argv)
        if name == "qwen35":
            make_right(layer, dim, args[1])


if __name__ == "__main__":
    main()

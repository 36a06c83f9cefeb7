#!/usr/bin/env python3
"""Writes tiny random checkpoints of RWKV-7, and of its form with Qwen's MLP, with logits of their published equations.

make_rwkv_models.py [-v] [--wide] OUT_DIR [NAME...]
Needs numpy and gguf from PyPI, and what make_tiny_models.py needs. Files and checks are those of make_tiny_models.py;
matrices are F16, and rwkv7 has a small vocabulary of the World tokenizer: greedy, of byte strings with escapes.
--wide: two heads of 64 channels and F32, to compare with llama.cpp, whose kernel computes the output of smaller heads
wrong on processors with AVX-512 (0.7.0).
"""
import os
import sys
import zlib

import gguf
import numpy as np

from make_tiny_models import PROMPT, TOLERANCE, VOCAB, prompt, relative, vocabulary

WIDE = "--wide" in sys.argv
DIM, HIDDEN, LAYERS, NORM_EPS = 128 if WIDE else 32, 40, 3, 1e-3
MATRIX = np.float32 if WIDE else np.float16
MIXES = "rwkvag"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, w, eps):
    return (x - x.mean()) / np.sqrt(x.var() + eps) * w["weight"] + w["bias"]


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean() + eps) * w["weight"]


def time_mix(w, c, x, before, state, first, wrong):
    """(output, the new state (heads, values, keys), the first layer's values) of one token."""
    heads = DIM // c["head"]
    by_head = lambda v: v.reshape(heads, c["head"])
    mix = {m: x + l * (before - x) for m, l in zip(MIXES, w["lerp"])}
    if wrong == "decays of the rates' input":
        mix["w"], mix["a"] = mix["a"], mix["w"]
    if wrong == "no shift":
        mix = dict.fromkeys(MIXES, x)
    r, k, v = w["receptance"] @ mix["r"], w["key"] @ mix["k"], w["value"] @ mix["v"]
    low = w["w1"] @ mix["w"]
    decay = np.exp(-np.exp(-0.5) * sigmoid(w["w0"] + w["w2"] @ (low if wrong == "no tanh" else np.tanh(low))))
    if first is None:
        first = v
    elif wrong != "values of the layer alone":
        v = v + (first - v) * sigmoid(w["v0"] + w["v2"] @ (w["v1"] @ mix["v"]))
    rate = sigmoid(w["a0"] + w["a2"] @ (w["a1"] @ mix["a"]))
    removed = by_head(k * (1 if wrong == "keys remove themselves" else w["k_k"]))
    removed = removed / np.maximum(np.linalg.norm(removed, axis=1, keepdims=True), 1e-12)
    k = k * (1 + (rate - 1) * (0 if wrong == "keys as they are" else w["k_a"]))
    if wrong == "rates of one":
        rate = np.ones_like(rate)
    r, k, v, decay, rate = (by_head(t) for t in (r, k, v, decay, rate))
    if wrong == "no decay":
        decay = np.ones_like(decay)
    if wrong == "one decay for a head":
        decay = np.broadcast_to(decay.mean(1, keepdims=True), decay.shape)
    old = state * decay[:, None, :] if wrong == "removed behind the decay" else state
    gone = np.einsum("hvk,hk->hv", old, removed)
    if wrong == "nothing removed":
        gone = np.zeros_like(gone)
    state = state * decay[:, None, :] - gone[:, :, None] * (removed * rate)[:, None, :] + v[:, :, None] * k[:, None, :]
    y = np.einsum("hvk,hk->hv", state, r)
    if c["normed"]:
        eps = 1e-5 if wrong == "eps of other norms" else 64e-5
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + eps)
        y = by_head(y.reshape(-1) * w["ln"]["weight"] + (0 if wrong == "no bias of heads" else w["ln"]["bias"]))
    if wrong != "no value of its own":
        y = y + (r * k * by_head(w["r_k"])).sum(1, keepdims=True) * v
    y = y.reshape(-1)
    if c["gate"] and wrong != "no gate":
        y = y * (w["g2"] @ sigmoid(w["g1"] @ mix["g"]))
    return w["output"] @ y, state, first


def logits(weights, c, tokens, wrong=None):
    norm, eps = (rms_norm if c["rms"] else layer_norm), (1e-5 if wrong == "eps" else NORM_EPS)
    heads = DIM // c["head"]
    states = [np.zeros((heads, c["head"], c["head"])) for _ in range(LAYERS)]
    latest = [[np.zeros(DIM), np.zeros(DIM)] for _ in range(LAYERS)]
    out = []
    for token in tokens:
        x, first = weights["embed"][token], None
        if not c["rms"] and wrong != "embedding without norm":
            x = layer_norm(x, weights["embed_norm"], eps)
        for l, w in enumerate(weights["layers"]):
            h = norm(x, w["norm"], eps)
            y, states[l], first = time_mix(w, c, h, latest[l][0], states[l], first, wrong)
            latest[l][0] = h
            x = x + y
            h = norm(x, w["norm_2"], eps)
            if c["rms"]:
                gate = w["gate"] @ h
                x = x + w["down"] @ (gate * sigmoid(gate) * (w["up"] @ h))
                continue
            mixed = h if wrong == "no shift of the MLP" else h + w["lerp_k"] * (latest[l][1] - h)
            latest[l][1] = h
            up = np.maximum(w["up"] @ mixed, 0)
            x = x + w["down"] @ (up if wrong == "ReLU" else up * up)
        out.append(weights["head"] @ norm(x, weights["out_norm"], eps))
    return np.array(out).astype(np.float32)


def build(c, seed):
    """Random weights, exact in their type."""
    rng = np.random.default_rng(seed)

    def matrix(rows, cols, scale=0.7):
        return (scale * rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(MATRIX).astype(np.float64)

    def vector(n, mean=0.0, spread=0.4):
        return (mean + spread * rng.standard_normal(n)).astype(np.float32).astype(np.float64)

    def norm(n=DIM):
        return {"weight": vector(n, 1, 0.3)} | ({} if c["rms"] else {"bias": vector(n)})

    def layer(first):
        w = {"norm": norm(), "norm_2": norm(),
             "lerp": rng.uniform(0.1, 0.9, (len(MIXES) - (not c["gate"]), DIM)).astype(np.float32).astype(np.float64)}
        for name in ("receptance", "key", "value", "output"):
            w[name] = matrix(DIM, DIM, 1.0)
        for part, rank in zip("wavg", c["ranks"]):
            if not rank or (part == "v" and first):
                continue
            w[part + "1"], w[part + "2"] = matrix(rank, DIM, 1.5), matrix(DIM, rank, 2.5 if part == "g" else 1.5)
            if part != "g":
                w[part + "0"] = vector(DIM, 0, 1.5)
        w |= {"k_k": vector(DIM, 0.8, 0.4), "k_a": vector(DIM, 1, 0.4), "r_k": vector(DIM, 0, 0.3)}
        if c["normed"]:
            w["ln"] = {"weight": vector(DIM, 1, 0.3), "bias": vector(DIM)}
        w["up"], w["down"] = matrix(HIDDEN, DIM), matrix(DIM, HIDDEN)
        if c["rms"]:
            return w | {"gate": matrix(HIDDEN, DIM)}
        return w | {"lerp_k": rng.uniform(0.1, 0.9, DIM).astype(np.float32).astype(np.float64)}

    return {"embed": matrix(VOCAB, DIM, 1.0), "embed_norm": norm(), "out_norm": norm(), "head": matrix(VOCAB, DIM, 1.0),
            "layers": [layer(l == 0) for l in range(LAYERS)]}


def world_vocabulary():
    """Token 0, the bytes, words of several bytes, some of which are no whole characters; with escapes."""
    words = [b"\n\n", b"\r\n", b"  ", b"    ", b"\t\t", b" the", b"the", b"th", b" a", b"an", b"and", b" and", b"in", b"ing",
             b"User", b":", b"Assistant", b" w", b"''", b"\"'", b"\\n", b"\\", b"\x00\x00", "é".encode(), "日".encode(),
             "日本".encode(), "日本".encode()[:4], "😀".encode(), "😀".encode()[:3], b"\xff\xfe", b"<s", b"\\x41"]
    words = [w for w in words if len(w) > 1]
    tokens = ["<s>"] + [repr(bytes([b]))[2:-1] for b in range(256)] + [repr(w)[2:-1] for w in words]
    kinds = [gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1)
    unused = range(len(tokens), VOCAB)
    return [t.encode() for t in tokens] + [f"[PAD{i}]".encode() for i in unused], \
        kinds + [gguf.TokenType.UNUSED] * len(unused)


def write(path, weights, c):
    w = gguf.GGUFWriter(path, "arwkv7" if c["rms"] else "rwkv7")
    w.add_name("tiny random checkpoint")
    w.add_context_length(1048576)
    w.add_embedding_length(DIM)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(HIDDEN)
    w.add_head_count(0)
    w.add_wkv_head_size(c["head"])
    w.add_decay_lora_rank(c["ranks"][0])
    w.add_iclr_lora_rank(c["ranks"][1])
    w.add_value_residual_mix_lora_rank(c["ranks"][2])
    w.add_gate_lora_rank(c["ranks"][3])
    if c["rms"]:
        w.add_token_shift_count(1)
        w.add_layer_norm_rms_eps(NORM_EPS)
        tokens, scores, types = vocabulary()
        w.add_tokenizer_model("llama")
        w.add_token_list(tokens)
        w.add_token_scores(scores)
        w.add_token_types(types)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
    else:
        w.add_layer_norm_eps(NORM_EPS)
        tokens, types = world_vocabulary()
        w.add_tokenizer_model("rwkv")
        w.add_token_list(tokens)
        w.add_token_types(types)
        w.add_eos_token_id(0)
        w.add_eot_token_id(tokens.index(b"\\n\\n"))
        w.add_chat_template("rwkv-world")

    def matrix(name, x):
        w.add_tensor(name + ".weight", x.astype(MATRIX))

    def vector(name, x):
        w.add_tensor(name, np.ascontiguousarray(x.astype(np.float32)))

    def norm(name, x):
        for part, values in x.items():
            vector(f"{name}.{part}", values)

    matrix("token_embd", weights["embed"])
    if not c["rms"]:
        norm("token_embd_norm", weights["embed_norm"])
    norm("output_norm", weights["out_norm"])
    matrix("output", weights["head"])
    for l, layer in enumerate(weights["layers"]):
        b = f"blk.{l}."
        norm(b + "attn_norm", layer["norm"])
        norm(b + ("ffn_norm" if c["rms"] else "attn_norm_2"), layer["norm_2"])
        vector(b + "time_mix_lerp_fused.weight", layer["lerp"][:, None, None])
        for name in ("receptance", "key", "value", "output"):
            matrix(b + "time_mix_" + name, layer[name])
        for part in ("w", "a", "v", "g"):
            of = layer if part + "1" in layer or part == "g" else {n.replace("a", "v"): layer[n] for n in ("a0", "a1", "a2")}
            if part + "1" in of:  # the first layer of files has copies, which nothing uses
                matrix(b + f"time_mix_{part}1", of[part + "1"])
                matrix(b + f"time_mix_{part}2", of[part + "2"])
            if part + "0" in of:
                vector(b + f"time_mix_{part}0.weight", of[part + "0"])
        for name in ("k_k", "k_a", "r_k"):
            vector(b + f"time_mix_{name}.weight", layer[name])
        if "ln" in layer:
            norm(b + "time_mix_ln", layer["ln"])
        if c["rms"]:
            for name in ("gate", "up", "down"):
                matrix(b + "ffn_" + name, layer[name])
        else:
            vector(b + "channel_mix_lerp_k.weight", layer["lerp_k"][None, None])
            matrix(b + "channel_mix_key", layer["up"])
            matrix(b + "channel_mix_value", layer["down"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ranks: of decays, rates, shares of the first layer's values, the gate
MODELS = {"rwkv7": dict(head=16, ranks=(8, 16, 8, 24), rms=False, gate=True, normed=True),
          "arwkv7": dict(head=8, ranks=(8, 16, 24, 8), rms=True, gate=True, normed=True),
          "arwkv7_plain": dict(head=16, ranks=(16, 8, 8, 0), rms=True, gate=False, normed=False)}
WRONG = ["no shift", "decays of the rates' input", "no tanh", "values of the layer alone", "keys remove themselves",
         "keys as they are", "rates of one", "no decay", "one decay for a head", "removed behind the decay",
         "nothing removed", "no value of its own", "eps"]
WRONG_HEADS = ["eps of other norms", "no bias of heads"]
WRONG_BLOCKS = ["embedding without norm", "no shift of the MLP", "ReLU"]


def main():
    args, verbose = [a for a in sys.argv[1:] if a not in ("-v", "--wide")], "-v" in sys.argv
    if not args or args[0].startswith("-"):
        sys.exit(__doc__.strip())
    for name in args[1:]:
        if name not in MODELS:
            sys.exit(f"no model '{name}'; there are: {' '.join(MODELS)}")
    for name, c in MODELS.items():
        if args[1:] and name not in args[1:]:
            continue
        seed = zlib.crc32(name.encode())
        if WIDE:
            c = c | {"head": 64}
        weights, tokens = build(c, seed), prompt(PROMPT, seed + 1)
        expected = logits(weights, c, tokens)
        wrong = WRONG + (WRONG_HEADS if c["normed"] else []) + (["no gate"] if c["gate"] else []) + \
            ([] if c["rms"] else WRONG_BLOCKS)
        for what in wrong:
            change = relative(logits(weights, c, tokens, what), expected)
            if verbose:
                print(f"{name}: {what}: {change:.1e}")
            if change < 3 * TOLERANCE:
                sys.exit(f"{name}: '{what}' moves the logits by {change:.1e} alone; choose other weights")
        path = f"{args[0]}/{name}.gguf"
        write(path, weights, c)
        np.save(f"{args[0]}/{name}.tokens.npy", tokens)
        np.save(f"{args[0]}/{name}.logits.npy", expected)
        print(f"{name}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares your own quantiser with kvrun's policies: quantiser_kld.py [--plot FILE.png] [--device NAME]

Keys and values go through `kvrun.replay`, which stores them like a policy. The own quantiser changes them in numpy and
stores the result unchanged (policy fp16), so the same code computes attention for both. The output compares attention
of the last queries with attention to the exact keys (KL divergence), and the error of its output, by stored bits. Keys
are random with outlier channels, like those of real models; put your own arrays into tensors().
Needs kvrun; with --plot, matplotlib.
"""
import argparse

import numpy as np

import kvrun

T, KV_HEADS, HEADS, D, QUERIES = 1024, 2, 8, 64, 64
RECENT = 128  # tokens
POLICIES = ["kivi4", "kivi2", "turbo4", "turbo3", "turbo2", "turbo3/2"]


def tensors(seed=1):
    rng = np.random.default_rng(seed)
    scale = np.ones(D)
    scale[rng.choice(D, 4, replace=False)] = 8  # channels that are large for every token
    k = rng.standard_normal((T, KV_HEADS, D)) * scale + scale * 0.5
    v = rng.standard_normal((T, KV_HEADS, D))
    q = np.repeat(k, HEADS // KV_HEADS, axis=1) / scale**2 + 0.2 * rng.standard_normal((T, HEADS, D)) / scale
    return k.astype(np.float32), v.astype(np.float32), (2 * q).astype(np.float32)


def my_quantiser(x, bits):
    """A simple quantiser: symmetric codes, a scale for every token and head; the newest tokens stay in f16, as in
    kvrun's policies. Returns values and bits per element."""
    old, most, out = x[:-RECENT], 2**(bits - 1) - 1, x.copy()
    scale = np.abs(old).max(axis=-1, keepdims=True).astype(np.float16).astype(np.float32) / most
    out[:-RECENT] = np.clip(np.round(old / scale), -most, most) * scale
    return out, ((bits + 16 / x.shape[-1]) * len(old) + 16 * RECENT) / len(x)


def attention(q, k):
    """(heads, queries, tokens): softmax over all keys; the heads of a group share keys."""
    keys = np.repeat(np.nan_to_num(k), HEADS // KV_HEADS, axis=1)
    logits = np.einsum("qhd,thd->hqt", q.astype(np.float64), keys) / np.sqrt(D)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def measure(bits, replay, exact, exact_out, dq):
    p = attention(dq, replay.k_hat)
    kld = (exact * np.log(exact / np.maximum(p, 1e-300))).sum(axis=-1).mean()
    error = np.sqrt(((replay.out - exact_out)**2).mean() / (exact_out**2).mean())
    return bits, kld, error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--device")
    a = parser.parse_args()
    k, v, q = tensors()
    dq = q[-QUERIES:]
    run = lambda k, v, policy: kvrun.replay(k, v, q, policy, dq=dq, device=a.device)
    exact = attention(dq, k)
    exact_out = run(k, v, "fp16").out
    rows = {}
    for policy in POLICIES:
        r = run(k, v, policy)
        rows[policy] = measure(r.report["stored_bits_per_element"], r, exact, exact_out, dq)
    for bits in (4, 3, 2):
        (mine_k, stored), (mine_v, _) = my_quantiser(k, bits), my_quantiser(v, bits)
        rows[f"mine{bits}"] = measure(stored, run(mine_k, mine_v, "fp16"), exact, exact_out, dq)
    print(f"{'method':10} {'bits':>6} {'KLD of attention':>17} {'error of output':>16}")
    for name, (bits, kld, error) in rows.items():
        print(f"{name:10} {bits:6.2f} {kld:17.5f} {error:16.4f}")
    if a.plot:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        for name, (bits, kld, _) in rows.items():
            mark, color = ("s", "C1") if name.startswith("mine") else ("o", "C0")
            plt.plot(bits, kld, mark, color=color)
            plt.annotate(name, (bits, kld), xytext=(4, 4), textcoords="offset points", fontsize=8)
        plt.yscale("log"), plt.xlabel("stored bits per element"), plt.ylabel("KL divergence of attention, nats")
        plt.savefig(a.plot, dpi=120, bbox_inches="tight")


main()

#!/usr/bin/env python3
"""One decode step of SpeCache in numpy, from the paper's Algorithms 2 and 3, on random keys and values: the fetched
tokens and the output of attention. Writes tests/golden/fetch/*.npy:
    make_fetch_golden.py OUT [SEED]
k, v (T, n_kv_heads, D) f16 as f32; q (3, n_heads, D), new_k, new_v (3, n_kv_heads, D): the first token alone, then an
output token and a speculative one; each sees itself, and the speculative one also sees the output token;
picks_1, picks_2 (n_kv_heads, K) int64: K_1 and K_2, ascending; out (3, n_heads, D) f32. The low-bit copy is 1-bit KIVI
with the paper's end points (eta 1/4), groups of 32, the newest 52 tokens in f16."""
import os
import sys

import numpy as np

T, N_HEADS, N_KV, D, GROUP, WINDOW, K = 180, 4, 2, 64, 32, 52, 24


def quantise(x, axis):
    """1 bit with end points moved inwards by a quarter of the range, parameters rounded to f16."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    scale = ((high - low) / 2).astype(np.float16).astype(np.float32)
    zero = ((3 * low + high) / 4).astype(np.float16).astype(np.float32)
    code = np.clip(np.rint((x - zero) / np.where(scale == 0, 1, scale)), 0, 1)
    return code * scale + zero


def low_bit(k, v):
    n = T - WINDOW
    k_hat, v_hat = k.copy(), v.copy()
    for at in range(0, n, GROUP):  # keys per channel, values per token
        k_hat[at:at + GROUP] = quantise(k[at:at + GROUP], 0)
    runs = v[:n].reshape(n, N_KV, D // GROUP, GROUP)
    v_hat[:n] = quantise(runs, 3).reshape(n, N_KV, D)
    return k_hat, v_hat


def attend(q, k, v):
    """Softmax attention of one row; returns weights (n_heads, T) and output (n_heads, D)."""
    share = N_HEADS // N_KV
    weights, out = [], []
    for head in range(N_HEADS):
        s = k[:, head // share] @ q[head] / np.sqrt(D)
        w = np.exp(s - s.max())
        weights.append(w / w.sum())
        out.append(weights[-1] @ v[:, head // share])
    return np.array(weights), np.array(out)


def arg_top(weights):
    """Per kv head the K packed tokens with the largest attention, averaged over its query heads."""
    mean = weights.reshape(N_KV, N_HEADS // N_KV, -1).mean(1)[:, :T - WINDOW]
    return np.sort(np.argsort(-mean, axis=1, kind="stable")[:, :K], axis=1)


def replaced(low, exact, picks):
    x = low.copy()
    for h in range(N_KV):
        x[picks[h], h] = exact[picks[h], h]
    return x


def main():
    out_dir, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng = np.random.default_rng(seed)
    half = lambda x: x.astype(np.float16).astype(np.float32)
    k, v = half(rng.standard_normal((T, N_KV, D))), half(rng.standard_normal((T, N_KV, D)))
    new_k, new_v = half(rng.standard_normal((3, N_KV, D))), half(rng.standard_normal((3, N_KV, D)))
    q = (rng.standard_normal((3, N_HEADS, D)) * 1.5).astype(np.float32)
    k_low, v_low = low_bit(k, v)
    seen = lambda x, new, rows: np.concatenate([x, new[rows]])
    weights, out_0 = attend(q[0], seen(k_low, new_k, [0]), seen(v_low, new_v,
                                                                [0]))  # pre-decoding: the low-bit copy alone
    picks_1 = arg_top(weights)
    k_1, v_1 = replaced(k_low, k, picks_1), replaced(v_low, v, picks_1)
    _, out_1 = attend(q[1], seen(k_1, new_k, [1]), seen(v_1, new_v,
                                                        [1]))  # decoding: both rows see what has been fetched
    weights, out_2 = attend(q[2], seen(k_1, new_k, [1, 2]), seen(v_1, new_v, [1, 2]))
    picks_2 = arg_top(weights)
    os.makedirs(out_dir, exist_ok=True)
    for name, x in {"k": k, "v": v, "q": q, "new_k": new_k, "new_v": new_v,
                    "out": np.array([out_0, out_1, out_2]).astype(np.float32),
                    "picks_1": picks_1.astype(np.int64), "picks_2": picks_2.astype(np.int64)}.items():
        np.save(os.path.join(out_dir, name + ".npy"), np.ascontiguousarray(x))


main()

#!/usr/bin/env python3
"""Writes tests/golden/codebook: make_codebook_golden.py [GOLDEN]; the stored values of `turbo` policies and of policies
with parameters in bytes, computed by numpy alone.

Reads GOLDEN/replay/{k,v}.npy, writes GOLDEN/codebook/NAME/{k_hat,v_hat}.npy and case.json. It uses no code of kvrun:
the rotation is a product with Sylvester's matrix, codebooks come from Lloyd's iteration and a search for the best cubic,
and every step is in double precision where kvrun uses single.
"""
import json, math, os, sys
import numpy as np

GOLDEN = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden")
PAGE, PACKED = 32, 96  # tokens of a page; of 160 tokens, with a window of 32 + 32

CASES = {  # name: (policy, K bits, V bits, rotation, means, bits of a norm)
    "turbo32": ("turbo3/2,sinks=0", 3, 2, True, True, 8),
    "turbo14": ("turbo1/4,sinks=0", 1, 4, True, True, 8),
    "paper23": ("turbo2/3,sinks=0,mean=off,param_bits=16", 2, 3, True, False, 16),
    "plain44": ("turbo4,sinks=0,rotate=off,param_bits=16", 4, 4, False, True, 16),
}

GROUPED = {  # name: (policy, bits, channels of a run of values, eta); parameters in bytes
    "bytes2": ("kivi2", 2, 32, 0),
    "bytes3": ("kivi2,bits=3", 3, 32, 0),
    "bytes1": ("kivi1,eta=0.25", 1, 32, 0.25),
}


def half(x):
    return np.asarray(x, np.float64).astype(np.float32).astype(np.float16).astype(np.float64)


def hash_bit(channel):
    mask = 0xFFFFFFFF
    x = (channel * 0x9E3779B9 + 0x6B766EF7) & mask
    x = ((x ^ x >> 16) * 0x7FEB352D) & mask
    x = ((x ^ x >> 15) * 0x846CA68B) & mask
    return (x ^ x >> 16) & 1


def rotation(dim):
    """Random signs, then Sylvester's Hadamard matrix on blocks of the largest power of two that divides dim."""
    block = dim & -dim
    h = np.ones((1, 1))
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    signs = np.diag([-1.0 if hash_bit(c) else 1.0 for c in range(dim)])
    return np.kron(np.eye(dim // block), h / math.sqrt(block)) @ signs


def gauss(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(x / math.sqrt(2)))


def moments(values):
    """Probability and first moment of each value's cell under a unit Gaussian."""
    edges = [-40.0] + [(a + b) / 2 for a, b in zip(values, values[1:])] + [40.0]
    at = [gauss(e) for e in edges]
    return (np.array([b[1] - a[1] for a, b in zip(at, at[1:])]), np.array([a[0] - b[0] for a, b in zip(at, at[1:])]))


def error(values):
    p, m = moments(values)
    return 1 - 2 * float(np.dot(values, m)) + float(np.dot(values * values, p))


def codebook(bits):
    """Lloyd-Max codebook for 1 and 2 bits; for 3 and 4 bits the odd cubic of the code with the least error."""
    u = np.arange(2 ** bits) - (2 ** bits - 1) / 2
    values = u * 3.0 / 2 ** bits
    for _ in range(3000):
        p, m = moments(values)
        values = m / p
    if bits <= 2:
        return values
    basis = np.stack([u, u ** 3], axis=1)
    best, step = np.linalg.lstsq(basis, values, rcond=None)[0], np.array([1e-2, 1e-3])
    least = error(basis @ best)
    while step[0] > 1e-11:
        trials = [best + step * s for s in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        errors = [error(basis @ t) for t in trials]
        if min(errors) < least:
            best, least = trials[int(np.argmin(errors))], min(errors)
        else:
            step = step / 2
    return basis @ best


def nearest(unit, book):
    """Values of `book` for each row of `unit`: of eight scales (one, if the book has two values), those whose direction
    is nearest to the row's."""
    factors = [1.0] if len(book) == 2 else [13 / 16 + i / 16 for i in range(8)]
    tries = [book[np.abs(unit[..., None] * f - book).argmin(axis=2)] for f in factors]
    cosines = [(unit * v).sum(axis=1) / np.sqrt((v * v).sum(axis=1)) for v in tries]
    return np.stack(tries)[np.argmax(cosines, axis=0), np.arange(len(unit))]


def stored(x, bits, rotate, mean, param_bits):
    """x (tokens, heads, dim) after storage in pages of PAGE tokens."""
    out, book, r = np.empty_like(x), codebook(bits), rotation(x.shape[2])
    if not rotate:
        r = np.eye(x.shape[2])
    for first in range(0, len(x), PAGE):
        for head in range(x.shape[1]):
            page = x[first:first + PAGE, head] @ r.T
            means = half(page.mean(axis=0)) if mean else np.zeros(x.shape[2])
            rest = page - means
            unit = rest / np.sqrt((rest ** 2).mean(axis=1, keepdims=True))
            values = nearest(unit, book)
            norms = np.sqrt((rest ** 2).sum(axis=1) / (values ** 2).sum(axis=1))
            if param_bits == 8:
                step = half(norms.max()) / 255
                norms = np.minimum(np.rint(norms / step), 255) * step
            else:
                norms = half(norms)
            out[first:first + PAGE, head] = (values * norms[:, None] + means) @ r
    return out


def grouped(x, bits, eta):
    """x (groups, elements) of one head of a page: uniform codes; scale, zero as bytes relative to the page's largest."""
    top = 2 ** bits - 1
    least, most = x.min(axis=1), x.max(axis=1)
    scale, zero = half(half((most - least).astype(np.float32) / np.float32(top)) * (1 - 2 * eta)), half(least)
    zero = half(zero + eta * half((most - least).astype(np.float32) / np.float32(top)) * top)
    scale_step, zero_step = scale.max() / 255, np.abs(zero).max() / 127
    scale = np.clip(np.rint(scale / scale_step), np.where(scale > 0, 1, 0), 255) * scale_step
    zero = np.rint(zero / zero_step) * zero_step
    plain = scale / (1 - 2 * eta)
    codes = np.clip(np.rint((x - (zero - eta * plain * top)[:, None]) / plain[:, None]), 0, top)
    return codes * scale[:, None] + zero[:, None]


def stored_grouped(x, bits, run, eta):
    """Keys (run 0): a group is a channel of a page. Values: `run` channels of a token."""
    out = np.empty_like(x)
    for first in range(0, len(x), PAGE):
        for head in range(x.shape[1]):
            page = x[first:first + PAGE, head]
            if run:
                out[first:first + PAGE, head] = grouped(page.reshape(-1, run), bits, eta).reshape(page.shape)
            else:
                out[first:first + PAGE, head] = grouped(page.T, bits, eta).T
    return out


def write(name, kv, k_hat, v_hat):
    folder = os.path.join(GOLDEN, "codebook", name)
    os.makedirs(folder, exist_ok=True)
    np.save(os.path.join(folder, "k_hat.npy"), k_hat.astype(np.float32))
    np.save(os.path.join(folder, "v_hat.npy"), v_hat.astype(np.float32))
    with open(os.path.join(folder, "case.json"), "w") as f:
        json.dump({"name": name, "kv": kv}, f, indent=1)
        f.write("\n")


def main():
    k, v = (np.load(os.path.join(GOLDEN, "replay", f"{name}.npy"))[0].astype(np.float64) for name in "kv")
    for name, (policy, k_bits, v_bits, rotate, mean, param_bits) in CASES.items():
        k_hat = stored(k[:PACKED], k_bits, rotate, mean, param_bits)
        v_hat = stored(v[:PACKED], v_bits, rotate, False, param_bits)
        write(name, f"{policy},group={PAGE},recent_keep=32,flush=32", k_hat, v_hat)
    for name, (policy, bits, run, eta) in GROUPED.items():
        write(name, f"{policy},param_bits=8,recent_keep=32,flush=32", stored_grouped(k[:PACKED], bits, 0, eta),
              stored_grouped(v[:PACKED], bits, run, eta))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Gives a small model the outlier channels of large models without changing its function.

  tools/dev/outliers.py MODEL OUT [options]     python3 with numpy; a llama GGUF file, F16 or F32 matrices
  --scale S        factor of keys and values in the chosen channels, a power of two so that nothing is rounded [16]
  --share P        share of a head's channels, at least one pair of keys and one channel of values [0.03]
  --side k|v|both  which side gets them [both]
  --seed N         of the choice [1]
  --check KVRUN    also run both files by this program: greedy tokens with an f16 cache must be equal, else exit code 1

Keys: a pair of channels that RoPE rotates together is multiplied by S, and the queries' pair is divided by S, so scores
are unchanged. Values: a channel is multiplied by S, and the columns of the output matrix that read it are divided by S.
So a cache stores channels that are S times as large as others, the same channels for every token. A llama has no
biases, so a constant offset of keys and an exceptional first token cannot be added without changing the function; they
are not imitated. Exit code 77: numpy is missing.
"""
import argparse
import os
import random
import subprocess
import sys

try:
    import numpy as np
except ImportError:
    print("outliers: python3 has no numpy; install python3-numpy", file=sys.stderr)
    sys.exit(77)

from gguf_file import F16, F32, read_header

QUESTION = "The code of Ben is 1234. The code of Ada is 77. What is the code of Ben?\nAnswer: <"
STORY = "Once upon a time there was a little dog who"


def arguments():
    p = argparse.ArgumentParser(prog="tools/dev/outliers.py", allow_abbrev=False)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--scale", type=float, default=16)
    p.add_argument("--share", type=float, default=0.03)
    p.add_argument("--side", choices=["k", "v", "both"], default="both")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--check", default=None)
    a = p.parse_args()
    if not (a.scale >= 1 and np.log2(a.scale).is_integer()):
        sys.exit(f"outliers: --scale is {a.scale:g}, expected a power of two, 1 or more")
    if not 0 < a.share <= 0.5:
        sys.exit(f"outliers: --share is {a.share:g}, expected more than 0, at most 0.5")
    if os.path.exists(a.out) and os.path.samefile(a.model, a.out):
        sys.exit("outliers: OUT is the model itself; name another file")
    return a


def scale_channels(a, data):
    """Scales tensors of the file in place."""
    meta, infos = read_header(a.model, data)
    arch = meta.get("general.architecture")
    if arch != "llama":
        sys.exit(f"outliers: {a.model} is {arch}; give a llama, whose RoPE turns neighbouring channels")
    n_heads, n_kv = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    head_dim = meta.get("llama.attention.key_length", meta["llama.embedding_length"] // n_heads)
    group = n_heads // n_kv

    def matrix(layer, name):
        shape, kind, at = infos[f"blk.{layer}.attn_{name}.weight"]
        if kind not in (F32, F16):
            sys.exit(f"outliers: attn_{name} of layer {layer} is not F16 or F32; give a model that is not quantised")
        return np.frombuffer(data, (np.float32, np.float16)[kind], shape[0] * shape[1], at).reshape(shape)

    choice = random.Random(a.seed)
    scale = np.float16(a.scale)
    for layer in range(meta["llama.block_count"]):
        q, k, v, o = (matrix(layer, name) for name in ("q", "k", "v", "output"))
        for h in range(n_kv):
            heads = range(h * group, (h + 1) * group)
            pairs = choice.sample(range(head_dim // 2), max(1, round(a.share * head_dim / 2)))
            values = choice.sample(range(head_dim), max(1, round(a.share * head_dim)))
            for c in (2 * i + half for i in pairs for half in (0, 1)):
                if a.side == "v":
                    break
                k[h * head_dim + c] *= scale
                for j in heads:
                    q[j * head_dim + c] /= scale
            for c in values:
                if a.side == "k":
                    break
                v[h * head_dim + c] *= scale
                for j in heads:
                    o[:, j * head_dim + c] /= scale


def greedy(program, model, prompt):
    done = subprocess.run([program, "run", model, "--device", "cpu", "--temp", "0", "-n", "48", "-p", prompt],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"outliers: {program} run {model}: {done.stderr.decode().strip()}")
    return done.stdout


def main():
    a = arguments()
    with open(a.model, "rb") as f:
        data = bytearray(f.read())
    scale_channels(a, data)
    with open(a.out + ".part", "wb") as f:
        f.write(data)
    os.replace(a.out + ".part", a.out)
    if a.check:
        for prompt in (QUESTION, STORY):
            want, got = greedy(a.check, a.model, prompt), greedy(a.check, a.out, prompt)
            if want != got:
                sys.exit(f"outliers: after {prompt!r} the model goes on with {want!r}, the new one with {got!r}")
        print("the same greedy tokens with an f16 cache")


if __name__ == "__main__":
    main()

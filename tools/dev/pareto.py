#!/usr/bin/env python3
"""Measures KL divergence and stored bits of all policies, on the bundled model and on a copy with outlier channels, and
plots them.

  tools/dev/pareto.py [options]     writes pareto.csv and pareto.svg beside this file; progress goes to stderr
  --kvrun FILE     program to measure [build/kvrun]
  --device NAME    as for kvrun [cpu]
  --text FILE      text to score [../shared/assets/models/recall/stories-eval.txt]
  --chunks N       chunks of 1024 tokens of it, the last 256 of each scored by decode steps [1]
  --peer FOLDER    folder with Debian and llama.cpp, as for make_peer_golden.sh; needs root. Its q8_0 and q4_0 caches
                   are compared with its own f16 cache, on the same tokens [omitted]
Needs python3 with numpy. Policies have their own windows, of at most 100 to 160 f16 tokens. Bits are stored bits per
element at 32768 tokens, overhead and window included (`kvrun plan`). `tuned:BITS` uses `kvrun tune` on records, not on
the scored text.
"""
import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

import quality

HERE = os.path.dirname(os.path.abspath(__file__))
POLICIES = """rtn8,recent=128 rtn4,recent=128 rtn2,recent=128 kivi4 kivi2 xquant zipcache mikv,recent=128
kivi4,param_bits=8 kivi2,param_bits=8 mixed4/2 mixed4/1 mixed2/1
turbo8 turbo8/4 turbo4 turbo4/3 turbo4/2 turbo4/1 turbo3/2 turbo3/1 turbo2 turbo2/1 turbo1
tuned:1.75 tuned:2 tuned:2.5 tuned:3 tuned:4 tuned:5""".split()
PEER_BITS = {"q8_0": 8.5, "q4_0": 4.5}
TOKENS = 32768
CHUNK, SCORED = 1024, 256


def say(text):
    print("pareto: " + text, file=sys.stderr, flush=True)


def arguments():
    p = argparse.ArgumentParser(prog="tools/dev/pareto.py", allow_abbrev=False)
    p.add_argument("--kvrun", default=os.path.join(quality.ROOT, "build/kvrun"))
    p.add_argument("--device", default="cpu")
    p.add_argument("--text", default=quality.TEXT)
    p.add_argument("--chunks", type=int, default=1)
    p.add_argument("--peer", default=None)
    a = p.parse_args()
    if not os.path.exists(a.text):
        sys.exit(f"pareto: {a.text}: no such text")
    return a


def run(command, good=(0,), **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, **more)
    if done.returncode not in good:
        sys.exit(f"pareto: {' '.join(command)} ended with {done.returncode}")
    return done.stdout


def bits_of(a, model, policy):
    plan = run([a.kvrun, "plan", "-m", model, "--kv", policy, "-c", str(TOKENS), "--memory", "64G", "--json"],
               good=(0, 6))  # 6: longer than the model was trained for
    return json.loads(plan)["stored_bits_per_element"]


def measure(a, name, model):
    """Rows of one model, which lies in its own folder."""
    say(f"{name}: kvrun tune")
    run([a.kvrun, "tune", model, "--device", a.device, "-c", "512", "--chunks", "1"])
    say(f"{name}: kvrun eval of {len(POLICIES)} policies")
    result = json.loads(run([a.kvrun, "eval", "-m", model, "-f", a.text, "-c", str(CHUNK), "--score", str(SCORED),
                             "--chunks",
                             str(a.chunks), "--device", a.device, "--json", "--kv", ",".join(POLICIES)]))
    return [{"model": name, "by": "kvrun", "policy": r["policy"], "bits": f"{bits_of(a, model, r['policy']):.3f}",
             "kld": f"{r['kld_mean']:.6f}", "error": f"{r['kld_error']:.6f}"}
            for r in result["results"] if r["policy"] != "fp16"]


def log_softmax(x):
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def text_chunks(a, model):
    """Tokens of the chunks that `kvrun eval` uses."""
    def tokens(*more):
        with open(a.text, "rb") as f:
            return [int(i) for i in run([a.kvrun, "tokenize", "-m", model, *more], stdin=f).split()]

    plain, whole = tokens("--no-bos"), tokens()
    bos = whole[:len(whole) - len(plain)]
    own = CHUNK - len(bos)
    return [bos + plain[c * own:(c + 1) * own] for c in range(a.chunks)]


def measure_peer(a, name, model, chunks):
    work = tempfile.mkdtemp(prefix="kvrun.", dir=os.path.join(a.peer, "tmp"))
    inside = os.path.join("/tmp", os.path.basename(work))
    try:
        shutil.copy(os.path.join(HERE, "peer_eval.c"), work)
        shutil.copy(model, os.path.join(work, "model.gguf"))
        run(["chroot", a.peer, "gcc", "-O2", f"{inside}/peer_eval.c", "-o", f"{inside}/peer_eval", "-lllama", "-lggml",
             "-lggml-base"])

        def rows(chunk, kv):
            out = run(["chroot", a.peer, f"{inside}/peer_eval", f"{inside}/model.gguf", "2048", kv, "0"],
                      input=" ".join(map(str, chunk)).encode())
            n_vocab, n = np.frombuffer(out[:8], np.int32)
            return log_softmax(np.frombuffer(out[8:], np.float32).reshape(n, n_vocab)[-SCORED - 1:-1])

        klds = {kv: [] for kv in PEER_BITS}
        for chunk in chunks:
            want = rows(chunk, "f16")
            for kv in PEER_BITS:
                klds[kv].append((np.exp(want) * (want - rows(chunk, kv))).sum(-1))
        out = []
        for kv, bits in PEER_BITS.items():
            x = np.concatenate(klds[kv])
            out.append({"model": name, "by": "llama.cpp", "policy": kv, "bits": f"{bits:.3f}", "kld": f"{x.mean():.6f}",
                        "error": f"{x.std() / len(x) ** 0.5:.6f}"})
            say(f"{name}: llama.cpp {kv}: {x.mean():.6f}")
        return out
    finally:
        shutil.rmtree(work)


def main():
    a = arguments()
    rows, chunks = [], []
    with tempfile.TemporaryDirectory() as folder:
        plain, outliers = os.path.join(folder, "plain.gguf"), os.path.join(folder, "outliers.gguf")
        shutil.copy(quality.MODEL, plain)
        run([sys.executable, os.path.join(HERE, "outliers.py"), plain, outliers, "--check", a.kvrun])
        if a.peer:
            chunks = text_chunks(a, plain)
        for name, model in (("bundled", plain), ("outliers", outliers)):
            rows += measure(a, name, model)
            if a.peer:
                rows += measure_peer(a, name, model, chunks)
    with open(os.path.join(HERE, "pareto.csv"), "w", newline="") as f:
        w = csv.DictWriter(f, list(rows[0]), lineterminator="\n")
        w.writeheader()
        w.writerows(rows)
    run([sys.executable, os.path.join(HERE, "plot_readme.py")])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

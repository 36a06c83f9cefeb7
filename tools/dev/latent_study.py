#!/usr/bin/env python3
"""KL divergence per stored bit of latents: models of random weights with latent attention, every kind of format.

  tools/dev/latent_study.py [options]     prints the table tools/results/latent_kld.csv
  --kvrun FILE    program to measure [build/kvrun]
  --device NAME   as for kvrun [cpu]
  --text FILE     text to read [../shared/assets/text/tinyshakespeare/input.txt]
  --tokens N      tokens of a chunk, of which the last eighth is scored [512]
  --chunks N      chunks [2]

The weights are random, so the figures compare formats on latents without outlier channels and with attention that no
training has shaped. They say nothing about the loss of a trained model.
"""
import argparse
import csv
import datetime
import json
import os
import subprocess
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SMALL = "layers=4,dim=512,hidden=1024,heads=8,vocab=4096,experts=8,used=2,expert_hidden=128,shared=128"
MODELS = {"deepseek-v2-lite, random": f"synth:deepseek-v2-lite,{SMALL}:f16"}
WINDOW = ",recent_keep=0,flush=128,sinks=0"
# How a latent is stored, by bits; rotated keys have 8 bits.
FORMATS = {
    "per token and 32 channels (rtn)": ("rtn{},k.group=32,recent_keep=0,flush=128,sinks=0", (2, 4, 8)),
    "per token (rtn, one group)": ("rtn{},k.group=head,recent_keep=0,flush=128,sinks=0", (2, 4, 8)),
    "per channel and 128 tokens (kivi)": ("kivi2,k.bits={},k.group=128,page=128" + WINDOW, (1, 2, 3, 4)),
    "codebook, not rotated, no means": ("turbo{},rotate=off,mean=off" + WINDOW, (2, 3, 4)),
    "codebook, rotated, no means": ("turbo{},mean=off" + WINDOW, (2, 3, 4)),
    "codebook, rotated, channel means (turbo)": ("turbo{}" + WINDOW, (1, 2, 3, 4)),
}
# Rotated keys beside the same latents.
ROPE = [("turbo2", 2), ("turbo4", 4), ("turbo8", 8)]


def arguments():
    p = argparse.ArgumentParser(prog="tools/dev/latent_study.py", allow_abbrev=False)
    p.add_argument("--kvrun", default=os.path.join(ROOT, "build", "kvrun"))
    p.add_argument("--device", default="cpu")
    shared = os.environ.get("KVRUN_SHARED", os.path.join(ROOT, "..", "shared"))
    p.add_argument("--text", default=os.path.join(shared, "assets", "text", "tinyshakespeare", "input.txt"))
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--chunks", type=int, default=2)
    return p.parse_args()


def run(a, *args):
    p = subprocess.run([a.kvrun, *args], capture_output=True, text=True, check=False)
    if p.returncode:
        sys.exit(f"latent_study: kvrun {' '.join(args)}\n{p.stderr}")
    return json.loads(p.stdout)


def main():
    a = arguments()
    rows = []  # (what, latent bits, rope bits, policy)
    for what, (policy, all_bits) in FORMATS.items():
        rows += [(what, bits, 8, policy.format(bits)) for bits in all_bits]
    for policy, bits in ROPE:
        rows += [(f"{policy}, rotated keys at {rope} bits", bits, rope, f"{policy}{WINDOW},rope.bits={rope}")
                 for rope in (4, 8)]
    out = csv.writer(sys.stdout, lineterminator="\n")
    print("# KL divergence per stored bit of latents. The weights are RANDOM: no trained model, no outlier channels.")
    print(f"# {datetime.date.today()}, device {a.device}, {a.chunks} chunks of {a.tokens} tokens, the last "
          f"{a.tokens // 8} of each scored; bits at 32768 tokens. "
          f"{'; '.join(f'{name} = {spec}' for name, spec in MODELS.items())}")
    print(f"# tools/dev/latent_study.py --device {a.device} --tokens {a.tokens} --chunks {a.chunks}")
    out.writerow(["model", "latents", "bits of latents", "bits of rotated keys", "stored bits per element",
                  "KL divergence, nats", "half of its 95 % interval", "--kv"])
    for name, spec in MODELS.items():
        policies = [r[3] for r in rows]
        measured = run(a, "eval", spec, "--device", a.device, "-f", a.text, "-c", str(a.tokens), "--chunks",
                       str(a.chunks), "--score", str(a.tokens // 8), "--together", "12", "--kv",
                       ",".join(["fp16", *policies]), "--json")
        results = [r for r in measured["results"] if r["policy"] != "fp16"]
        for (what, bits, rope, policy), m in zip(rows, results, strict=True):
            plan = run(a, "plan", spec, "--kv", policy, "-c", "32768", "--memory", "64G", "--json")
            out.writerow([name, what, bits, rope, f"{plan['stored_bits_per_element']:.3f}", f"{m['kld_mean']:.6f}",
                          f"{(m['kld_high'] - m['kld_low']) / 2:.6f}", policy])


if __name__ == "__main__":
    main()

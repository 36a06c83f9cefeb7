#!/usr/bin/env python3
"""Longest contexts of well-known models in the memory of common cards, by `kvrun plan`. Shapes come from `synth:`, so
neither a download nor a device is needed.

  tools/dev/longest_context.py [--kvrun FILE] > tools/results/longest_context.csv     [build/kvrun]

The memory holds weights, activations, a prompt's scratch memory and the cache; a desktop and the driver also use some
of a card's memory. A context is at most the trained one.
"""
import argparse
import csv
import datetime
import json
import subprocess
import sys

MODELS = ["llama-3.1-8b:q4_k", "mistral-7b,ctx=32768:q4_k", "qwen2.5-14b:q4_k", "qwen3-8b:q4_k", "qwen3-14b:q4_k",
          "qwen3-32b:iq4_xs", "qwen3-30b-a3b,ctx=262144:q4_k", "gemma-2-9b:q4_k", "gpt-oss-20b:mxfp4",
          "seed-oss-36b:iq4_xs", "gemma-4-31b:iq4_xs", "gemma-4-26b-a4b:q4_k", "gemma-4-e4b:q4_k"]
CARDS = ["8G", "12G", "16G", "24G"]
POLICIES = ["fp16", "kivi4", "turbo4", "turbo3/2"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kvrun", default="build/kvrun")
    a = p.parse_args()
    print(f"# Most tokens of one conversation, by kvrun plan -m synth:MODEL --kv POLICY --memory CARD; "
          f"{datetime.date.today()}.\n# No device: planned, not measured. 0: the weights alone are too much.")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["model", "trained", "weights_gib", "card", *POLICIES])
    for model in MODELS:
        for card in CARDS:
            done = subprocess.run([a.kvrun, "plan", "-m", "synth:" + model, "--kv", ",".join(POLICIES), "--memory",
                                   card,
                                   "--json"], check=True, stdout=subprocess.PIPE)
            plans = json.loads(done.stdout)
            memory = [plan["memory"] for plan in plans]
            out.writerow([model, plans[0]["tokens"], f"{memory[0]['weight_bytes'] / 2**30:.1f}", card,
                          *(m["tokens_that_fit"] for m in memory)])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Expected speed of models larger than the card, by `kvrun plan`, beside llama.cpp's way of running them. Shapes come
from `synth:`, so neither a download nor a device is needed.

  tools/dev/host_weights_table.py [--kvrun FILE] > tools/results/host_weights.csv     [build/kvrun]

Both are arithmetic of bytes and rates for a decode step, which reads each byte that it needs once:
  kvrun      the card reads its part of the weights and the cache from its own memory, the rest over the bus
  llama.cpp  the processor reads the rest from its own memory and computes there (--n-cpu-moe); the card does as above.
             Its cache is f16 or q8_0, so more weights leave the card: they are those of kvrun's plan under that policy
A processor that computes slower than its memory delivers, transfers of activations and launches are left out on both
sides.
"""
import argparse
import csv
import datetime
import json
import subprocess
import sys

MODELS = ["qwen3-30b-a3b:q4_k", "gpt-oss-120b:mxfp4"]
CARDS = [("8G", 272), ("12G", 360), ("16G", 640), ("24G", 1008)]  # memory, its GB/s
BUSES = [25, 50]  # GB/s reached by PCIe 4.0 x16 and 5.0 x16
HOSTS = [50, 80]  # GB/s reached by two channels of DDR4-3200 and of DDR5-6000
CONTEXTS = ["8k", "32k"]
OURS = ["fp16", "turbo4", "turbo3/2"]
THEIRS = ["fp16", "rtn8"]  # rtn8 takes as many bytes as q8_0


def plan(kvrun, model, card, bandwidth, context, policy):
    done = subprocess.run([kvrun, "plan", "-m", "synth:" + model, "--kv", policy, "--memory", card, "-c", context,
                           "--bus", "25G", "--bandwidth", f"{bandwidth}G", "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    return json.loads(done.stdout) if done.stdout else None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kvrun", default="build/kvrun")
    a = p.parse_args()
    print(f"# Estimates by bytes and rates alone, tools/dev/host_weights_table.py, {datetime.date.today()}; no device.\n"
          "# kvrun_busN: tokens/s with N GB/s over the bus; llama_cpp_hostN: experts in host memory computed by a\n"
          "# processor that reads N GB/s. Decode steps of one sequence with a full context.")
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["model", "card", "card_gb_per_s", "ctx", "kv", "card_gib", "host_gib", "host_mib_per_token",
                  *(f"kvrun_bus{b}" for b in BUSES), *(f"llama_cpp_host{h}" for h in HOSTS)])
    for model in MODELS:
        for card, bandwidth in CARDS:
            for context in CONTEXTS:
                for kv in dict.fromkeys(OURS + THEIRS):
                    j = plan(a.kvrun, model, card, bandwidth, context, kv)
                    if not j or not j["fits"] or "weights" not in j:
                        continue
                    w = j["weights"]
                    own = (w["device_bytes_per_token"] + j["bytes"] + j["memory"]["window_bytes"]) / bandwidth / 1e9
                    rate = lambda gb: f"{1 / (own + w['bus_bytes_per_token'] / gb / 1e9):.1f}"
                    out.writerow([model, card, bandwidth, context, kv,
                                  f"{w['device_bytes'] / 2**30:.1f}", f"{w['host_bytes'] / 2**30:.1f}",
                                  f"{w['bus_bytes_per_token'] / 2**20:.0f}",
                                  *(rate(b) if kv in OURS else "" for b in BUSES),
                                  *(rate(h) if kv in THEIRS else "" for h in HOSTS)])


if __name__ == "__main__":
    main()

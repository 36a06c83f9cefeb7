#!/usr/bin/env python3
"""Tokens per second of 1 and 2 replicas on Ray, and of one `kvrun serve` without Ray: replicas_ray.py BUILD [MODEL]
[--conversations 8] [--turns 4] [--tokens 48] [--device cpu] [-o FILE.csv]. Needs ray[serve], cffi and numpy; not part
of the suite.

All conversations ask at once and stream their answers. A row per arrangement: generated tokens per second of all
conversations together, time to the first token, share of prompt tokens that came from caches. The cpu backend computes
on one thread, so two replicas use two cores.
"""
import argparse
import contextlib
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("build")
p.add_argument("model", nargs="?")
p.add_argument("--conversations", type=int, default=8)
p.add_argument("--turns", type=int, default=4)
p.add_argument("--tokens", type=int, default=48)
p.add_argument("--device", default="cpu")
p.add_argument("-o", "--output", metavar="FILE.csv")
a = p.parse_args()
sys.path.insert(0, os.path.join(os.path.abspath(a.build), "python"))
os.environ["PYTHONPATH"] = sys.path[0]

from ray_rig import MODEL, ray_cluster, serve, start_proxy, user  # noqa: E402

import kvrun.ray as kr  # noqa: E402
from kvrun._program import program  # noqa: E402

OPTIONS = ["--chat-template", "chatml"]


class Talk(threading.Thread):
    """One conversation: turns one after the other, each repeating the whole conversation."""

    def __init__(self, number, url):
        super().__init__(daemon=True)
        self.number, self.url = number, url
        self.first, self.generated, self.prompt, self.cached = [], 0, 0, 0

    def run(self):
        messages = []
        for turn in range(a.turns):
            messages.append(user(f"The code of Ben is {1000 + 10 * self.number + turn}. What is the code of Ben?"))
            body = {"messages": messages, "max_tokens": a.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                    "stream_options": {"include_usage": True}}
            request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                             {"content-type": "application/json"})
            asked, text = time.monotonic(), ""
            with urllib.request.urlopen(request, timeout=600) as stream:
                for line in stream:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    for choice in event.get("choices", ()):
                        if choice["delta"].get("content") and not text:
                            self.first.append(time.monotonic() - asked)
                        text += choice["delta"].get("content") or ""
                    if event.get("usage"):
                        self.generated += event["usage"]["completion_tokens"]
                        self.prompt += event["usage"]["prompt_tokens"]
                        self.cached += event["usage"]["prompt_tokens_details"]["cached_tokens"]
            messages.append({"role": "assistant", "content": text})


def measure(name, url):
    warm = Talk(900, url)
    warm.run()
    talks = [Talk(i, url) for i in range(a.conversations)]
    began = time.monotonic()
    for t in talks:
        t.start()
    for t in talks:
        t.join()
    seconds = time.monotonic() - began
    first = sorted(x for t in talks for x in t.first)
    row = {"arrangement": name, "conversations": a.conversations, "seconds": round(seconds, 1),
           "tokens": sum(t.generated for t in talks),
           "tok_s": round(sum(t.generated for t in talks) / seconds, 1),
           "first_token_p50_s": round(statistics.median(first), 2), "first_token_max_s": round(first[-1], 2),
           "cached_share": round(sum(t.cached for t in talks) / sum(t.prompt for t in talks), 3)}
    print(*(f"{k}={v}" for k, v in row.items()), flush=True)
    return row


@contextlib.contextmanager
def alone(model):
    server = subprocess.Popen([program(), "serve", model, "--port", "0", "--device", a.device, "--parallel", "8",
                               *OPTIONS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield next(found[0] for line in server.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
    finally:
        server.terminate()
        server.wait()


def main():
    model = os.path.realpath(a.model or MODEL)
    with alone(model) as url:
        rows = [measure("kvrun serve", url)]
    for replicas in (1, 2):
        with ray_cluster(nodes=replicas):
            url = start_proxy()
            serve.run(kr.build(model, replicas=replicas, parallel=8, device=a.device, options=OPTIONS), name="kvrun",
                      route_prefix="/")
            rows.append(measure(f"Ray, {replicas} replica{'s' if replicas > 1 else ''}", url))
    if a.output:
        with open(a.output, "w", newline="") as f:
            table = csv.DictWriter(f, rows[0], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


main()

#!/usr/bin/env python3
"""Soaks a kvrun serve of its own: many clients at once with answers of mixed lengths and policies, whole and streamed, while
others leave, cancel and send what is no request.

usage: serve_soak.py KVRUN [--seconds 600] [--clients 64] [--model FILE] [--device NAME]

Every answer to a request that reads its whole prompt must be what the same seeded request gives alone; a third of them go on from
what an earlier request left, which rounds otherwise, and must be answered. At the end no slot, connection or queued request is
left, and memory has not grown since the first fifth of the time by more than 5 %. Exit code 1 where any of that fails.
"""
import argparse
import json
import os
import random
import re
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "serve"))
from serving import MODEL, Server

COMPLETION, KINDS = "/v1/completions", 24


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) << 10


def body(k):
    return {"prompt": f"{k} once upon a time " + "word " * (k % 7 * 20), "max_tokens": 5 + k % 5 * 12, "seed": k, "temperature": 1.5,
            "top_k": 0, "min_p": 0, "top_p": 1, "ignore_eos": True, "kv": ["fp16", "kivi2", "kivi4"][k % 3], "stream": k % 2 == 0,
            "cache_prompt": False}


def text(answer):
    if answer.body[:4] == b"data":
        return "".join(c["text"] for e in answer.events() for c in e["choices"])
    return answer.json()["choices"][0]["text"]


class Soak:
    def __init__(self, server, seconds):
        self.server, self.end, self.lock = server, time.monotonic() + seconds, threading.Lock()
        self.alone = [text(server.post(COMPLETION, body(k))) for k in range(KINDS)]
        self.counts = dict.fromkeys(["answers", "refused", "left", "malformed", "different", "errors"], 0)

    def count(self, name, said=None):
        with self.lock:
            self.counts[name] += 1
            if said and self.counts[name] <= 5:
                print(f"{name}: {said}", flush=True)

    def client(self, number):
        r = random.Random(number)
        while time.monotonic() < self.end:
            k, x = r.randrange(KINDS), r.random()
            try:
                if x < 0.1:
                    self.server.raw(bytes(r.randrange(256) for _ in range(200)) + b"\r\n\r\n")
                    self.count("malformed")
                elif x < 0.3:
                    c = self.server.connect()
                    c.request("POST", COMPLETION, json.dumps({**body(k), "max_tokens": 500}))
                    time.sleep(r.random() * 0.5)
                    c.close()
                    self.count("left")
                else:
                    reuse = x < 0.5
                    a = self.server.post(COMPLETION, {**body(k), "cache_prompt": reuse})
                    if a.status in (429, 503):
                        self.count("refused")
                        time.sleep(0.2)
                    elif a.status != 200 or (not text(a) if reuse else text(a) != self.alone[k]):
                        self.count("different", (k, a.status, a.body[:300], self.alone[k][:100]))
                    else:
                        self.count("answers")
            except Exception as e:
                self.count("errors", repr(e))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("kvrun")
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--model", default=MODEL)
    p.add_argument("--device", default="cpu")
    a = p.parse_args()
    with Server("--parallel", "8", "--queue", "100", "--ctx-size", "1024", "--idle-sessions", "4", model=a.model, device=a.device) as s:
        soak = Soak(s, a.seconds)
        threads = [threading.Thread(target=soak.client, args=(i,)) for i in range(a.clients)]
        for t in threads:
            t.start()
        begin, settled, last = time.monotonic(), 0, 0
        while time.monotonic() < soak.end:
            time.sleep(min(20, a.seconds / 10))
            last = resident(s.process.pid)
            if time.monotonic() - begin < a.seconds / 5 or not settled:
                settled = max(settled, last)
            print(f"{time.monotonic() - begin:.0f} s, resident {last >> 20} MiB, {soak.counts}", flush=True)
        for t in threads:
            t.join()
        free = [s.wait_for(m, 0) for m in ("kvrun_answers_active", "kvrun_requests_queued")] + [s.wait_for("kvrun_connections", 1)]
        code = s.stop()
        good = all(free) and code == 0 and last <= settled * 1.05 and not soak.counts["different"] and not soak.counts["errors"]
        print(f"{'ok' if good else 'FAILED'}: {soak.counts}, nothing left over: {free}, memory {settled >> 20} -> {last >> 20} MiB, "
              f"exit code {code}")
        return 0 if good and soak.counts["answers"] else 1


if __name__ == "__main__":
    sys.exit(main())

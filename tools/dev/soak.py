#!/usr/bin/env python3
"""Soaks a kvrun serve that it starts: concurrent clients with chats, completions, tools, several choices, logprobs and
kept conversations, under random policies, whole and streamed, while other clients leave in the middle or send invalid
requests.

usage: soak.py KVRUN [--seconds 3600] [--clients 64] [--parallel 8] [--model FILE] [--device NAME] [--csv FILE]

The warm-up is the first sixth of the time, and at least two minutes of a run of four. At intervals all clients pause;
when no request is active, resident memory and open descriptors are measured, and written to --csv. Exit code 1 if
- an answer to a request that reads its whole prompt differs from that of the same request alone, before the soak;
- resident memory at the end (median of the last three pauses) is more than 2 % above its maximum during the warm-up;
- the number of descriptors differs from the first pause, or a slot, a queued request, a connection or a body is left;
- a request fails in a way that no limit explains, or the server's exit code is not 0.
"""
import argparse
import collections
import json
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "serve"))
from serving import MODEL, ROOT, Server

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
POLICIES = ["fp16", "kivi2", "kivi4", "kivi2,recent=32", "fp16"]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}}}}}]
HOT = {"temperature": 1.5, "top_k": 0, "min_p": 0, "top_p": 1, "ignore_eos": True}
KINDS = 40
MOST_GROWTH = 1.02


def ask(k):
    """(path, body) of request number k, which always has the same answer."""
    r = random.Random(k)
    body = {**HOT, "kv": r.choice(POLICIES), "seed": k, "max_tokens": 5 + k % 5 * 10, "stream": k % 2 == 0,
            "cache_prompt": False}
    words = f"{k} once upon a time " + "word " * (k % 7 * 15)
    if k % 4 == 3:
        body["n"] = 2
    if k % 3 == 0:
        return COMPLETION, {**body, "prompt": words, **({"logprobs": 2} if k % 2 else {})}
    body["messages"] = [{"role": "user", "content": words}]
    if k % 5 == 1:
        body["tools"] = TOOLS
    if k % 5 == 2:
        body["response_format"] = {"type": "json_object"}
    return CHAT, body


def said(answer):
    """Contents of an answer: per choice its text, calls and why it ended. None: the server has broken it off."""
    if not answer.body.startswith(b"data"):
        return [(c.get("text", (c.get("message") or {}).get("content")),
                 (c.get("message") or {}).get("tool_calls") is not None,
                 c["finish_reason"]) for c in answer.json()["choices"]]
    choices = collections.defaultdict(lambda: ["", False, None])
    for event in answer.events():
        if "error" in event:
            return None
        for c in event["choices"]:
            one = choices[c["index"]]
            delta = c.get("delta", {})
            one[0] += c.get("text") or delta.get("content") or ""
            one[1] |= "tool_calls" in delta
            one[2] = c["finish_reason"] or one[2]
    return [tuple(choices[i]) for i in sorted(choices)]


class Pause:
    """Pauses and resumes the clients; knows when all of them wait."""

    def __init__(self, clients):
        self.clients, self.waiting, self.paused, self.changed = clients, 0, False, threading.Condition()

    def here(self):
        with self.changed:
            if not self.paused:
                return
            self.waiting += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.paused)
            self.waiting -= 1

    def __enter__(self):
        with self.changed:
            self.paused = True
            self.changed.wait_for(lambda: self.waiting == self.clients)

    def __exit__(self, *_):
        with self.changed:
            self.paused = False
            self.changed.notify_all()


class Soak:
    def __init__(self, server, clients, seconds):
        self.server, self.clients, self.seconds = server, clients, seconds
        self.lock, self.counts, self.faults = threading.Lock(), collections.Counter(), 0
        self.pause, self.over = Pause(clients), False
        self.alone = [said(server.post(*ask(k))) for k in range(KINDS)]
        self.rows = []  # (seconds, resident bytes, descriptors) at each pause

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fault(self, what):
        with self.lock:
            self.faults += 1
            if self.faults <= 20:
                print(f"FAULT: {what}", flush=True)

    def plain(self, r):
        k = r.randrange(KINDS)
        path, body = ask(k)
        reuse = r.random() < 0.2  # continues from an earlier request's cache, which gives other rounding
        answer = self.server.post(path, {**body, "cache_prompt": reuse})
        if answer.status in (429, 503):
            return self.count("refused")
        got = said(answer) if answer.status == 200 else None
        if not got or (not reuse and got != self.alone[k]):
            self.fault(f"request {k}: {answer.status} {answer.body[:300]!r}, alone {self.alone[k]}")
        self.count("reused" if reuse else "equal")

    def conversation(self, r, name):
        messages = [{"role": "user", "content": f"The code of {name} is {r.randrange(10000)}."}]
        body = {**HOT, "kv": r.choice(POLICIES), "max_tokens": 12, "session": name}
        for _ in range(2):
            answer = self.server.post(CHAT, {**body, "messages": messages})
            if answer.status in (409, 429, 503):  # 409: the answer that this client abandoned has not ended yet
                return self.count("refused")
            if answer.status != 200 or not answer.json()["kv"]["kept"]:
                return self.fault(f"conversation {name}: {answer.status} {answer.body[:300]!r}")
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        kept = self.server.get("/sessions/" + name)
        if kept.status == 200 and kept.json()["messages"] != messages[:-1] or kept.status not in (
                200, 404):  # 404: it was removed
            self.fault(f"conversation {name}: {kept.status} {kept.body[:300]!r}, said {messages}")
        if r.random() < 0.3:
            self.server.ask("DELETE", "/sessions/" + name)
        self.count("conversations")

    def leave(self, r, name):
        path, body = ask(r.randrange(KINDS))
        body = {**body, "max_tokens": 400, **({"session": name, "n": 1} if r.random() < 0.3 else {})}
        c = self.server.connect()
        c.request("POST", path, json.dumps(body))
        if r.random() < 0.6:  # in the middle of the answer
            answer = c.getresponse()
            if body["stream"]:
                answer.read1(r.choice([1, 300, 3000]))
        c.close()
        self.count("left")

    def malformed(self, r):
        kind = r.randrange(3)
        if kind == 0:
            self.server.raw(bytes(r.randrange(256) for _ in range(200)) + b"\r\n\r\n")
        elif kind == 1:  # half a body
            c = self.server.connect()
            c.connect()
            c.sock.sendall(b"POST /tokenize HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 100000)
            c.close()
        else:
            path, body = ask(r.randrange(KINDS))
            if self.server.post(path, {**body, "kv": "none such"}).status not in (400, 429):
                self.fault("a policy that is none")
        self.count("malformed")

    def client(self, number):
        r = random.Random(number)
        while not self.over:
            self.pause.here()
            try:
                r.choices([lambda: self.plain(r), lambda: self.conversation(r, f"c{number}"),
                           lambda: self.leave(r, f"c{number}"),
                           lambda: self.malformed(r)], [60, 15, 18, 7])[0]()
            except Exception as e:
                self.fault(repr(e))

    def look(self, begin):
        """Resident memory and descriptors while no request is active."""
        with self.pause:
            names = ("kvrun_answers_active", "kvrun_requests_queued", "kvrun_body_bytes")
            if not all(self.server.wait_for(n, 0) for n in names) or not self.server.wait_for("kvrun_connections", 1):
                self.fault(f"something is left over: {self.server.get('/metrics').body.decode()}")
            with open(f"/proc/{self.server.process.pid}/status", encoding="utf-8") as f:
                resident = int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) << 10
            # the connection of the metrics request may still be open: takes the minimum of a few measurements
            descriptors = min(self.descriptors() for _ in range(20))
        self.rows.append((time.monotonic() - begin, resident, descriptors))
        print(f"{self.rows[-1][0]:.0f} s, resident {resident / (1 << 20):.1f} MiB, {descriptors} descriptors, {dict(self.counts)}, "
              f"{self.faults} faults", flush=True)

    def descriptors(self):
        time.sleep(0.02)
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def run(self):
        begin, between = time.monotonic(), max(5, min(60, self.seconds / 40))
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.clients)]
        for t in threads:
            t.start()
        while time.monotonic() < begin + self.seconds:
            time.sleep(between)
            self.look(begin)
        with self.pause:
            self.over = True
        for t in threads:
            t.join()

    def verdict(self):
        warm_up = max(self.seconds / 6, min(120, self.seconds / 2), self.rows[0][0])
        warm = [resident for at, resident, _ in self.rows if at <= warm_up]
        last = statistics.median(resident for _, resident, _ in self.rows[-3:])
        open_files = {d for _, _, d in self.rows}
        grown = last / max(warm)
        good = not self.faults and grown <= MOST_GROWTH and len(open_files) == 1 and self.counts["equal"]
        print(f"{'ok' if good else 'FAILED'}: {dict(self.counts)}, {self.faults} faults, memory {max(warm) / (1 << 20):.1f} -> "
              f"{last / (1 << 20):.1f} MiB ({grown:.3f}), descriptors {sorted(open_files)}")
        return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kvrun")
    p.add_argument("--seconds", type=float, default=3600)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--parallel", type=int, default=8)
    p.add_argument("--model", default=MODEL)
    p.add_argument("--device", default="cpu")
    p.add_argument("--csv", metavar="FILE")
    a = p.parse_args()
    template = os.path.join(ROOT, "tests", "serve", "tools.jinja")
    with tempfile.TemporaryDirectory() as folder, \
            Server("--parallel", str(a.parallel), "--queue", "100", "--ctx-size", "1024", "--idle-sessions", "4",
                   "--chat-template", template,
                   "--sessions", os.path.join(folder, "kept"), "--sessions-max", str(max(1, a.clients * 3 // 4)),
                   model=a.model, device=a.device) as s:
        soak = Soak(s, a.clients, a.seconds)
        greeting = len(s.log)  # the server has answered, so all its messages at the start are in the log
        soak.run()
        good = soak.verdict()
        if a.csv:
            with open(a.csv, "w", encoding="utf-8") as f:
                f.write("seconds,resident_bytes,descriptors\n" + "".join(f"{t:.0f},{m},{d}\n" for t, m, d in soak.rows))
        code = s.stop()
        said = s.log[greeting:]
        if code or said:
            print(f"FAILED: exit code {code}, said {b''.join(said[:5])!r}")
    return 0 if good and code == 0 and not said else 1


if __name__ == "__main__":
    sys.exit(main())

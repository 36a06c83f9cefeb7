#!/usr/bin/env python3
"""Conversations on Ray while replicas and a node are killed: chaos_ray.py BUILD [--minutes 3] [--conversations 32]
[--seed 1] [--every SECONDS] [-o FILE.csv]. Needs ray[serve], cffi and numpy; not part of the suite.

Every answer is compared with a single engine's, so one from another's cache is noticed. FILE.csv gets a row per kill:
when, what, after how long there were two replicas again, and turns until then. Exit code 1: an answer was wrong, or a
conversation did not go on.
"""
import argparse
import contextlib
import csv
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.error

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("build")
p.add_argument("--minutes", type=float, default=3)
p.add_argument("--conversations", type=int, default=32)
p.add_argument("--every", type=float, default=20,
               help="seconds between kills, on average, or longer until both replicas are there again [20]")
p.add_argument("--seed", type=int, default=1)
p.add_argument("-o", "--output", metavar="FILE.csv")
a = p.parse_args()
sys.path.insert(0, os.path.join(os.path.abspath(a.build), "python"))
os.environ["PYTHONPATH"] = sys.path[0]

from ray_rig import MINE, MODEL, ask, ray_cluster, serve, servers, start_proxy, user  # noqa: E402

import kvrun  # noqa: E402
import kvrun.ray as kr  # noqa: E402

PATIENCE = 300  # seconds for one turn, over all attempts


class Talk(threading.Thread):
    """One conversation: turns one after the other, each asked again until it is answered."""

    def __init__(self, number, url, until):
        super().__init__(daemon=True)
        self.name, self.url, self.until = f"chat{number}", url, until
        self.said, self.retries, self.cached, self.stuck, self.longest = [], 0, 0, None, 0.0
        self.messages, self.turn = [], 0

    def run(self):
        code = 1000 + int(self.name[4:])
        while time.monotonic() < self.until and not self.stuck:
            self.turn += 1
            if self.turn % 6 == 1:  # the bundled model's context is short
                self.messages = []
            self.messages.append(user(f"The code of Ben is {code + self.turn}. What is the code of Ben?"))
            asked = time.monotonic()
            answer = self.one_turn()
            self.longest = max(self.longest, time.monotonic() - asked)
            if answer is None:
                return
            text = answer["choices"][0]["message"]["content"]
            self.said.append((list(self.messages), text))
            self.cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.messages.append({"role": "assistant", "content": text})

    def one_turn(self):
        body = {"messages": self.messages, "session": self.name, **MINE}
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                return json.loads(ask(self.url, body, timeout=PATIENCE))
            except urllib.error.HTTPError as e:
                why = f"{e.code} {e.read()[:200]!r}"
                if e.code not in (409, 429, 500, 503):
                    break
            except (OSError, ValueError, http.client.HTTPException) as e:
                why = repr(e)
            self.retries += 1
            time.sleep(1)
        self.stuck = f"{self.name}, turn {self.turn}: {why}"
        return None


def main():
    rng, kills = random.Random(a.seed), []
    with ray_cluster(nodes=2) as cluster, tempfile.TemporaryDirectory() as folder:
        url = start_proxy()
        serve.run(kr.build(MODEL, replicas=2, sessions=os.path.join(folder, "chats"), parallel=8, max_queued=64,
                           device="cpu", options=["--chat-template", "chatml"]), name="kvrun", route_prefix="/")
        began = time.monotonic()
        until = began + a.minutes * 60
        talks = [Talk(i, url, until) for i in range(a.conversations)]
        for t in talks:
            t.start()
        following, before = began + rng.uniform(0.5, 1.5) * a.every, set()
        while time.monotonic() < until:
            time.sleep(0.5)
            now, found = time.monotonic(), servers()
            if len(found) < 2:
                continue  # the last one has not been replaced yet
            if kills and kills[-1]["two_again_s"] == "" and set(found) != before:
                kills[-1].update(two_again_s=round(now - began - kills[-1]["at_s"], 1),
                                 turns=sum(len(t.said) for t in talks))
            if now < following or (kills and kills[-1]["two_again_s"] == ""):
                continue
            following = now + rng.uniform(0.5, 1.5) * a.every
            before = set(found)
            what = "node" if len(kills) % 4 == 2 else rng.choice(["server", "replica"])
            if what == "node":
                node = rng.choice([n for n in cluster.worker_nodes])
                cluster.remove_node(node, allow_graceful=False)
                cluster.add_node(num_cpus=2, resources={"vulkan_device": 1}, node_ip_address="127.0.0.1")
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(list(found.items()))[what == "replica"], signal.SIGKILL)
            kills.append({"at_s": round(now - began, 1), "killed": what, "two_again_s": "", "turns": ""})
        for t in talks:
            t.join(PATIENCE + 60)
        seconds = time.monotonic() - began
    with kvrun.Engine(MODEL, device="cpu") as engine:
        wrong = 0
        for t in talks:
            for messages, text in t.said:
                alone = engine.session(chat="chatml").ask(messages, **MINE).text
                if alone != text:
                    wrong += 1
                    print(f"WRONG: {t.name}: {text!r}, alone {alone!r}")
    stuck = [t.stuck or t.name for t in talks if t.stuck or t.is_alive() or not t.said]
    turns = sum(len(t.said) for t in talks)
    nodes = sum(k["killed"] == "node" for k in kills)
    print(f"{a.conversations} conversations, {turns} turns in {seconds:.0f} s, {len(kills) - nodes} replicas and "
          f"{nodes} nodes killed, {sum(t.retries for t in talks)} attempts repeated, longest turn "
          f"{max(t.longest for t in talks):.0f} s, {sum(t.cached for t in talks)} prompt tokens from caches; "
          f"{wrong} wrong answers, {len(stuck)} stuck")
    if a.output:
        with open(a.output, "w", newline="") as f:
            table = csv.DictWriter(f, ["at_s", "killed", "two_again_s", "turns"], lineterminator="\n")
            table.writeheader()
            table.writerows(kills)
    for s in stuck:
        print("STUCK:", s)
    sys.exit(1 if wrong or stuck or not turns else 0)


main()

#!/usr/bin/env python3
"""Simulates replicas behind a router: simulate_routing.py [--record MODEL.gguf] [-o FILE.csv]; needs simpy.

Compares round robin, the least load, and kvrun.ray's cache-aware routing; the last two also with conversations that
move as saved sessions (_move). A replica that has a conversation's cache reads only the new tokens of a turn; another
replica reads the whole conversation, or fetches it from shared storage if that is quicker. A row of the CSV is one
policy at one load.

Service times are assumptions about an 8B model on one GPU (--help lists them); --record measures prompt, step and
restore times of a model on this machine with the kvrun package instead, and says from which storage rate on moving a
conversation is quicker than reading it again.
"""
import argparse
import bisect
import csv
import hashlib
import random
import statistics
import sys
import time
from collections import OrderedDict

import simpy

POLICIES = ["round_robin", "least_loaded", "least_loaded_move", "cache_aware", "cache_aware_move"]
COLUMNS = ["policy", "replicas", "load", "turns", "turns_per_s", "ttft_p50_s", "ttft_p95_s", "read_tokens_per_turn",
           "read_again_share", "moved_gb", "moved_share", "storage_busy", "gateway_busy", "slots_busy"]


class Replica:
    def __init__(self, env, number, a):
        self.number, self.a = number, a
        self.places = simpy.Resource(env, a.parallel)
        self.cache = OrderedDict()  # conversation or prefix -> tokens, the most recently used last
        self.tokens = 0

    def load(self):
        return self.places.count + len(self.places.queue)

    def keep(self, key, tokens):
        self.tokens += tokens - self.cache.pop(key, 0)
        self.cache[key] = tokens
        while self.tokens > self.a.cache_gb * 1e9 / self.a.kv_bytes:
            self.tokens -= self.cache.popitem(last=False)[1]

    def step_seconds(self):
        return self.a.step_s + self.a.row_s * max(0, self.places.count - 1)


class Cluster:
    def __init__(self, env, policy, a, rng):
        self.env, self.policy, self.a, self.rng = env, policy, a, rng
        self.replicas = [Replica(env, i, a) for i in range(a.replicas)]
        self.ring = sorted((self.hash(f"{r.number}:{v}"), r.number) for r in self.replicas for v in range(100))
        self.storage = simpy.Resource(env, a.storage_streams)
        self.answered = {}  # conversation -> replica that answered it last, as remembered by the router
        self.saved = {}  # conversation -> tokens in its file
        self.next = self.warm = 0
        self.ttft, self.read, self.again, self.moved, self.turns = [], 0, 0, 0.0, 0
        self.storage_s = self.gateway_s = self.slot_s = 0.0

    @staticmethod
    def hash(text):
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def on_ring(self, key, n):
        at, found = bisect.bisect(self.ring, (self.hash(key), -1)), []
        while len(found) < n:
            number = self.ring[at % len(self.ring)][1]
            at += 1
            if number not in found:
                found.append(number)
        return [self.replicas[i] for i in found]

    def choose(self, conversation, prefix):
        if self.policy == "round_robin":
            self.next += 1
            return self.replicas[self.next % len(self.replicas)]
        if self.policy.startswith("least_loaded"):
            least = min(r.load() for r in self.replicas)
            return self.rng.choice([r for r in self.replicas if r.load() == least])
        ring = self.on_ring(prefix, 3)
        first = self.answered.get(conversation, ring[0])
        full = self.a.full * self.a.parallel
        if first.load() < full:
            return first
        free = [r for r in ring if r is not first and r.load() < full][:2] or self.replicas
        return min(free, key=lambda r: r.load())

    def turn(self, conversation, prefix, prefix_tokens, history, new, answer):
        """history: tokens before this turn, the prefix included."""
        a, arrived = self.a, self.env.now
        replica = self.choose(conversation, prefix)
        self.answered[conversation] = replica
        self.gateway_s += (a.gateway_request_ms + answer * a.gateway_chunk_ms) / 1e3
        with replica.places.request() as place:
            yield place
            began = self.env.now
            had = replica.cache.get(conversation, 0) or (prefix_tokens if prefix in replica.cache else 0)
            total = max(history, prefix_tokens) + new
            fetch = self.saved.get(conversation, 0)
            fetch_s = a.storage_latency_s + fetch * a.kv_bytes / (a.storage_gbs * 1e9)
            moves = self.policy.endswith("_move") and fetch > had
            if moves and fetch_s * (1 + len(self.storage.queue)) < (fetch - had) / a.prefill_tok_s:
                with self.storage.request() as stream:
                    yield stream
                    yield self.env.timeout(fetch_s)
                    self.storage_s += fetch_s
                    self.moved += fetch * a.kv_bytes
                had = fetch
            read = max(1, total - had)
            yield self.env.timeout(read / a.prefill_tok_s + replica.step_seconds())
            if self.env.now > self.warm:
                self.ttft.append(self.env.now - arrived)
                self.read += read
                self.again += max(0, read - new - (prefix_tokens if history == 0 else 0))
                self.turns += 1
            replica.keep(prefix, prefix_tokens)
            yield self.env.timeout(answer * replica.step_seconds())
            replica.keep(conversation, total + answer)
            if self.policy.endswith("_move"):
                self.saved[conversation] = total + answer
            if self.env.now > self.warm:
                self.slot_s += self.env.now - began
        return total + answer


def conversation(env, cluster, number, a, rng):
    app = min(int(rng.paretovariate(1)) - 1, a.apps - 1)  # a few apps have most requests
    prefix_tokens, history = 500 + 100 * (app % 30), 0
    while True:
        new, answer = 20 + int(rng.expovariate(1 / 180)), 20 + int(rng.expovariate(1 / 200))
        if history + prefix_tokens + new + answer > a.ctx:
            return
        history = yield env.process(cluster.turn(f"c{number}", f"app{app}", prefix_tokens, history, new, answer))
        if rng.random() < 1 / a.turns:
            return
        yield env.timeout(rng.expovariate(1 / a.think_s))


def simulate(policy, load, a):
    env, rng = simpy.Environment(), random.Random(a.seed)
    cluster = Cluster(env, policy, a, random.Random(1))
    cluster.warm = a.seconds / 4
    full_step = a.step_s + a.row_s * (a.parallel - 1)
    per_turn = 220 * full_step + 600 / a.prefill_tok_s  # of a turn whose cache is present
    rate = load * a.replicas * a.parallel / per_turn / a.turns  # conversations per second

    def arrivals():
        number = 0
        while True:
            yield env.timeout(rng.expovariate(rate))
            env.process(conversation(env, cluster, number, a, random.Random(f"{a.seed}-{number}")))
            number += 1

    env.process(arrivals())
    env.run(a.seconds)
    span = a.seconds - cluster.warm
    ttft = statistics.quantiles(cluster.ttft, n=100)
    return {"policy": policy, "replicas": a.replicas, "load": load, "turns": cluster.turns,
            "turns_per_s": round(cluster.turns / span, 2), "ttft_p50_s": round(ttft[49], 3),
            "ttft_p95_s": round(ttft[94], 3), "read_tokens_per_turn": round(cluster.read / cluster.turns, 1),
            "read_again_share": round(cluster.again / cluster.read, 3), "moved_gb": round(cluster.moved / 1e9, 1),
            "moved_share": round(cluster.moved / 1e9 / a.seconds / (a.storage_gbs * a.storage_streams), 4),
            "storage_busy": round(cluster.storage_s / a.seconds / a.storage_streams, 3),
            "gateway_busy": round(cluster.gateway_s / a.seconds, 3),
            "slots_busy": round(cluster.slot_s / span / a.replicas / a.parallel, 3)}


def record(path, a):
    """Prompt, step and restore times of a model on this machine, measured with the kvrun package."""
    import os
    import tempfile

    import kvrun
    longest = a.record_tokens
    with kvrun.Engine(path, device=a.device, max_rows=a.parallel) as engine, tempfile.TemporaryDirectory() as folder:
        text = "Once upon a time there was a little house at the edge of a forest. " * (longest // 8)
        tokens = engine.tokenize(text, bos=True)[:longest]
        restore, read, size = {}, {}, {}
        for n in (len(tokens) // 8, len(tokens)):
            packed = engine.session(kv=a.kv, chat=False)
            start = time.perf_counter()
            packed.prefill(tokens[:n])
            read[n] = time.perf_counter() - start
            file = os.path.join(folder, f"{n}.kv")
            packed.save(file)
            size[n] = os.path.getsize(file)
            times = []
            for _ in range(3):
                start = time.perf_counter()
                engine.restore(file)
                times.append(time.perf_counter() - start)
            restore[n] = min(times)
        few, many = sorted(read)
        a.prefill_tok_s = many / read[many]
        a.kv_bytes = (size[many] - size[few]) / (many - few)
        rate = (size[many] - size[few]) / max(1e-9, restore[many] - restore[few]) / 1e9
        a.storage_latency_s, a.storage_gbs = restore[few], min(a.storage_gbs, rate)
        session = engine.session(kv=a.kv, chat=False)
        session.prefill(tokens[:few])
        forks = [session.fork() for _ in range(a.parallel)]
        steps = {}
        for n in (1, a.parallel):
            start = time.perf_counter()
            for _ in range(8):
                engine.decode(forks[:n], [int(tokens[-1])] * n)
            steps[n] = (time.perf_counter() - start) / 8
        a.step_s, a.row_s = steps[1], max(0.0, (steps[a.parallel] - steps[1]) / max(1, a.parallel - 1))
    print(f"# {a.kv}, {many} tokens: {a.prefill_tok_s:.1f} prompt tokens/s, step {a.step_s * 1e3:.2f} ms + "
          f"{a.row_s * 1e3:.2f} ms a row, {a.kv_bytes:.0f} bytes a token in the file; reading {read[many]:.2f} s, "
          f"restoring {restore[many] * 1e3:.1f} ms, or {restore[few] * 1e3:.1f} ms for {few} tokens; moving is quicker "
          f"above {a.kv_bytes * a.prefill_tok_s / 1e6:.2f} MB/s of storage", file=sys.stderr)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = lambda name, value, text: p.add_argument(name, type=type(value), default=value, help=f"{text} [{value}]")
    add("--replicas", 64, "replicas")
    add("--parallel", 8, "answers at once of each")
    add("--seconds", 600, "simulated time; the first quarter is not counted")
    add("--seed", 1, "of arrivals")
    add("--full", 1.0, "a replica is full with so many answers, in shares of --parallel")
    add("--apps", 32, "kinds of conversations, each with a common beginning of 500 to 3400 tokens")
    add("--turns", 6.0, "of a conversation, on average")
    add("--think-s", 20.0, "seconds between turns, on average")
    add("--ctx", 32768, "most tokens of a conversation")
    add("--prefill-tok-s", 3000.0, "prompt tokens per second of a replica")
    add("--step-s", 0.018, "seconds of a decode step of one answer")
    add("--row-s", 0.001, "seconds that each further answer adds to it")
    add("--kv-bytes", 16384.0, "bytes of a packed token: 0.5 GB for 32k tokens of an 8B model")
    add("--cache-gb", 8.0, "memory for caches of a replica")
    add("--storage-gbs", 1.25, "bytes per second of a stream from shared storage, in GB")
    add("--storage-streams", 8, "streams that it gives at once")
    add("--storage-latency-s", 0.02, "seconds before the first byte")
    add("--gateway-request-ms", 2.0, "of a gateway's processor for a request")
    add("--gateway-chunk-ms", 0.1, "and for each token of a stream")
    p.add_argument("--loads", default="0.5,0.7,0.9", help="shares of what replicas can do [0.5,0.7,0.9]")
    p.add_argument("--record", metavar="MODEL.gguf")
    p.add_argument("--device", default="cpu", help="of --record [cpu]")
    p.add_argument("--kv", default="turbo3/2", help="policy of --record [turbo3/2]")
    add("--record-tokens", 1024, "tokens of the prompt that --record reads")
    p.add_argument("-o", "--output", metavar="FILE.csv")
    a = p.parse_args()
    if a.record:
        record(a.record, a)
    rows = []
    for load in map(float, a.loads.split(",")):
        for policy in POLICIES:
            rows.append(simulate(policy, load, a))
            print(*(f"{k}={v}" for k, v in rows[-1].items()), file=sys.stderr)
    with (open(a.output, "w", newline="") if a.output else sys.stdout) as f:
        table = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


main()

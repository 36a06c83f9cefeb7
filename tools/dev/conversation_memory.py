#!/usr/bin/env python3
"""Measures the resident memory of a server's process per conversation that it keeps.

usage: conversation_memory.py http://127.0.0.1:8080 PID [--conversations 8] [--tokens 8000] [--warm-up 600]

Sends prompts of token IDs with distinct beginnings to /v1/completions, one after the other, and reads the resident set
of process PID after each answer. The server must keep caches of finished prompts (kvrun serve: --idle-sessions;
llama-server: a slot for each, --parallel). A prompt of --warm-up tokens comes first, so that one-time allocations are
done. The growth of the first conversation still includes work space for prompts of that length: the median excludes it.
"""
import argparse, http.client, json, statistics, time, urllib.parse


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


def ask(url, number, tokens, slot):
    body = {"prompt": [(number * 977 + i * 31) % 3000 + 300 for i in range(tokens)], "max_tokens": 1, "temperature": 0,
            "ignore_eos": True}
    if slot is not None:
        body["id_slot"] = slot  # llama-server's; others ignore it
    c = http.client.HTTPConnection(url.hostname, url.port, timeout=7200)
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read()
    if r.status != 200:
        raise SystemExit(f"conversation_memory: {r.status} {text[:200]!r}")
    return json.loads(text)["usage"]["prompt_tokens"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("url")
    p.add_argument("pid", type=int, help="process of the server")
    p.add_argument("--conversations", type=int, default=8)
    p.add_argument("--tokens", type=int, default=8000, help="of each")
    p.add_argument("--warm-up", type=int, default=600, help="tokens of the prompt before them")
    args = p.parse_args()
    url = urllib.parse.urlsplit(args.url)
    print(f"after the load: {resident_mib(args.pid):.2f} MiB", flush=True)
    ask(url, 1000, args.warm_up, 0)
    before = resident_mib(args.pid)
    print(f"after a prompt of {args.warm_up} tokens: {before:.2f} MiB", flush=True)
    print("| conversation | tokens | seconds | resident, MiB | growth, MiB |\n|---:|---:|---:|---:|---:|", flush=True)
    grown = []
    for i in range(args.conversations):
        start = time.monotonic()
        tokens = ask(url, i, args.tokens, i)
        now = resident_mib(args.pid)
        grown.append(now - before)
        before = now
        print(f"| {i + 1} | {tokens} | {time.monotonic() - start:.0f} | {now:.2f} | {grown[-1]:.2f} |", flush=True)
    print(f"median growth without the first: {statistics.median(grown[1:] or grown):.2f} MiB, most {max(grown[1:] or grown):.2f}")


main()

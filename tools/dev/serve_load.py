#!/usr/bin/env python3
"""Loads a server that speaks OpenAI's API with clients at once and prints tokens per second and times to the first token.

usage: serve_load.py http://127.0.0.1:8080 [--clients 1,8] [--requests 2] [--prompt 64] [--tokens 64] [--key KEY]

Each client sends its requests one after the other, each with a prompt of its own, so that nothing is reused.
"""
import argparse, http.client, json, statistics, threading, time, urllib.parse


def one(url, args, number, out):
    """Appends (tokens, seconds to the first, seconds) of one streamed completion, or an error."""
    prompt = f"{number} " + " ".join(f"word{(number * 31 + i * 7) % 97}" for i in range(args.prompt // 3))
    body = {"prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    headers = {"Content-Type": "application/json"}
    if args.key:
        headers["Authorization"] = "Bearer " + args.key
    try:
        c = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
        start, first, tokens = time.monotonic(), None, 0
        c.request("POST", "/v1/completions", json.dumps(body), headers)
        r = c.getresponse()
        if r.status != 200:
            raise RuntimeError(f"{r.status} {r.read(200)!r}")
        for line in r:
            if line.startswith(b"data: {"):
                first = first or time.monotonic()
                tokens = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", tokens)
        out.append((tokens, first - start, time.monotonic() - start))
    except Exception as e:
        out.append(e)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("url")
    p.add_argument("--clients", default="1,8")
    p.add_argument("--requests", type=int, default=2, help="of each client")
    p.add_argument("--prompt", type=int, default=64, help="tokens of a prompt, roughly")
    p.add_argument("--tokens", type=int, default=64, help="of an answer")
    p.add_argument("--key", default="")
    args = p.parse_args()
    url = urllib.parse.urlsplit(args.url)
    print("| clients | tokens | seconds | tok/s | of the first row | first token, median s | errors |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    base, number = None, int(time.time()) % 100000 * 1000
    for n in map(int, args.clients.split(",")):
        found, threads = [], []

        def client(begin):
            for i in range(args.requests):
                one(url, args, begin + i, found)

        start = time.monotonic()
        for i in range(n):
            number += args.requests
            threads.append(threading.Thread(target=client, args=(number,)))
            threads[-1].start()
        for t in threads:
            t.join()
        seconds = time.monotonic() - start
        good = [f for f in found if isinstance(f, tuple)]
        bad = [f for f in found if not isinstance(f, tuple)]
        tokens = sum(g[0] for g in good)
        rate = tokens / seconds
        base = base or rate
        first = f"{statistics.median(g[1] for g in good):.2f}" if good else "-"
        print(f"| {n} | {tokens} | {seconds:.1f} | {rate:.1f} | {rate / base if base else 0:.2f} | {first} | {len(bad)} |")
        for e in bad[:3]:
            print("error:", e)


main()

#!/usr/bin/env python3
"""Loads a server with OpenAI's API by concurrent clients; prints tokens per second and times to the first token.

usage: serve_load.py http://127.0.0.1:8080 [--clients 1,8] [--requests 2] [--prompt 64] [--tokens 64] [--key KEY]
                     [--body JSON] [--interfere 4000]

Each client sends its requests one after the other, with distinct prompts, so that nothing is reused.
"""
import argparse, http.client, json, statistics, threading, time, urllib.parse


def words(number, n):
    return f"{number} " + " ".join(f"word{(number * 31 + i * 7) % 97}" for i in range(max(1, n // 3)))


def stream(url, args, prompt, tokens, stamps=None, leave=None):
    """(tokens, prompt tokens, seconds to the first token, seconds) of one streamed completion. `stamps` gets the time
    of each piece of its text; `leave` is an event that ends it early."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    body.update(json.loads(args.body))
    headers = {"Content-Type": "application/json"}
    if args.key:
        headers["Authorization"] = "Bearer " + args.key
    c = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    start, first, usage = time.monotonic(), None, {}
    c.request("POST", "/v1/completions", json.dumps(body), headers)
    r = c.getresponse()
    if r.status != 200:
        raise RuntimeError(f"{r.status} {r.read(200)!r}")
    for line in r:
        if line.startswith(b"data: {"):
            now = time.monotonic()
            first = first or now
            if stamps is not None:
                stamps.append(now)
            usage = json.loads(line[6:]).get("usage") or usage
        if leave and leave.is_set():
            break
    c.close()
    return usage.get("completion_tokens", 0), usage.get("prompt_tokens", 0), first - start, time.monotonic() - start


def one(url, args, number, out):
    """Appends (tokens, seconds to the first token, seconds) of one streamed completion, or an error."""
    try:
        tokens, _, first, seconds = stream(url, args, words(number, args.prompt), args.tokens)
        out.append((tokens, first, seconds))
    except Exception as e:
        out.append(e)


def interfere(url, args):
    """Delay that a long prompt causes for an active answer and for a short request."""
    stamps, leave, long, number = [], threading.Event(), [], int(time.time())
    answer = threading.Thread(target=lambda: stream(url, args, words(number, 16), 100000, stamps, leave))
    answer.start()
    while len(stamps) < 80:
        time.sleep(0.01)
    step = statistics.median(b - a for a, b in zip(stamps[20:], stamps[21:]))
    begin = time.monotonic()
    reader = threading.Thread(target=lambda: long.append(stream(url, args, words(number + 1, args.interfere), 1)))
    reader.start()
    time.sleep(0.2)
    short = stream(url, args, "Hello", 1)
    reader.join()
    end = begin + long[0][2]
    while stamps[-1] < end and answer.is_alive():
        time.sleep(0.01)
    leave.set()
    answer.join()
    gaps = [b - a for a, b in zip(stamps, stamps[1:]) if begin < b and a < end]
    rows = [("prompt, tokens", long[0][1]), ("its first token, s", f"{long[0][2]:.2f}"),
            ("a step without it, ms", f"{step * 1e3:.1f}"),
            ("gaps while it is read, median ms", f"{statistics.median(gaps) * 1e3:.1f}"),
            ("in steps", f"{statistics.median(gaps) / step:.2f}"), ("longest gap, ms", f"{max(gaps) * 1e3:.1f}"),
            ("in steps", f"{max(gaps) / step:.2f}"), ("short request: first token, ms", f"{short[2] * 1e3:.1f}"),
            ("in steps with the prompt", f"{short[2] / statistics.median(gaps):.2f}")]
    print("| " + " | ".join(n for n, _ in rows) + " |\n|" + "---:|" * len(rows))
    print("| " + " | ".join(str(v) for _, v in rows) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("url")
    p.add_argument("--clients", default="1,8")
    p.add_argument("--requests", type=int, default=2, help="of each client")
    p.add_argument("--prompt", type=int, default=64, help="tokens of a prompt, roughly")
    p.add_argument("--tokens", type=int, default=64, help="of an answer")
    p.add_argument("--key", default="")
    p.add_argument("--body", default="{}", help="fields of each request beyond these, as JSON")
    p.add_argument("--interfere", type=int, default=0, metavar="N",
                   help="instead: what others notice of a prompt of N tokens, roughly, that is read meanwhile")
    args = p.parse_args()
    url = urllib.parse.urlsplit(args.url)
    if args.interfere:
        return interfere(url, args)
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

#!/usr/bin/env python3
"""kvrun serve as clients expect it: names of models, ids of requests, penalties, several prompts, keep-alive comments,
embeddings, a model that is unloaded and loaded again. Usage: test_serve_contract.py KVRUN."""
import base64, json, math, os, struct, subprocess, sys
from serving import MODEL, TINY, Server, check, equal, finish, until

CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "Hello"}]
PLAIN = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "ignore_eos": True, "cache_prompt": False}


def names(s):
    created = int(os.stat(MODEL).st_mtime)
    for path in ("/v1/models/recall-4m-f16", "/v1/models/anything/at:all"):
        one = s.get(path).json()
        equal(path, (one["id"], one["object"], one["created"], one["meta"]["loaded"]),
              ("recall-4m-f16", "model", created, True))
    equal("in the list", s.get("/v1/models").json()["data"], [one])
    for body in ({**PLAIN, "model": "gpt-5"}, PLAIN):
        equal("the model that answers", s.post(COMPLETION, body).json()["model"], "recall-4m-f16")
    events = s.post(CHAT, {"messages": HELLO, "model": "x", "max_tokens": 2, "stream": True}).events()
    equal("in a stream", {e["model"] for e in events}, {"recall-4m-f16"})
    with Server("--strict-model", "--alias", "us", model=TINY) as strict:
        r = strict.post(COMPLETION, {"prompt": "a", "model": "gpt-5"})
        check("--strict-model", r.status == 404 and r.json()["error"]["code"] == "model_not_found" and
              "'us'" in r.error(), r.body)
        equal("its own", strict.post(COMPLETION, {"prompt": "a", "model": "us", "max_tokens": 1}).status, 200)
        equal("another's path", (strict.get("/v1/models/x").status, strict.get("/v1/models/us").status), (404, 200))


def request_ids(s):
    for status, ask in ((200, lambda **h: s.get("/health", **h)), (404, lambda **h: s.get("/nothing", **h)),
                        (400, lambda **h: s.post(COMPLETION, {}, **h)),
                        (200, lambda **h: s.post(COMPLETION, {**PLAIN, "stream": True}, **h))):
        r = ask(**{"X-Request-Id": "a-b.c/1"})
        equal(f"the client's id, status {status}", (r.status, r.headers["X-Request-Id"]), (status, "a-b.c/1"))
    made = [s.get("/health").headers["X-Request-Id"] for _ in range(3)]
    check("one is made", len(set(made)) == 3 and all(m.startswith("req_") and len(m) == 28 for m in made), made)
    for bad in ("x" * 129, "a b", "\xe9"):
        given = s.get("/health", **{"X-Request-Id": bad}).headers["X-Request-Id"]
        check("none that is no good", given.startswith("req_"), given)
    with Server("--log", model=TINY) as logs:
        logs.get("/health", **{"X-Request-Id": "find-me"})
        equal("it ends", logs.stop(), 0)
        check("it is in the log", b" id=find-me\n" in b"".join(logs.log), logs.log)


def preflight():
    asked = "authorization,content-type, X-Stainless-OS, x-stainless-retry-count,X-API-Key,anthropic-version,cookie,x-evil"
    with Server("--cors", "*", model=TINY) as s:
        r = s.ask("OPTIONS", CHAT, headers={"Origin": "http://a.example", "Access-Control-Request-Headers": asked})
        allowed = r.headers["Access-Control-Allow-Headers"].split(", ")
        equal("headers that pages may send", (r.status, allowed),
              (204, ["authorization", "content-type", "x-stainless-os",
              "x-stainless-retry-count", "x-api-key", "anthropic-version"]))
        r = s.get("/health", Origin="http://a.example")
        check("a page may read the id", "x-request-id" in r.headers["Access-Control-Expose-Headers"])


def prefixed():
    with Server("--api-prefix", "/a/kv/") as s:
        for path, status in (("/a/kv/health", 200), ("/a/kv/v1/models?x=1", 200), ("/a/kv", 200), ("/a/kv/", 200),
                             ("/health", 404), ("/a/kvx/health", 404), ("/", 404), ("/a/kv/a/kv/health", 404)):
            equal(f"{path} below a prefix", s.get(path).status, status)
        equal("an answer", s.post("/a/kv" + COMPLETION, PLAIN).status, 200)
        check("the page asks there", b"location.pathname" in s.get("/a/kv/").body)
        rest = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        r = s.raw(b"GET http://127.0.0.1/a/kv/health" + rest)
        check("a whole address", r.startswith(b"HTTP/1.1 200"), r)
        r = s.raw(b"POST /a/kv/tokenize" + rest)
        check("an empty body", b"the body is empty, expected a JSON object" in r, r)
    r = subprocess.run([sys.argv[1], "serve", TINY, "--api-prefix", "kv"], capture_output=True, text=True)
    check("no path", r.returncode == 2 and "--api-prefix kv is no path like /kvrun" in r.stderr, r)


def choosing(s):
    plain = s.post(COMPLETION, PLAIN).json()["choices"][0]["text"]
    first = s.post(COMPLETION, {**PLAIN, "max_tokens": 1, "logprobs": 2}).json()["choices"][0]["logprobs"]
    tokens = s.post("/tokenize", {"content": first["tokens"][0]}).json()["tokens"]
    rare = s.post("/tokenize", {"content": "z"}).json()["tokens"][-1]
    r = s.post(COMPLETION, {**PLAIN, "logit_bias": {str(tokens[-1]): -100}})
    check("a token that is ruled out", r.status == 200 and
          not r.json()["choices"][0]["text"].startswith(first["tokens"][0]), r.body)
    dry = {**PLAIN, "prompt": "red blue green red blue green red blue", "dry_multiplier": 100, "dry_allowed_length": 1}
    texts = [s.post(COMPLETION, {**dry, **more}).json()["choices"][0]["text"]
             for more in ({}, {"dry_multiplier": 0}, {"dry_sequence_breakers": [" "]}, {"dry_penalty_last_n": 0})]
    check("DRY keeps the text from going on as before", texts[0] != texts[1] == texts[3], texts)
    check("unless each word ends a repetition", texts[2] != texts[0], texts)
    likely = {**PLAIN, "temperature": 1.5, "seed": 3, "max_tokens": 24, "top_k": 0, "top_p": 1, "min_p": 0}
    chosen = {json.dumps(more): s.post(COMPLETION, {**likely, **more}).json()["choices"][0]["text"]
              for more in ({}, {"xtc_probability": 1, "xtc_threshold": 0.02}, {"typical_p": 0.2}, {"top_n_sigma": 0.1},
                           {"dynatemp_range": 1.5, "dynatemp_exponent": 0.1}, {"mirostat": 2, "mirostat_tau": 0.5},
                           {"adaptive_target": 0.05}, {"top_p": 0}, {"top_p": 0, "min_keep": 40})}
    check("samplers choose other tokens", len(set(chosen.values())) == len(chosen), chosen)
    r = s.post(COMPLETION, {**PLAIN, "logit_bias": {str(rare): 100}}).json()
    text = s.post("/detokenize", {"tokens": [rare] * 12}).json()["content"]
    equal("a token that is forced", r["choices"][0]["text"].strip(), text.strip())
    r = s.post(COMPLETION, {**PLAIN, "logit_bias": {str(rare): 100}, "frequency_penalty": 2, "max_tokens": 120}).json()
    check("until it is said too often", "z" in r["choices"][0]["text"] and
          r["choices"][0]["text"].strip() != text.strip(), r)
    changed = s.post(COMPLETION, {**PLAIN, "presence_penalty": 2, "max_tokens": 60}).json()["choices"][0]["text"]
    longer = s.post(COMPLETION, {**PLAIN, "max_tokens": 60}).json()["choices"][0]["text"]
    check("penalties change what is said", longer.startswith(plain) and changed != longer, (changed, longer))


def prompts(s):
    texts = ["Once upon a time", "The code of Anna is", "A house"]
    hot = {**PLAIN, "temperature": 2, "seed": 5}
    alone = [s.post(COMPLETION, {**hot, "prompt": t, "n": 2}).json() for t in texts]
    want = [c["text"] for a in alone for c in a["choices"]]
    ids = [s.post("/tokenize", {"content": t, "add_special": True}).json()["tokens"] for t in texts]
    for what, prompt in (("texts", texts), ("tokens", ids), ("both", [texts[0], ids[1], texts[2]])):
        r = s.post(COMPLETION, {**hot, "prompt": prompt, "n": 2}).json()
        equal(f"several prompts, {what}", [c["text"] for c in r["choices"]], want)
        equal("their numbers", [c["index"] for c in r["choices"]], list(range(6)))
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            equal(f"their {name}", r["usage"][name], sum(a["usage"][name] for a in alone))
    streamed = [""] * 6
    for e in s.post(COMPLETION, {**hot, "prompt": texts, "n": 2, "stream": True}).events():
        for c in e["choices"]:
            streamed[c["index"]] += c["text"]
    equal("in a stream", streamed, want)
    equal("one of them is too long",
          s.post(COMPLETION, {**hot, "prompt": ["a", "word " * 5000]}).json()["error"]["code"],
          "context_length_exceeded")
    r = s.post(COMPLETION, {**hot, "prompt": ["a"] * 37})
    check("more than the queue holds", r.status == 400 and "at most 36" in r.error(), r.body)


def pings():
    """Comments in a stream while its prompt is read"""
    with Server("--ping", "0", "-ub", "32", "-c", "700") as s:
        whole = s.post(COMPLETION, {**PLAIN, "prompt": "word " * 150, "max_tokens": -1}).json()
        equal("max_tokens -1: until the context is full",
              (whole["choices"][0]["finish_reason"], whole["usage"]["total_tokens"] >= 700), ("length", True))
        body = s.post(COMPLETION, {**PLAIN, "prompt": "word " * 150, "stream": True}).body.decode()
        comments = [e for e in body.split("\n\n") if e.startswith(": prompt ")]
        check("they say how far it is", comments and all(" % read" in c for c in comments), body[:200])
        shares = [int(c.split()[2]) for c in comments]
        check("further and further", shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 100, shares)
        check("before the answer", body.index(comments[-1]) < body.index("data: "), body[:300])
    with Server("--ping", "1000", "-ub", "32") as s:
        check("none where it is read at once", "\n: " not in "\n" +
              s.post(COMPLETION, {**PLAIN, "prompt": "word " * 150, "stream": True}).body.decode())


def length_of(v):
    return math.sqrt(sum(x * x for x in v))


def embeddings(s):
    one = s.post(EMBEDDINGS, {"input": "The code of Anna is 4711.", "model": "any"}).json()
    v = one["data"][0]["embedding"]
    dim = s.get("/v1/models").json()["data"][0]["meta"]["n_embd"]
    equal("one text", (one["object"], one["model"], len(one["data"]), one["data"][0]["object"], len(v)),
          ("list", "recall-4m-f16", 1, "embedding", dim))
    check("a vector of length 1", abs(length_of(v) - 1) < 1e-5, length_of(v))
    texts = ["The code of Anna is 4711.", "A house", "x"]
    ids = [s.post("/tokenize", {"content": t, "add_special": True}).json()["tokens"] for t in texts]
    many = s.post(EMBEDDINGS, {"input": texts}).json()
    equal("several texts", [d["index"] for d in many["data"]], [0, 1, 2])
    equal("the first is what it is alone", many["data"][0]["embedding"], v)
    equal("usage", many["usage"], {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))})
    equal("of tokens", s.post(EMBEDDINGS, {"input": ids}).json()["data"], many["data"])
    equal("of one text's tokens", s.post(EMBEDDINGS, {"input": ids[1]}).json()["data"][0]["embedding"],
          many["data"][1]["embedding"])
    packed = s.post(EMBEDDINGS, {"input": texts, "encoding_format": "base64", "dimensions": dim}).json()["data"]
    for p, m in zip(packed, many["data"]):
        equal("base64", list(struct.unpack(f"<{dim}f", base64.b64decode(p["embedding"]))),
              [struct.unpack("f", struct.pack("f", x))[0] for x in m["embedding"]])
    check("different texts are different", sum(a * b for a, b in zip(v, many["data"][1]["embedding"])) < 0.999)
    for what, body, param in (("nothing", {}, "input"), ("an empty list", {"input": []}, "input"),
                              ("a number", {"input": 5}, "input"),
                              ("a wrong format", {"input": "x", "encoding_format": "int8"}, "encoding_format"),
                              ("no dimensions", {"input": "x", "dimensions": 0}, "dimensions"),
                              ("more dimensions", {"input": "x", "dimensions": dim + 1}, "dimensions"),
                              ("too many", {"input": ["x"] * 2049}, "input"),
                              ("a token that is none", {"input": [[10**6]]}, "input")):
        r = s.post(EMBEDDINGS, body)
        equal(f"embeddings of {what}", (r.status, r.json()["error"]["param"]), (400, param))
    equal("too long", s.post(EMBEDDINGS, {"input": "word " * 5000}).json()["error"]["code"], "context_length_exceeded")
    with Server("--kv-budget", "1M", "--ctx-size", "512") as tight:  # idle sessions are dropped
        for i in range(4):
            tight.post(COMPLETION, {**PLAIN, "prompt": f"{i} " * 60, "cache_prompt": True})
        equal("where the cache is full", tight.post(EMBEDDINGS, {"input": "word " * 100}).status, 200)


def starts():
    """Messages of a server before the first request"""
    for template in ((), ("--chat-template", "chatml")):
        with Server("-np", "3", "--kv", "kivi2", "--kv-budget", "8M", *template) as s:
            equal("it ends", s.stop(), 0)
            said = b"".join(s.log).decode()
        for part in ("model recall-4m-f16: llama, weights of ", "running on a CPU device: ", "context of ",
                     "3 answers at once", "policy kivi2", "8.0 MiB for all caches"):
            check(f"it says {part!r}", part in said, said)
        equal("no template: a warning", "no chat template" in said, not template)


def resident(s):
    with open(f"/proc/{s.process.pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS:"))


def unloading():
    """The model is unloaded after a time without requests, and loaded for the next one"""
    model = "synth:llama-3.1-8b,layers=4,dim=512,hidden=2048,vocab=8192:f16"
    with Server("--idle-unload", "0.005", "--chat-template", "chatml", "-c", "512", model=model) as s:
        weights = s.get("/v1/models").json()["data"][0]["meta"]["weight_bytes"]
        state = lambda: s.get("/health").json()["model"]
        check("it leaves before the first request", until(lambda: state() == "unloaded"))
        want = None
        for _ in range(2):
            r = s.post(COMPLETION, {**PLAIN, "max_tokens": 4})
            equal("the next request is answered", r.status, 200)
            want = want or r.json()["choices"][0]["text"]
            equal("as before", r.json()["choices"][0]["text"], want)
            full = resident(s)
            check("it leaves", until(lambda: state() == "unloaded"))
            check("its memory is free", until(lambda: resident(s) < full - weights // 2), (full, resident(s), weights))
            one = s.get("/v1/models").json()["data"][0]
            equal("/v1/models says so", (one["meta"]["loaded"], one["meta"]["weight_bytes"]), (False, weights))
            equal("no cache is left", (s.metric("kvrun_kv_used_bytes"), s.metric("kvrun_sessions_idle")), (0, 0))
            equal("what needs no model does not load it", state(), "unloaded")
        for path, body in (("/tokenize", {"content": "a b"}), (CHAT, {"messages": HELLO, "max_tokens": 2}),
                           (EMBEDDINGS, {"input": "a"})):
            equal(f"{path} loads it", s.post(path, body).status, 200)
            check("and it leaves again", until(lambda: state() == "unloaded"))
        equal("it ends", s.stop(), 0)
    with Server("--idle-unload", "0.001", "--ctx-size", "100000") as s:
        events = s.post(COMPLETION, {**PLAIN, "max_tokens": 400, "stream": True}).events()
        equal("never while it answers", events[-1]["choices"][0]["finish_reason"], "length")
    with Server(model=TINY) as s:
        equal("never, unless asked for", s.get("/health").json()["model"], "loaded")


def main():
    with Server("--chat-template", "chatml") as s:
        for part in (names, request_ids, choosing, prompts, embeddings):
            part(s)
            check(f"the server goes on after {part.__name__}", s.alive())
        equal("it ends", s.stop(), 0)
    for part in (preflight, prefixed, pings, starts, unloading):
        part()
    finish()


main()

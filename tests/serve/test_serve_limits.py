#!/usr/bin/env python3
"""kvrun serve with requests that are wrong, too large, too slow or not allowed: each gets its status, and the server
continues. Usage: test_serve_limits.py KVRUN."""
import contextlib, json, os, re, socket, subprocess, sys, tempfile
from serving import MODEL, SLOW, TINY, Server, at_once, check, equal, finish, posix, until

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def status_of(raw):
    return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/1.1 ") else raw[:60]


def malformed_http(s):
    """T50 bytes that are not HTTP, and limits of its header"""
    ok = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    rows = [
        ("garbage", b"\x00\x01\x02 what\r\n\r\n", 400),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        ("another version", b"GET /health HTTP/9.9\r\n\r\n", 400),
        ("a header without a colon", b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n", 400),
        ("a negative length", b"POST /tokenize HTTP/1.1\r\nContent-Length: -2\r\n\r\n", 400),
        ("a length that is none", b"POST /tokenize HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400),
        ("two lengths", b"POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        ("a length and chunks",
         b"POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("a bad chunk", b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nxx\r\n0\r\n\r\n", 400),
        ("a long path", b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", 431),
        ("a long header", b"GET /health HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431),
        ("many headers", b"GET /health HTTP/1.1\r\n" + b"X: 1\r\n" * 200000 + b"\r\n", 431),
        ("a long length", b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        ("two hosts", b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        ("another encoding", b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
        ("two encodings", b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        ("a length beyond 64 bits", b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
    ]
    for what, data, status in rows:
        out = s.raw(data, seconds=20)
        equal(f"{what}: status", status_of(out), status)
        check(f"{what}: an error object", b'{"error":{"message":' in out, out[-200:])
        equal(f"{what}: the server goes on",
              status_of(s.raw(ok.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))), 200)
    for what, rest, status, kind in (
            ("a long length", b"Content-Length: 99999999999\r\n\r\n", 413, "request_too_large"),
            ("chunks", b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b" " * (1 << 20) + b"\r\n") * 10, 413,
             "request_too_large"),
            ("another encoding", b"Transfer-Encoding: xchunked\r\n\r\n", 501, "api_error")):
        out = s.raw(b"POST /v1/messages HTTP/1.1\r\n" + rest, seconds=20)
        if what == "chunks" and not out:
            continue  # the connection was reset while they were sent
        equal(f"the Messages API, {what}: status", status_of(out), status)
        e = json.loads(out.split(b"\r\n\r\n", 1)[1])
        equal(f"the Messages API, {what}: its form", (e.get("type"), e["error"]["type"]), ("error", kind))
    out = s.raw(ok + ok + ok.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    equal("three requests in one piece", out.count(b"HTTP/1.1 200 OK"), 3)
    out = s.raw(b"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 15\r\n\r\n{\"content\": \"\"}")
    check("Expect: 100-continue", out.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"), out)
    out = s.raw(b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nf\r\n{\"content\": \"\"}\r\n0\r\n\r\n")
    equal("a body in chunks", status_of(out), 200)


def malformed_json(s):
    """T51, T52 bodies that are not JSON, too deep or too long"""
    deep = "[" * 65
    rows = [
        ("nothing", ""), ("no JSON", "{"), ("two values", "{}{}"), ("an array", "[]"), ("NaN", '{"content": NaN}'),
        ("a lone surrogate", r'{"content": "\ud800"}'), ("bytes that are not UTF-8", b'{"content": "\xff"}'),
        ("a number that is too large", '{"content": 1e999}'), ("deep", '{"content": ' + "[" * 64 + "]" * 64 + "}"),
        ("very deep", "[" * 100000), ("very deep objects", '{"a":' * 100000), ("65 arrays", deep),
    ]
    for what, body in rows:
        r = s.post("/tokenize", body)
        check(f"JSON, {what}", r.status == 400 and r.error(), (r.status, r.body[:200]))
        equal(f"JSON, {what}: is its depth named", "deeper than 64" in (r.error() or ""), "deep" in what or
              what == "65 arrays")
    check("as deep as may be", s.post("/tokenize", '{"content": "x", "y": ' + "[" * 63 + "]" * 63 + "}").status == 200)
    equal("the last of two keys", s.post("/tokenize", '{"content": 1, "content": ""}').status, 200)
    equal("a zero byte", s.post("/detokenize", s.post("/tokenize", {"content": "a\0b"}).body).status, 200)
    big = s.post("/tokenize", json.dumps({"content": "x " * (5 << 20)}))
    check("a body of 10 MiB", big.status == 413 and big.error(), big.body[:200])
    big = s.raw(b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" +
                (b"100000\r\n" + b" " * (1 << 20) + b"\r\n") * 10)
    check("10 MiB in chunks", not big or status_of(big) == 413, big[:200])
    check("a text of 2 MiB", s.post("/tokenize", {"content": "x" * (2 << 20)}).status == 400)
    r = s.post(COMPLETION, {"prompt": "word " * (1 << 20)})
    check("a prompt that is longer than the context",
          r.status == 400 and r.json()["error"]["code"] == "context_length_exceeded", r.body[:300])


def heavy_json(s):
    """T51, T52 long bodies with many values or keys take time in proportion to their length"""
    n, x = (8 << 20) - 100, '{"x":[%s]}'
    many = lambda one: x % (one * (n // len(one)))[:-1]
    keys = lambda n: ",".join('"%x":0' % i for i in range(n))
    grown = "[" + "0," * 300000 + "0]"
    for _ in range(50):  # the contents of an object must not be copied as it grows
        grown = '{"z":%s,%s}' % (grown, keys(130))
    rows = [
        ("objects", many("{},"), 400), ("objects in objects", many('{"a":{"a":{}}},'), 400),
        ("arrays", many("[],"), 400),
        ("keys", "{%s}" % keys(700000), 400), ("one key", "{%s}" % ('"a":0,' * (n // 6))[:-1], 400),
        ("numbers", many("0.12345678901234567e-3,"), 400),
        ("a long number", x % ("0." + "1" * n), 400), ("escapes", x % ('"' + "\\u00e9" * (n // 6) + '"'), 400),
        ("texts", many('"aaaaaaa",'), 400),
        ("as many keys as may be", '{"content":"",%s}' % keys(65535), 200),
        ("objects that grow", '{"content":"","x":%s}' % grown, 200),
    ]
    for what, body, status in rows:
        before = s.cpu()
        r = s.post("/tokenize", body)
        took = s.cpu() - before
        equal(f"{what}, {len(body)} bytes: status", r.status, status)
        check(f"{what}, {len(body)} bytes: processor time", took < 3,
              took)  # 0.2 s here; minutes if not linear
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{%s}" % keys(60000)}}]
    for what, message, status in (("arguments too long for the context", {"content": "x", "tool_calls": calls}, 400),
                                  ("a message", {"content": "x", "x": json.loads(grown)}, 200)):
        before = s.cpu()
        equal(what, s.post(CHAT, {"messages": [{"role": "assistant", **message}], "max_tokens": 1}).status, status)
        check(f"{what}: processor time", s.cpu() - before < 5, s.cpu() - before)
    r = s.post(COMPLETION, {"prompt": "word " * (n // 5)})
    check("a prompt that no context holds", r.status == 400 and r.json()["error"]["code"] == "context_length_exceeded",
          r.body[:300])
    r = s.post(COMPLETION, {"prompt": [1] * 40000})
    check("the words that agents know", re.search("prompt is too long: 40000 tokens > [0-9]+ maximum; this model's "
                                                  "maximum context length is [0-9]+ tokens ", r.error()), r.body[:300])


def bad_fields(s):
    """T40, T53 fields of the wrong type, out of range or not supported are refused by name"""
    good = {"messages": HELLO, "max_tokens": 1}
    rows = [
        ("messages", []), ("messages", "Hello"), ("messages", [1]), ("messages", [{"content": "x"}]),
        ("messages", [{"role": "king", "content": "x"}]), ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
        ("temperature", "hot"), ("temperature", 1e9), ("temperature", True), ("top_p", 1.5),
        ("top_p", -0.1),
        ("max_tokens", -2), ("max_tokens", 1.5), ("max_tokens", 1 << 64),
        ("max_completion_tokens", "all"),
        ("seed", 1.5), ("seed", 1 << 64), ("seed", "x"), ("n", 129), ("n", 0), ("n", 1 << 62), ("stop", 5),
        ("stop", ["a\0b"]), ("stop", ["x"] * 65), ("stop", "x" * 2000), ("stream", "yes"),
        ("kv", "nonsense"), ("kv", ""), ("kv", 7), ("kv", "x" * 300), ("kv", "kivi2\0"), ("kv", "kivi2,group=-1"),
        ("top_k", -2),
        ("repeat_penalty", 0), ("frequency_penalty", 2.5), ("presence_penalty", "x"), ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", {"4000000000": 1}), ("logit_bias", {"99999": 1}), ("logit_bias", [1]),
        ("nonsense", 1), ("n_discard", -5), ("logprobs", 5), ("top_logprobs", 2), ("session", "a"),
        ("session", 3),
        ("response_format", {"type": "json_schema", "json_schema": {}}), ("response_format", "json_object"),
        ("tools", {}), ("tools", [{}]), ("tool_choice", "required"),
        ("chat_template_kwargs", "x"), ("cache_prompt", 1), ("function_call", "f"), ("grammar", "root ::= x"),
        ("json_schema", {"not": {}}), ("json_schema", "{"), ("n_predict", "x"), ("parallel_tool_calls", "no"),
        ("modalities", ["audio"]),
        ("guided_json", {"type": "x"}), ("tool_choice", "any"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("repetition_penalty", 0),
        ("typical_p", 1.5), ("top_n_sigma", -2), ("xtc_probability", "x"), ("xtc_threshold", 2), ("dynatemp_range", -1),
        ("mirostat", 3), ("mirostat_tau", -1), ("adaptive_target", 2), ("dry_base", 0.5), ("dry_allowed_length", 1.5),
        ("dry_penalty_last_n", -2), ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", 5), ("dry_sequence_breakers", ["a"] * 65),
    ]
    for name, value in rows:
        r = s.post(CHAT, {**good, name: value})
        what = f"{name} is {str(value)[:60]!r}"
        check(what, r.status == 400 and r.error() and r.json()["error"]["param"] == name, (r.status, r.body[:300]))
    r = s.post(CHAT, {**good, "stream": True, "stream_options": {"nonsense": 1}})
    check("a field inside of another", r.status == 400 and r.json()["error"]["param"] == "stream_options.nonsense",
          r.body)
    nulls = {k: None for k in ("temperature", "stop", "n", "seed", "tools", "stream", "response_format", "logit_bias")}
    equal("null and unknown fields", s.post(CHAT, {**good, **nulls, "user": "me", "metadata": {}, "nonsense": None,
                                                   "mirostat": 0,
                                                          "parallel_tool_calls": True, "logit_bias": {}}).status, 200)
    for stop in ("", [""], ["", ""]):
        r = s.post(CHAT, {**good, "stop": stop})
        equal(f"stop {stop} is none", (r.status, r.json()["choices"][0]["finish_reason"]), (200, "length"))
    for prompt in (None, 5, [], [1.5], [-1], [10**9], [[]], ["x"] * 129, ["x"] * 37, {}, ""):
        r = s.post(COMPLETION, {"prompt": prompt, "max_tokens": 1})
        # a text without tokens gets the token that begins a text
        check(f"prompt {prompt!r}", (r.status == 400 and r.error()) or (prompt == "" and r.status == 200),
              (r.status, r.body))
    for name, value in (("best_of", 2), ("logprobs", 21), ("suffix", "end")):
        equal(f"completion with {name}", s.post(COMPLETION, {"prompt": "x", name: value}).status, 400)
    for body in ({}, {"tokens": "x"}, {"tokens": [-1]}, {"tokens": [2**31]}, {"tokens": [1.5]}):
        equal(f"detokenize {body}", s.post("/detokenize", body).status, 400)


def routes(s):
    """T51, T53 wrong paths and methods, compressed bodies"""
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/../../etc/passwd", 404), ("GET", COMPLETION, 405),
                                 ("POST", "/health", 405), ("DELETE", "/v1/models", 405), ("BREW", "/health", 405),
                                 ("POST", "/v1/models/../..", 405), ("GET", "/health%00", 404)):
        r = s.ask(method, path, body="{}" if method == "POST" else None)
        check(f"{method} {path}", r.status == status and r.error(), (r.status, r.body))
    for path in ("//health", "/health/", "/v1//models", "//v1/models//?x=1", "///"):
        equal(f"slashes of {path}", s.get(path).status, 200)
    for path, says in (("/v1/v1/models", "adds /v1"), ("/api/pull", "kvrun pull"), ("/v2", "'kvrun serve --help'")):
        r = s.post(path, {})
        check(f"what is wrong with {path}", r.status == 404 and says.encode() in r.body, (r.status, r.body))
    equal("what a path takes", s.get(COMPLETION).headers["Allow"], "POST")
    r = s.ask("PUT", "/sessions/a", body="{}")
    equal("several methods", (r.status, r.headers["Allow"]), (405, "GET, POST, DELETE"))
    equal("of a path without a name", s.ask("DELETE", "/lora-adapters").headers["Allow"], "GET, POST")
    equal("a compressed body", s.ask("POST", "/tokenize", b"\x1f\x8b", {"Content-Encoding": "gzip"}).status, 415)
    equal("a query", s.get("/health?x=1").status, 200)


def origins(s):
    """T54 requests for another host, and from pages of other sites"""
    own = f"localhost:{s.port}"
    rows = [({"Host": "evil.example"}, 403), ({"Host": f"evil.example:{s.port}"}, 403), ({"Host": own}, 200),
            ({"Host": f"127.0.0.1:{s.port}"}, 200), ({"Host": f"[::1]:{s.port}"}, 200),
            ({"Host": "127.0.0.1.evil.example"}, 403),
            ({"Host": own, "Origin": f"http://{own}"}, 200), ({"Host": own, "Origin": "http://evil.example"}, 403),
            # a proxy in front of the server ends TLS
            ({"Host": own, "Origin": f"https://{own}"}, 200), ({"Host": own, "Origin": "https://evil.example"}, 403),
            ({"Host": own, "Origin": "https://localhost"}, 403), ({"Host": own, "Origin": "null"}, 403)]
    for headers, status in rows:
        r = s.get("/health", **headers)
        equal(f"{headers}", r.status, status)
        check("no CORS unless asked for", "Access-Control-Allow-Origin" not in r.headers)
    equal("a preflight", s.ask("OPTIONS", CHAT, headers={"Origin": "http://evil.example"}).status, 403)
    with Server("--cors", "https://good.example", model=TINY) as c:
        r = c.get("/health", Origin="https://good.example")
        equal("the origin of --cors", (r.status, r.headers["Access-Control-Allow-Origin"]),
              (200, "https://good.example"))
        r = c.ask("OPTIONS", CHAT, headers={"Origin": "https://good.example"})
        equal("its preflight", (r.status, r.headers["Access-Control-Allow-Origin"]), (204, "https://good.example"))
        check("may send a key", "authorization" in r.headers["Access-Control-Allow-Headers"])
        r = c.get("/health", Origin="https://good.example.evil.example")
        equal("another origin", (r.status, r.headers["Access-Control-Allow-Origin"]), (403, None))


def keys():
    """T55 keys that are missing, wrong, cut or too long"""
    key = "secret-key-1"
    with tempfile.NamedTemporaryFile("w", suffix=".key") as f:
        f.write(f"# keys\n\n{key}\r\nanother-key\n")
        f.flush()
        for options in (("--api-key", key + ",another-key"), ("--api-key-file", f.name)):
            with Server(*options, model=TINY) as s:
                rows = [("Bearer " + key, 200), ("Bearer another-key", 200), ("Bearer # keys", 401),
                        ("bearer " + key, 200),
                        ("BEARER " + key, 200), ("Bearer" + key, 401),
                        (None, 401), ("", 401), ("Bearer ", 401), ("Bearer secret-key-", 401),
                        ("Bearer secret-key-12", 401), ("Bearer secret-key-2", 401), (key, 401),
                        ("Bearer " + key * 2, 401), ("Bearer " + "s" * 8000, 401), ("Basic " + key, 401),
                        ("Digest " + key, 401)]
                for given, status in rows:
                    r = s.get("/v1/models", **({} if given is None else {"Authorization": given}))
                    equal(f"{options[0]}, given {str(given)[:30]!r}", r.status, status)
                check("says how", s.get("/v1/models").headers["WWW-Authenticate"] == "Bearer")
                equal("a path that is not there says nothing more", s.get("/nothing").status, 401)
                equal("a body is not read first", status_of(s.raw(b"POST " + CHAT.encode() +
                      b" HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")), 401)
                equal("health needs none", s.get("/health").status, 200)
                equal("metrics do", s.get("/metrics").status, 401)


def slow_clients():
    """T50, T57 clients that send slowly, and clients that do not read"""
    with Server("--timeout", "1", model=TINY) as s:
        equal("half a header", status_of(s.raw(b"GET /health HTTP/1.1\r\nHost:")), 408)
        equal("a header byte by byte", status_of(s.raw(b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 50, slow=0.1)), 408)
        equal("half a body", status_of(s.raw(b"POST /tokenize HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")), 408)
        equal("nothing at all: closed without a word", s.raw(b""), b"")
        c = s.connect()
        c.request("GET", "/health")
        c.getresponse().read()
        check("a connection that is idle is closed", c.sock is None or c.sock.recv(1) == b"")
        equal("all are closed", s.metric("kvrun_connections"), 1)

        # a client that reads nothing: the small buffers of both ends are full long before the answer ends
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        body = json.dumps({"content": "x" * (1 << 20)}).encode()
        c.sendall(b"POST /tokenize HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        check("others are answered", s.alive())
        check("it is closed", s.wait_for("kvrun_connections", 1, 60))
        c.close()

    with Server("--timeout", "1", "--ctx-size", "100000") as s:
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        body = json.dumps({"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 90000}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        check("a stream is under way", s.wait_for("kvrun_answers_active", 1))
        check("a stream that nobody reads ends", s.wait_for("kvrun_answers_active", 0, 60 * SLOW))
        c.close()


def many_connections():
    """T58, T60 more connections than allowed"""
    with Server("--max-connections", "8", model=TINY) as s:
        c = s.connect()  # one of the eight, which sends requests for the others

        def connections(n):
            c.request("GET", "/metrics")
            return f"\nkvrun_connections {n}\n" in c.getresponse().read().decode()

        with contextlib.closing(c):
            held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(7)]
            check("eight are open", until(lambda: connections(8)))
            out = s.raw(b"GET /health HTTP/1.1\r\n\r\n")
            check("the ninth is told so", status_of(out) == 503 and b"Retry-After" in out, out)
            for h in held:
                h.close()
            check("then there is room", until(lambda: connections(1)) and s.alive())


def many_files():
    """T58, T60 more connections than files can be open"""
    if "UBSAN_OPTIONS" in os.environ:  # its check of virtual tables needs files of its own
        print("skipped: no more files can be open (under UndefinedBehaviorSanitizer)")
        return
    limited = ["sh", "-c", 'ulimit -n 48; exec "$@"', "sh"]
    with Server(model=TINY, prefix=limited) as s:
        held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(100)]
        check("no more files can be open", until(lambda: len(os.listdir(f"/proc/{s.process.pid}/fd")) == 48))
        for h in held:
            h.close()
        check("more connections than files can be open", s.alive())


LONG = {"prompt": "a", "max_tokens": 90000, "ignore_eos": True, "temperature": 0}


def hold(s, path, body, sent=None):
    """A socket that has sent a request, or `sent` bytes of its body, and waits."""
    data = json.dumps(body).encode()
    c = socket.create_connection(("127.0.0.1", s.port))
    c.sendall(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data[:sent])
    return c


def crowd():
    """T58 more requests than fit in the queue"""
    with Server("--parallel", "2", "--queue", "3", "--ctx-size", "100000") as s:
        held = [hold(s, COMPLETION, LONG) for _ in range(2)]
        check("two are answered", s.wait_for("kvrun_answers_active", 2))
        held += [hold(s, COMPLETION, LONG) for _ in range(3)]
        check("three wait", s.wait_for("kvrun_requests_queued", 3))
        codes = [a.status for a in at_once([lambda: s.post(COMPLETION, {**LONG, "max_tokens": 1}) for _ in range(20)])]
        equal("all others are refused", codes, [429] * 20)
        equal("before their bodies are read",
              status_of(s.raw(b"POST " + COMPLETION.encode() + b" HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")), 429)
        equal("but not what needs no place", s.post("/tokenize", {"content": "a"}).status, 200)
        for h in held:
            h.close()
        check("they leave", s.wait_for("kvrun_answers_active", 0) and s.wait_for("kvrun_requests_queued", 0))
        found = at_once([lambda: s.post(COMPLETION, {**LONG, "max_tokens": 100}) for _ in range(5)])
        equal("as many as there are places are answered", [a.status for a in found], [200] * 5)
        equal("all get the same", len({a.json()["choices"][0]["text"] for a in found}), 1)


def many_bodies():
    """T51, T56 the bodies of all requests share one limit, and are freed when their clients leave"""
    with Server("--max-body", "64K", "--max-bodies", "128K", "--parallel", "1", "--ctx-size", "100000") as s:
        long = {"content": "x" * 60000}
        held = [hold(s, "/tokenize", long, sent=55000) for _ in range(2)]
        check("two are being received", s.wait_for("kvrun_body_bytes", 110000))
        out = s.raw(b"POST /tokenize HTTP/1.1\r\nContent-Length: 60000\r\n\r\n")
        check("a third is refused before it is read", status_of(out) == 429 and b"Retry-After" in out, out)
        out = s.raw(b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nea60\r\n" + b"x" * 60000)
        equal("or where it has no length", status_of(out), 429)
        equal("a short one is answered", s.post("/tokenize", {"content": "x"}).status, 200)
        for h in held:
            h.close()
        check("they go with their clients", s.wait_for("kvrun_body_bytes", 0))
        equal("then there is room", s.post("/tokenize", long).status, 200)

        active = hold(s, COMPLETION, LONG)
        check("one is answered", s.wait_for("kvrun_answers_active", 1))
        base = s.metric("kvrun_body_bytes")
        waiting = hold(s, COMPLETION, {**LONG, "prompt": "x" * 50000})
        check("one waits", s.wait_for("kvrun_requests_queued", 1))
        check("its body counts", s.metric("kvrun_body_bytes") > base + 50000, s.metric("kvrun_body_bytes"))
        waiting.close()
        check("until its client leaves", s.wait_for("kvrun_body_bytes", base))
        active.close()
        check("and nothing is left", s.wait_for("kvrun_body_bytes", 0))


def little_memory():
    def body(i):
        return {"prompt": f"{i} " + "word " * 60, "max_tokens": 150, "ignore_eos": True, "temperature": 1.2, "top_k": 0,
                "top_p": 1,
                "min_p": 0, "seed": i, "stream": i == 0}

    def text(a):
        return "".join(c["text"] for e in a.events() for c in e["choices"]) if b"data: " in a.body else \
            a.json()["choices"][0]["text"] if a.status == 200 else a.body

    with Server() as s:
        alone = [text(s.post(COMPLETION, body(i))) for i in range(4)]
    with Server("--parallel", "4", "--kv-budget", "1500K", "--ctx-size", "512") as s:
        found = at_once([lambda i=i: s.post(COMPLETION, body(i)) for i in range(4)])
        equal("answers that do not fit beside each other are given one after the other", [text(a) for a in found],
              alone)
    with Server("--kv-budget", "512K", "--ctx-size", "512") as s:
        r = s.post(COMPLETION, {"prompt": "word " * 100})
        check("a prompt that never fits the budget", r.status == 400 and
              r.json()["error"]["code"] == "context_length_exceeded",
              r.body)
        r = s.post(COMPLETION, {"prompt": "word", "max_tokens": 400, "ignore_eos": True}).json()
        check("an answer ends where the budget does", r["choices"][0]["finish_reason"] == "length" and
              50 < r["usage"]["completion_tokens"] < 400, r)
        equal("the server goes on", s.post(COMPLETION, {"prompt": "x", "max_tokens": 2}).status, 200)


def refused_starts():
    """T60 ports and addresses that cannot be used, and other starts that are refused"""
    def start(*options, model=TINY):
        r = subprocess.run([sys.argv[1], "serve", model, "--device", "cpu", *options], capture_output=True, timeout=60)
        return r.returncode, r.stderr.decode()

    with Server(model=TINY) as s:
        code, said = start("--port", str(s.port))
        check("a port that is taken", code == 5 and said.startswith("error: ") and str(s.port) in said, (code, said))
    rows = [(("--host", "nowhere.invalid"), 5), (("--port", "70000"), 2), (("--kv", "nonsense", "--port", "0"), 2),
            (("--parallel", "0"), 2), (("--api-key", "a", "--api-key-file", "/nonexistent"), 3),
            (("--api-key", "a b"), 2), (("--api-key-file", "/nonexistent"), 3),
            (("--chat-template", "nonsense", "--port", "0"), 2),
            (("--chat-template", "/nonexistent.jinja", "--port", "0"), 3),
            (("--timeout", "0"), 2), (("--max-bodies", "1M"), 2), (("--sessions-max", "5"), 2)]
    for options, code in rows:
        got, said = start(*options)
        check(f"{options}", got == code and said.startswith("error: ") and said.count("\n") == 1, (got, said))
    equal("no model", start("--port", "0", model="/nonexistent.gguf")[0], 3)


def main():
    with Server("--chat-template", "chatml") as s:
        for part in (malformed_http, malformed_json, heavy_json, routes, origins):
            part(s)
            check(f"the server goes on after {part.__name__}", s.alive())
        equal("it ends", s.stop(), 0)
        said = [x for x in b"".join(s.log).decode().splitlines() if not x.startswith("request field ")]
        check("without a word but what runs", len(said) == 3 and said[0].startswith("model "), said)
    for part in (keys, slow_clients, many_connections, crowd, many_bodies, little_memory, refused_starts):
        part()
    with Server("--chat-template", "chatml", "--strict") as s:
        bad_fields(s)
    posix(many_files)
    finish()


main()

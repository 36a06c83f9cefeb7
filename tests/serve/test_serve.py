#!/usr/bin/env python3
"""kvrun serve over the network: every route, streams, several clients, shutdown. Usage: test_serve.py KVRUN."""
import json, os, re, signal, socket, subprocess, sys, tempfile, threading, time
from serving import END, MODEL, TINY, WINDOWS, Server, UnixConnection, at_once, check, equal, finish, posix, until

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "The code of Anna is 4711. What is the code of Anna?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}}]


def chat(**more):
    return {"messages": HELLO, "temperature": 0, "max_tokens": 24, "ignore_eos": True, **more}


def text_of_stream(events):
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])


def routes(s):
    r = s.get("/health")
    equal("health", (r.status, r.json()), (200, {"status": "ok", "model": "loaded"}))
    r = s.get("/v1/models")
    equal("models", [m["id"] for m in r.json()["data"]], ["recall-4m-f16"])
    equal("type of JSON", r.headers["Content-Type"], "application/json")
    r = s.get("/")
    check("the page is one that asks nobody else", r.status == 200 and b"<title>kvrun" in r.body and
          b"<link rel=\"icon\" href=\"data:," in r.body and r.body.count(b"<link") == 1 and
          not re.search(rb"<(script|img|iframe|object|embed|source)\b[^>]*\bsrc", r.body.split(b"<script")[0]))
    policy = r.headers["Content-Security-Policy"] or ""  # what the browser allows
    check("the page has a policy", "default-src 'none'" in policy and "connect-src 'self'" in policy, policy)
    equal("HEAD", (lambda a: (a.status, a.body))(s.ask("HEAD", "/health")), (200, b""))

    text = "Grüße, 世界 and 🙂"
    tokens = s.post("/tokenize", {"content": text}).json()["tokens"]
    ours = subprocess.run([sys.argv[1], "tokenize", "-m", MODEL, "--no-bos"], input=text.encode(), capture_output=True,
                          check=True).stdout
    equal("tokenize says what kvrun tokenize does", tokens, [int(t) for t in ours.split()])
    equal("detokenize", s.post("/detokenize", {"tokens": tokens}).json()["content"].strip(), text)
    check("add_special", len(s.post("/tokenize", {"content": text,
                                                  "add_special": True}).json()["tokens"]) >= len(tokens))

    r = s.post(COMPLETION, {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8, "ignore_eos": True}).json()
    ours = subprocess.run([sys.argv[1], "run", "-m", MODEL, "--device", "cpu", "-p", "Once upon a time", "-n", "8",
                           "--temp",
                           "0", "--ignore-eos"], capture_output=True, check=True).stdout.decode()
    equal("a completion is what kvrun run says", r["choices"][0]["text"], ours)
    equal("its usage", (r["usage"]["completion_tokens"], r["choices"][0]["finish_reason"]), (8, "length"))
    ids = s.post("/tokenize", {"content": "Once upon a time", "add_special": True}).json()["tokens"]
    again = s.post(COMPLETION, {"prompt": ids, "temperature": 0, "max_tokens": 8, "ignore_eos": True}).json()
    equal("a prompt of tokens", again["choices"][0]["text"], ours)
    equal("16 tokens where a completion gives no number",
          s.post(COMPLETION, {"prompt": "x", "ignore_eos": True}).json()["usage"]["completion_tokens"], 16)
    m = s.get("/metrics").body.decode()
    for name in ("requests_total", "answer_tokens_total", "requests_queued", "kv_used_bytes", 'kv_bytes{kind="f16"}'):
        check(f"metrics have kvrun_{name}", f"\nkvrun_{name}" in m, m)
    check("metrics count", 'kvrun_requests_total{route="/v1/completions",status="200"} 3' in m, m)


def streams(s):
    whole = s.post(CHAT, chat()).json()
    message = whole["choices"][0]["message"]
    equal("object", (whole["object"], message["role"]), ("chat.completion", "assistant"))
    check("an answer has text", len(message["content"]) > 8, message)
    r = s.post(CHAT, chat(stream=True, stream_options={"include_usage": True}))
    check("type of a stream", r.headers["Content-Type"].startswith("text/event-stream"))
    events = r.events()
    equal("a stream says what the whole answer does", text_of_stream(events), message["content"])
    check("it comes in pieces", len(events) > 10, len(events))
    equal("its objects", {e["object"] for e in events}, {"chat.completion.chunk"})
    equal("first, the role", events[0]["choices"][0]["delta"].get("role"), "assistant")
    equal("last, why it ended", events[-2]["choices"][0]["finish_reason"], "length")
    equal("then the usage", (events[-1]["choices"], events[-1]["usage"]["completion_tokens"]), ([], 24))
    equal("usage is the same", events[-1]["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])
    check("no usage unless asked for", "usage" not in s.post(CHAT, chat(stream=True)).events()[-1])
    parts = [{"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"]}]}]
    equal("parts", s.post(CHAT, chat(messages=parts)).json()["choices"][0]["message"]["content"], message["content"])

    text = message["content"]
    word = next(text[i:i + 3] for i in range(4, len(text) - 3) if text.find(text[i:i + 3]) == i)
    r = s.post(CHAT, chat(stop=[word])).json()["choices"][0]
    equal("a stop string", (r["message"]["content"], r["finish_reason"]), (text[:text.find(word)], "stop"))
    events = s.post(CHAT, chat(stop=word, stream=True)).events()
    equal("a stop string in a stream", text_of_stream(events), text[:text.find(word)])
    r = s.post(CHAT, chat(max_completion_tokens=3)).json()
    equal("max_completion_tokens", r["usage"]["completion_tokens"], 3)
    seeded = [s.post(CHAT, chat(temperature=1.5, seed=n)).json()["choices"][0]["message"]["content"] for n in (1, 1, 2)]
    check("a seed", seeded[0] == seeded[1] != seeded[2], seeded)
    r = s.post(CHAT, chat(tools=TOOLS, tool_choice="none")).json()
    equal("tools that are not to be called", r["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])

    old = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s"
    body = json.dumps({"prompt": "Once", "stream": True, "max_tokens": 2}).encode()
    out = s.raw(old % (len(body), body))
    check("a stream for HTTP/1.0", b"chunked" not in out and out.endswith(b"data: [DONE]\n\n"), out)


def choices(s):
    """n answers to one prompt: choice i is the answer for seed + i alone; the prompt is read and counted once."""
    hot = {"temperature": 3, "top_k": 0, "top_p": 1, "min_p": 0, "cache_prompt": False}
    for kv in ("fp16", "kivi2,recent=32"):
        alone = [s.post(CHAT, chat(**hot, seed=7 + i, kv=kv)).json() for i in range(3)]
        want = [a["choices"][0]["message"]["content"] for a in alone]
        check(f"{kv}: the seeds differ", len(set(want)) == 3, want)
        before = s.metric("kvrun_prompt_tokens_total")
        whole = s.post(CHAT, chat(**hot, seed=7, n=3, kv=kv)).json()
        equal(f"{kv}: choice i is the answer of seed + i", [c["message"]["content"] for c in whole["choices"]], want)
        equal(f"{kv}: their numbers", [c["index"] for c in whole["choices"]], [0, 1, 2])
        one = alone[0]["usage"]
        equal(f"{kv}: the prompt is counted once", whole["usage"],
              {**one, "completion_tokens": 72, "total_tokens": one["prompt_tokens"] + 72})
        equal(f"{kv}: and read once", s.metric("kvrun_prompt_tokens_total") - before, one["prompt_tokens"])
        equal(f"{kv}: each has its cache", [c["kv"]["policy"] for c in whole["choices"]], [kv] * 3)
        events = s.post(CHAT, chat(**hot, seed=7, n=3, kv=kv, stream=True,
                                   stream_options={"include_usage": True})).events()
        streamed, ends = [""] * 3, []
        for e in events:
            for c in e["choices"]:
                streamed[c["index"]] += c["delta"].get("content") or ""
                if c["finish_reason"]:
                    ends.append((c["index"], c["finish_reason"]))
        equal(f"{kv}: a stream of three", streamed, want)
        equal(f"{kv}: why each ended", sorted(ends), [(i, "length") for i in range(3)])
        equal(f"{kv}: usage at the end", events[-1]["usage"], whole["usage"])
        equal(f"{kv}: one object", len({e["id"] for e in events}), 1)
    text = {"prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True, "seed": 1, "logprobs": 1, **hot}
    want = [s.post(COMPLETION, {**text, "seed": 1 + i}).json()["choices"][0] for i in range(2)]
    got = s.post(COMPLETION, {**text, "n": 2, "best_of": 2}).json()["choices"]
    equal("completions", [c["text"] for c in got], [c["text"] for c in want])
    equal("their logprobs", [c["logprobs"] for c in got], [c["logprobs"] for c in want])
    first = got[0]["text"]
    r = s.post(COMPLETION, {**text, "n": 2, "stop": [first[3:6]]}).json()["choices"]
    check("one choice may end before another", r[0]["finish_reason"] == "stop"
          and r[0]["text"] == first[:first.find(first[3:6])], r)
    equal("the other goes on", r[1]["text"], got[1]["text"])
    r = s.post(COMPLETION, {**text, "n": 5})
    check("more than --parallel", r.status == 400 and r.json()["error"]["param"] == "n" and "at most 4" in r.error(),
          r.body)


def policies(s):
    r = s.post(CHAT, chat(kv="kivi2,recent=32", max_tokens=64)).json()
    equal("a request chooses its policy", r["kv"]["policy"], "kivi2,recent=32")
    check("and its cache is packed", r["kv"]["code_bytes"] > 0, r["kv"])
    equal("the default one has no codes", s.post(CHAT, chat()).json()["kv"]["code_bytes"], 0)
    r = s.post(CHAT, chat(kv="kivi3x"))
    check("a policy that is none", r.status == 400 and r.json()["error"]["param"] == "kv", r.body)


def reuse(s):
    first = s.post(CHAT, chat(messages=[{"role": "system", "content": "You answer with the code."}] + HELLO)).json()
    turn = [{"role": "system", "content": "You answer with the code."}] + HELLO
    turn += [first["choices"][0]["message"], {"role": "user", "content": "And once more?"}]
    second = s.post(CHAT, chat(messages=turn)).json()
    check("a second turn is not read from its beginning",
          second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1,
          second["usage"])
    again = s.post(CHAT, chat(messages=turn, cache_prompt=False)).json()
    equal("nor is anything reused with cache_prompt: false",
          (again["usage"]["prompt_tokens_details"]["cached_tokens"], again["choices"][0]["message"]),
          (0, second["choices"][0]["message"]))
    with Server("--chat-template", "chatml", "--idle-sessions", "0") as fresh:
        alone = fresh.post(CHAT, chat(messages=turn)).json()
        equal("nothing is kept without idle sessions", alone["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        equal("reuse changes no answer", second["choices"][0]["message"], alone["choices"][0]["message"])


def together():
    def body(i):
        messages = [{"role": "user", "content": f"Count from {i} to {i * 7 + 3}. " + "Again. " * (i * 5)}]
        return chat(messages=messages,
                    temperature=3,
                    top_k=0,
                    top_p=1,
                    min_p=0,
                    seed=i,
                    stream=i % 2 == 1,
                    kv="kivi2" if i % 3 == 2 else "fp16")

    def text(a, i):
        return text_of_stream(a.events()) if i % 2 else a.json()["choices"][0]["message"]["content"]

    with Server("--chat-template", "chatml", "--idle-sessions", "0", "--parallel", "5") as s:
        alone = [text(s.post(CHAT, body(i)), i) for i in range(8)]
        check("the answers differ", len(set(alone)) == 8, alone)
        found = at_once([lambda i=i: s.post(CHAT, body(i)) for i in range(8)])
        for i in range(8):
            equal(f"request {i} of 8 at once is what it is alone", text(found[i], i), alone[i])
        equal("all slots are free", (s.metric("kvrun_answers_active"), s.metric("kvrun_requests_queued")), (0, 0))
        equal("SIGINT ends it too", s.stop(signal.SIGINT), 0)


LONG = {"prompt": "Once upon a time", "max_tokens": 100000, "ignore_eos": True}


def begin(s, body):
    """A socket on which a request was sent and nothing was read."""
    c = s.connect()
    c.request("POST", COMPLETION, json.dumps(body))
    return c


def disconnects():
    """T56 clients that leave in the queue, while the prompt is read, and during the answer"""
    with Server("--parallel", "1", "--queue", "1", "--log", "--ctx-size", "100000") as s:
        for stream in (True, False):
            c = begin(s, {**LONG, "stream": stream})
            check("an answer is under way", s.wait_for("kvrun_answers_active", 1))
            c.close()
            check(f"a client that goes away frees the slot, stream {stream}", s.wait_for("kvrun_answers_active", 0, 10))
        c = begin(s, {**LONG, "prompt": "once more " * 4000})
        check("a prompt is being read", s.wait_for("kvrun_answers_active", 1))
        c.close()
        check("its client goes away", s.wait_for("kvrun_answers_active", 0, 10))

        first = begin(s, LONG)
        check("one is under way", s.wait_for("kvrun_answers_active", 1))
        second = begin(s, LONG)
        check("one waits", s.wait_for("kvrun_requests_queued", 1))
        r = s.post(COMPLETION, LONG)
        check("the queue is full", r.status == 429 and r.headers["Retry-After"] and r.error(), r.body)
        second.close()
        check("a client goes away that waits", s.wait_for("kvrun_requests_queued", 0, 10))
        first.close()
        check("all is free", s.wait_for("kvrun_answers_active", 0, 10))
        equal("cancelled answers are counted", s.metric("kvrun_answers_cancelled_total"), 5)
        r = s.post(COMPLETION, {"prompt": "Once upon", "max_tokens": 4, "ignore_eos": True})
        equal("the server goes on", (r.status, r.json()["usage"]["completion_tokens"]), (200, 4))
        equal("and ends", s.stop(), 0)
        log = b"".join(s.log).decode()
        check("a log line for each request", "POST /v1/completions 200 " in log and "POST /v1/completions 499 " in log,
              log)
        check("no content in the log", "Once upon" not in log, log)


def choices_leave():
    """T56 clients that leave during several answers"""
    with Server("--parallel", "3", "--queue", "2", "--ctx-size", "100000") as s:
        for stream in (True, False):
            c = begin(s, {**LONG, "n": 3, "stream": stream})
            check("three answers are under way", s.wait_for("kvrun_answers_active", 3))
            found = 0
            for _ in range(100):
                found = found if found == 3 else len(s.slots())
            equal("/slots has each", found, 3)
            c.close()
            check(f"their client goes away, stream {stream}", s.wait_for("kvrun_answers_active", 0, 10))
        c = begin(s, {**LONG, "n": 3, "prompt": "once more " * 4000})
        check("a prompt is being read for three", s.wait_for("kvrun_answers_active", 3))
        c.close()
        check("its client goes away", s.wait_for("kvrun_answers_active", 0, 10))

        first = begin(s, {**LONG, "n": 2})
        check("two are under way", s.wait_for("kvrun_answers_active", 2))
        second = begin(s, {**LONG, "n": 2})
        check("two more wait, though there is one place", s.wait_for("kvrun_requests_queued", 2))
        r = s.post(COMPLETION, {**LONG, "n": 2})
        check("the queue counts answers", r.status == 429 and r.error(), r.body)
        second.close()
        check("who waits goes away", s.wait_for("kvrun_requests_queued", 0, 10))
        first.close()
        check("all is free", s.wait_for("kvrun_answers_active", 0, 10))
        equal("cancelled answers are counted", s.metric("kvrun_answers_cancelled_total"), 13)
        r = s.post(COMPLETION, {"prompt": "Once upon", "max_tokens": 4, "ignore_eos": True, "n": 3})
        equal("the server goes on", (r.status, r.json()["usage"]["completion_tokens"]), (200, 12))
        equal("and ends", s.stop(), 0)


def choices_without_room():
    """A budget with room for one answer but not for three: they run one after the other, and are the same"""
    body = {"prompt": "word " * 100, "max_tokens": 60, "ignore_eos": True, "temperature": 3, "seed": 3,
            "cache_prompt": False}
    with Server("--parallel", "3", "--kv-budget", "1M", "--ctx-size", "512", "--idle-sessions", "0") as s:
        alone = [s.post(COMPLETION, {**body, "seed": 3 + i}) for i in range(3)]
        check("there is room for one", all(a.status == 200 for a in alone), [a.body for a in alone])
        r = s.post(COMPLETION, {**body, "n": 3})
        equal("three, one after the other", r.status, 200)
        equal("each is what it is alone", [c["text"] for c in r.json()["choices"]],
              [a.json()["choices"][0]["text"] for a in alone])
        equal("nothing is left over", (s.metric("kvrun_answers_active"), s.metric("kvrun_requests_queued")), (0, 0))


def refuses(s):
    """Whether connections are refused. One that the system had queued when the listener closed is reset instead."""
    try:
        s.connect(5).connect()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    return False


def the_end():
    """T77 SIGTERM finishes running answers and refuses new ones; a second one ends the program"""
    with Server("--ctx-size", "100000", "--parallel", "2", "--drain", "600") as s:
        found = []
        t = threading.Thread(target=lambda: found.append(s.post(COMPLETION, {**LONG, "max_tokens": 400})))
        t.start()
        idle = s.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        check("one is under way", s.wait_for("kvrun_answers_active", 1))
        s.process.send_signal(END)
        check("no new connections after SIGTERM", until(lambda: refuses(s)))
        t.join()
        equal("an answer under way is finished", found and found[0].json()["usage"]["completion_tokens"], 400)
        equal("it says that the connection ends", found and found[0].headers["Connection"], "close")
        equal("then the exit code is 0", s.process.wait(60), 0)
    with Server("--ctx-size", "100000", "--drain", "0.5") as s:
        c = begin(s, LONG)
        check("one is under way", s.wait_for("kvrun_answers_active", 1))
        equal("an answer that takes too long is ended", s.stop(), 0)
        c.close()
    if WINDOWS:
        print("skipped: a second signal, for a Windows program")
        return
    for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM,
                                                                                              signal.SIGINT)):
        with Server("--ctx-size", "100000", "--drain", "80000") as s:
            c = begin(s, LONG)
            check("one is under way", s.wait_for("kvrun_answers_active", 1))
            s.process.send_signal(first)
            check("it waits for the answer", until(lambda: refuses(s)) and s.process.poll() is None)
            equal("a second signal ends it", s.stop(second), -second)
            c.close()


def catches(pid, sig):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        mask = next(int(line.split()[1], 16) for line in f if line.startswith("SigCgt:"))
    return bool(mask >> (sig - 1) & 1)


def stuck(held_up):
    """T77 a second signal ends a server whose network thread is blocked because nobody reads its log

    held_up: the first signal comes after that thread has started to wait, not before."""
    read, write = os.pipe()

    def fill():
        os.set_blocking(write, False)
        try:
            while True:
                os.write(write, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(write, True)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        p = subprocess.Popen([sys.argv[1], "serve", TINY, "--device", "cpu", "--unix", path, "--log"],
                             stdout=subprocess.PIPE, stderr=write)
        check("it listens", b"listening" in p.stdout.readline())
        fill()
        c = UnixConnection(path, 60)
        c.request("GET", "/health")
        equal("a request is answered", c.getresponse().status, 200)
        time.sleep(0.3 if held_up else 0)
        p.send_signal(signal.SIGTERM)
        check("the first signal is taken", until(lambda: not catches(p.pid, signal.SIGTERM)))
        time.sleep(0.3)
        check("and cannot end it", p.poll() is None)
        p.send_signal(signal.SIGTERM)
        equal("the second one can", p.wait(60), -signal.SIGTERM)
        c.close(), p.stdout.close(), os.close(read), os.close(write)


def loading():
    """While the model is loading every request is told so, and a signal ends it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        command = [sys.argv[1], "serve", MODEL, "--device", "cpu", "--unix", path]
        for sig in (None, signal.SIGTERM):
            slow = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            states = set()
            while 200 not in states and not (sig and states):
                c = UnixConnection(path, 20)
                try:
                    c.request("GET", "/health")
                    states.add(c.getresponse().status)
                except OSError:  # it does not listen yet
                    time.sleep(0.001)
                c.close()
            check("503, then 200", states <= {200, 503}, states)
            slow.send_signal(signal.SIGTERM)
            equal("the exit code", slow.wait(60), 0)
            said = slow.stderr.read()
            check("nothing is said but what runs", not said or said.startswith(b"model "), said)
            slow.stdout.close(), slow.stderr.close()


def tools():
    with Server("--chat-template", os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools.jinja")) as s:
        with_tools = s.post(CHAT, chat(tools=TOOLS, max_tokens=4)).json()
        without = s.post(CHAT, chat(max_tokens=4)).json()
        check("tools reach the prompt", with_tools["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 20,
              with_tools)
        turns = HELLO + [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "2"}]
        check("results of tools too", s.post(CHAT,
                                             chat(messages=turns, tools=TOOLS,
                                                  max_tokens=4)).json()["usage"]["prompt_tokens"] >
              with_tools["usage"]["prompt_tokens"])


def tools_without_a_place():
    """A template that has no place for tools: they are described in the system message."""
    with Server("--chat-template", "chatml", "-c", "2k") as s:
        plain = s.post(CHAT, chat(max_tokens=4)).json()["usage"]["prompt_tokens"]
        told = s.post(CHAT, chat(tools=TOOLS, max_tokens=4)).json()["usage"]["prompt_tokens"]
        check("tools reach the prompt", told > plain + 60, (told, plain))
        need = chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=300)
        first = s.post(CHAT, need).json()["choices"][0]
        equal("a call that is required", first["finish_reason"], "tool_calls")
        call = first["message"]["tool_calls"][0]
        equal("its function", call["function"]["name"], "add")
        check("its arguments", isinstance(json.loads(call["function"]["arguments"]), dict), call)
        deltas = [d for e in s.post(CHAT, {**need, "stream": True}).events()
                  for d in e["choices"][0]["delta"].get("tool_calls", [])]
        equal("in a stream", "".join(d["function"].get("arguments", "") for d in deltas), call["function"]["arguments"])
        turns = HELLO + [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "the result"}]
        r = s.post(CHAT, chat(messages=turns, tools=TOOLS, max_tokens=4))
        check("calls and results reach the prompt", r.json()["usage"]["prompt_tokens"] > told + 20, r.body)
        check("the log says so once", b"".join(s.log).count(b"no place for tools") == 1)


def no_template():
    with Server() as s:
        r = s.post(CHAT, chat())
        check("a model without a template: the names that can be given", r.status == 400
              and "chatml" in (r.error() or ""),
              r.body)
        equal("completions work", s.post(COMPLETION, {"prompt": "Once", "max_tokens": 1}).status, 200)


def main():
    with Server("--chat-template", "chatml") as s:
        for part in (routes, streams, choices, policies, reuse):
            part(s)
        check("the server goes on", s.alive())
        equal("it ends", s.stop(), 0)
    posix(loading)
    for part in (tools, tools_without_a_place, together, disconnects, choices_leave, choices_without_room, the_end,
                 no_template):
        part()
    if "TSAN_OPTIONS" in os.environ:  # it runs handlers of signals only when the C library returns
        print("skipped: a second signal while the log is not read (under ThreadSanitizer)")
    else:
        for held_up in (False, True):
            posix(stuck, held_up)
    finish()


main()

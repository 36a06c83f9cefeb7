#!/usr/bin/env python3
"""kvrun serve --draft: every answer equals that of a server without drafts, whatever other requests run at the same
time. Usage: test_serve_draft.py KVRUN"""
import json, os, subprocess, sys
from serving import MODEL, ROOT, TINY, Server, at_once, check, equal, finish

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
REPEATS = "Lily was happy. Tom was sad. Lily was happy. Tom was sad. Lily was"
RECORD = "Record:\nline torpid-kid: REGISTER_CONTENT is <24169>\nQuery: torpid-kid\nAnswer: <"
LONG = {"max_tokens": 60, "ignore_eos": True}
REQUESTS = [
    {"prompt": REPEATS, "temperature": 0, **LONG},
    {"prompt": REPEATS, "temperature": 0, "kv": "kivi2,recent_keep=8,flush=32", **LONG},
    {"prompt": REPEATS, "temperature": 0.7, "seed": 3, "kv": "turbo3/2", **LONG},
    {"prompt": REPEATS, "temperature": 0.9, "seed": 5, "n": 3, **LONG},
    {"prompt": REPEATS, "temperature": 0, "frequency_penalty": 0.5, "logit_bias": {"13": -5}, **LONG},
    {"prompt": REPEATS, "temperature": 0, "stop": ["sad", "ball"], **LONG},
    {"prompt": REPEATS, "temperature": 0, "kv": "h2o,recent_keep=8,flush=16,budget=24", **LONG},
    {"prompt": "Numbers: ", "temperature": 1, "seed": 2, "grammar": "root ::= (\"12, 13, \" | \"14, \"){20}",
     "max_tokens": 60},
    {"prompt": RECORD, "temperature": 0, "max_tokens": 5},
]


def texts(answer):
    return [(c["text"], c["finish_reason"]) for c in answer["choices"]]


def ask_all(s):
    """All requests at once: they share steps."""
    replies = at_once([lambda body=body: s.post(COMPLETION, body) for body in REQUESTS])
    for i, r in enumerate(replies):
        check(f"request {i} is answered", r.status == 200, r.body[:300])
    return [r.json() for r in replies]


def same_answers(plain, s, why):
    for _ in range(2):  # the second time, sessions of the first are reused
        for i, (want, got) in enumerate(zip(plain, ask_all(s))):
            equal(f"{why}, request {i}", texts(got), texts(want))
            equal(f"{why}, tokens of request {i}", got["usage"]["completion_tokens"],
                  want["usage"]["completion_tokens"])


def timings(s):
    r = s.post(COMPLETION, REQUESTS[0]).json()
    t = r["timings"]
    check("drafts were taken", 0 < t["draft_n_accepted"] <= t["draft_n"], t)
    equal("timings count the answer", t["predicted_n"], 60)
    off = s.post(COMPLETION, {**REQUESTS[0], "speculative.n_max": 0}).json()
    equal("speculative.n_max 0: none", off["timings"].get("draft_n", 0), 0)
    equal("... and the same text", texts(off), texts(r))
    few = s.post(COMPLETION, {**REQUESTS[0], "speculative.n_max": 1}).json()
    equal("speculative.n_max 1: the same text", texts(few), texts(r))
    timings = s.post(COMPLETION, REQUESTS[6]).json()["timings"]
    check("policies that cannot take back have none", "draft_n" not in timings)
    equal("speculative.n_max is a number", s.post(COMPLETION, {**REQUESTS[0], "speculative.n_max": "x"}).status, 400)
    events = s.post(COMPLETION, {**REQUESTS[0], "stream": True}).events()
    equal("a stream has the same text", "".join(e["choices"][0]["text"] for e in events), texts(r)[0][0])
    check("and timings at its end", events[-1]["timings"]["draft_n"] == t["draft_n"], events[-1])


def logprobs(plain, s):
    """Each token's own probabilities, also for drafted tokens."""
    body = {**REQUESTS[0], "logprobs": 2}
    equal("logprobs", s.post(COMPLETION, body).json()["choices"], plain.post(COMPLETION, body).json()["choices"])


def conversations(plain, s):
    def talk(server):
        messages, out = [{"role": "user", "content": "Lily was happy. Lily was happy. Lily"}], []
        for _ in range(3):
            r = server.post(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 30, "ignore_eos": True}).json()
            out.append(r["choices"][0]["message"]["content"])
            messages += [r["choices"][0]["message"], {"role": "user", "content": "Lily was happy. And"}]
        return out

    equal("three turns", talk(s), talk(plain))


def prediction(folder, draft, models):
    """A model's own prediction layer, or its assistant: one that is always right, and one that is not."""
    body = {"prompt": "a b c", "temperature": 0, **LONG}
    asked = [body, {**body, "prompt": "c a", "temperature": 0.8, "seed": 7},
             {**body, "kv": "kivi2,recent_keep=8,flush=32"},
             {**body, "n": 2, "temperature": 0.9, "seed": 3}]
    for name, right in models:
        model = os.path.join(ROOT, "tests", "golden", folder, name + ".gguf")
        with Server("--parallel", "3", model=model) as plain:
            wanted = [plain.post(COMPLETION, r).json() for r in asked]
        check(f"{name}: no drafts in timings without them",
              all("draft_n" not in w.get("timings", {}) for w in wanted))
        with Server("--parallel", "3", "--draft", draft(name), "--draft-max", "4", model=model) as s:
            for _ in range(2):  # the second time, the layer goes on with what it has read
                replies = at_once([lambda r=r: s.post(COMPLETION, r) for r in asked])
                for i, (want, got) in enumerate(zip(wanted, replies)):
                    check(f"{name}, request {i} is answered", got.status == 200, got.body[:300])
                    equal(f"{name}, request {i}", texts(got.json()), texts(want))
            t = s.post(COMPLETION, body).json()["timings"]
            check(f"{name}: timings carry what was guessed and taken", 0 <= t["draft_n_accepted"] <= t["draft_n"], t)
            check(f"{name}: something was guessed", t["draft_n"] > (10 if right else 0), t)
            equal(f"{name}: all of it was right", t["draft_n_accepted"] == t["draft_n"], right)


def refused():
    for options, code, why in ((("--draft", "lookup", "--kv", "specache2,fetch=24"), 2, "--draft"),
                               (("--draft", "mtp"), 3, "prediction layers"),
                               (("--draft", os.path.join(ASSISTANTS, "gemma4.gguf")), 2, "models of gemma4"),
                               (("--draft", TINY), 2, "vocabulary")):
        p = subprocess.run([sys.argv[1], "serve", MODEL, "--device", "cpu", "--port", "0", *options],
                           capture_output=True, timeout=120, check=False)
        lines = p.stderr.decode().splitlines()
        check(f"{options} is refused", p.returncode == code and lines and why in lines[-1], (p.returncode, lines[-2:]))


with Server("--chat-template", "chatml", "--parallel", "6") as plain:
    wanted = [plain.post(COMPLETION, r).json() for r in REQUESTS]
    with Server("--chat-template", "chatml", "--parallel", "6", "--draft", "lookup") as s:
        same_answers(wanted, s, "lookup")
        timings(s)
        logprobs(plain, s)
        conversations(plain, s)
    with Server("--parallel", "3", "--draft", MODEL, "--draft-max", "4") as s:
        same_answers(wanted, s, "a model")
prediction("prediction", lambda name: "mtp", (("right", True), ("glm4moe", False)))
ASSISTANTS = os.path.join(ROOT, "tests", "golden", "assistant")
prediction("tiny", lambda name: os.path.join(ASSISTANTS, name + ".gguf"), (("gemma4", False), ("gemma4_shared", False)))
refused()
finish()

#!/usr/bin/env python3
"""Ollama's API beside OpenAI's on the same server: the same prompts, answers and limits. Usage: test_serve_ollama.py
KVRUN."""
import json, os, re

from serving import ROOT, Server, check, equal, finish

CHAT, GENERATE, OPENAI = "/api/chat", "/api/generate", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools.jinja")
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}}
OPTIONS = {"temperature": 0, "num_predict": 12}
SURE = {"options": OPTIONS}


def lines(answer):
    """The objects of a stream: all but the last one are not done."""
    equal("type of a stream", answer.headers["Content-Type"], "application/x-ndjson")
    out = [json.loads(line) for line in answer.body.decode().splitlines()]
    equal("the last line ends the answer", [o["done"] for o in out], [False] * (len(out) - 1) + [True])
    return out


def plain(s, messages=None, **more):
    """What OpenAI's API answers."""
    body = {"messages": messages or HELLO, "temperature": 0, "max_tokens": 12, **more}
    r = s.post(OPENAI, body).json()
    return r["choices"][0]["message"], r["usage"]


def chats(s):
    message, usage = plain(s)
    whole = s.post(CHAT, {"messages": HELLO, "stream": False, **SURE}).json()
    equal("the answer is the same", whole["message"], {"role": "assistant", "content": message["content"]})
    equal("counts", (whole["prompt_eval_count"], whole["eval_count"]),
          (usage["prompt_tokens"], usage["completion_tokens"]))
    equal("why it ended", (whole["done"], whole["done_reason"]), (True, "length"))
    check("durations are nanoseconds", 0 < whole["eval_duration"] <= whole["total_duration"] < 120e9, whole)
    check("a time", re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", whole["created_at"]), whole)
    parts = lines(s.post(CHAT, {"messages": HELLO, **SURE}))  # a stream unless the request says otherwise
    equal("in a stream", "".join(p["message"]["content"] for p in parts), message["content"])
    check("in pieces", len(parts) > 5, len(parts))
    equal("its counts", parts[-1]["eval_count"], usage["completion_tokens"])

    text = message["content"]
    word = next(text[i:i + 3] for i in range(2, len(text) - 3) if text.find(text[i:i + 3]) == i)
    r = s.post(CHAT, {"messages": HELLO, "stream": False, "options": {**OPTIONS, "stop": [word]}}).json()
    equal("a stop string", (r["message"]["content"], r["done_reason"]), (text[:text.find(word)], "stop"))
    hot = {"temperature": 2, "num_predict": 8, "seed": 7, "top_k": 0, "num_gpu": 99, "num_ctx": 10**9, "num_thread": 4}
    a, b = (s.post(CHAT, {"messages": HELLO, "stream": False, "options": hot, "keep_alive": "5m"}).json()["message"]
            for _ in range(2))
    equal("a seed", a, b)
    check("num_ctx has a notice", b"num_ctx is ignored" in b"".join(s.log), s.log)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    for form in (schema, "json"):
        r = s.post(CHAT, {"messages": HELLO, "stream": False, "format": form,
                          "options": {"temperature": 0, "num_predict": 200}}).json()
        if form == schema:
            check("a schema", json.loads(r["message"]["content"])["n"] in (1, 2), r)
        else:
            check("JSON", r["message"]["content"].lstrip().startswith("{"), r)
    r = s.post(CHAT, {"messages": HELLO, "stream": False, "logprobs": True, "top_logprobs": 2, **SURE}).json()
    equal("log probabilities", (len(r["logprobs"]), len(r["logprobs"][0]["top_logprobs"])), (12, 2))
    for nothing in ({"messages": []}, {}):
        r = s.post(CHAT, nothing).json()
        equal("nothing asked", (r["done"], r["done_reason"], r["message"]["content"]), (True, "load", ""))


def generates(s):
    message, usage = plain(s, [{"role": "system", "content": "Be kind."}, *HELLO])
    r = s.post(GENERATE, {"system": "Be kind.", "prompt": "Hello there", "stream": False, **SURE}).json()
    equal("a prompt is a message", (r["response"], r["prompt_eval_count"]),
          (message["content"], usage["prompt_tokens"]))
    text = s.post("/v1/completions", {"prompt": "Once upon", "temperature": 0, "max_tokens": 12}).json()
    raw = {"prompt": "Once upon", "raw": True, **SURE}
    r = s.post(GENERATE, {**raw, "stream": False}).json()
    equal("unless it is raw", r["response"], text["choices"][0]["text"])
    equal("in a stream", "".join(p["response"] for p in lines(s.post(GENERATE, raw))), r["response"])
    r = s.post(GENERATE, {"model": "x"}).json()
    equal("nothing asked", (r["done_reason"], r["response"]), ("load", ""))


def tools(s):
    first = {"messages": HELLO, "tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False,
             "options": {"temperature": 0, "num_predict": 200}}
    whole = s.post(CHAT, {**first, "stream": False}).json()
    call = whole["message"]["tool_calls"][0]
    equal("a call", call["function"]["name"], "add")
    check("its arguments are an object", isinstance(call["function"]["arguments"], dict), call)
    streamed = [c for p in lines(s.post(CHAT, first)) for c in p["message"].get("tool_calls", [])]
    equal("in a stream", [c["function"] for c in streamed], [call["function"]])
    # earlier calls without ids, and their results in order
    own = HELLO + [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {
        "a": n}}} for n in (1, 2)]}, {"role": "tool", "tool_name": "add", "content": "one"},
        {"role": "tool", "tool_name": "add", "content": "two"}]
    theirs = HELLO + [{"role": "assistant", "content": "", "tool_calls": [
        {"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": n})}}
        for n in (1, 2)]}, {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"}]
    message, usage = plain(s, theirs, tools=[ADD])
    r = s.post(CHAT, {"messages": own, "tools": [ADD], "stream": False, **SURE}).json()
    equal("an earlier call reaches the prompt", (r["message"]["content"], r["prompt_eval_count"]),
          (message["content"], usage["prompt_tokens"]))


def thinks():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>{% else %}-</think>{% endif %}"
    with Server("--chat-template", template_file(template)) as s:
        on, off = (s.post(CHAT, {"messages": HELLO, "think": t, "stream": False, **SURE}).json()["message"]
                   for t in (True, False))
        check("reasoning has a field of its own", on.get("thinking") and not on["content"], on)
        check("unless it is off", "thinking" not in off and off["content"], off)
        parts = lines(s.post(CHAT, {"messages": HELLO, "think": True, **SURE}))
        equal("in a stream", "".join(p["message"].get("thinking", "") for p in parts).strip(), on["thinking"].strip())


def template_file(text):
    import tempfile
    path = os.path.join(tempfile.mkdtemp(), "t.jinja")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def describes(s):
    check("a version", re.match(r"\d+\.\d+", s.get("/api/version").json()["version"]))
    name = s.get("/v1/models").json()["data"][0]["id"]
    for path in ("/api/tags", "/api/ps"):
        models = s.get(path).json()["models"]
        equal(path, [m["name"] for m in models], [name])
        equal("its details", (models[0]["details"]["format"], models[0]["details"]["family"]), ("gguf", "llama"))
    show = s.post("/api/show", {"model": "x"}).json()
    check("abilities", {"completion", "tools"} <= set(show["capabilities"]), show["capabilities"])
    check("its context", show["model_info"]["llama.context_length"] > 0, show)


def refuses(s):
    def error(path, body):
        r = s.post(path, body)
        check(f"{body}: an error in Ollama's form", isinstance(r.json()["error"], str), r.body)
        return r.status, r.json()["error"]

    rows = ((CHAT, "{", 400, "JSON"), (CHAT, {"messages": 1}, 400, "messages"), (CHAT, {"messages": [1]}, 400, "messages[0]"),
            (CHAT, {"messages": HELLO, "options": 1}, 400, "options"),
            (CHAT, {"messages": HELLO, "options": {"temperature": "hot"}}, 400, "temperature"),
            (CHAT, {"messages": HELLO, "format": "xml"}, 400, "format"), (CHAT, {"messages": HELLO, "think": 1}, 400, "think"),
            (CHAT, {"messages": [{"role": "user", "content": "a", "images": ["AA"]}]}, 400, "images"),
            (CHAT, {"messages": [{"role": "user", "content": "a", "images": 1}]}, 400, "images"),
            (CHAT, {"messages": [{"role": "assistant", "tool_calls": [1]}]}, 400, "tool_calls"),
            (CHAT, {"messages": [{"role": "assistant", "tool_calls": 1}]}, 400, "tool_calls"),
            (CHAT, {"messages": [{"role": "user", "content": "word " * 40000}]}, 400, "prompt is too long"),
            (GENERATE, {"prompt": 1}, 400, "prompt"), (GENERATE, [], 400, "object"), ("/api/pull", {"model": "x"}, 404, "path"),
            ("/api/embed", {}, 400, "input"))
    for path, body, status, word in rows:
        got, why = error(path, body)
        equal(f"{path} {str(body)[:60]}: status", got, status)
        check(f"{path} {str(body)[:60]}: names it", word in why, why)


def embeds():
    with Server(model=os.path.join(ROOT, "tests", "golden", "encoder", "bert.gguf")) as s:
        texts = ["hello world", "a house"]
        want = [e["embedding"] for e in s.post("/v1/embeddings", {"input": texts}).json()["data"]]
        r = s.post("/api/embed", {"model": "x", "input": texts, "truncate": True}).json()
        equal("vectors", r["embeddings"], want)
        equal("of one text", s.post("/api/embed", {"input": texts[0]}).json()["embeddings"], want[:1])
        equal("the older route", s.post("/api/embeddings", {"prompt": texts[0]}).json(), {"embedding": want[0]})
        equal("abilities", s.post("/api/show", {"name": "x"}).json()["capabilities"], ["embedding"])
        equal("a model that only encodes", s.post(CHAT, {"messages": HELLO}).status, 400)


def main():
    with Server("--chat-template", TEMPLATE, "-c", "2k") as s:
        for part in (chats, generates, tools, describes, refuses):
            part(s)
    with Server("--chat-template", TEMPLATE, "--api-key", "k") as s:
        equal("a key is needed", s.get("/api/tags").status, 401)
        equal("not for the version", s.get("/api/version").status, 200)
    with Server() as s:  # no chat template: a prompt is a text to continue
        raw = s.post("/v1/completions", {"prompt": "Once upon", "temperature": 0, "max_tokens": 12}).json()
        r = s.post(GENERATE, {"prompt": "Once upon", "stream": False, **SURE}).json()
        equal("without a template", r["response"], raw["choices"][0]["text"])
    thinks()
    embeds()
    finish()


main()

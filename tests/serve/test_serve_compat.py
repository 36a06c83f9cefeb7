#!/usr/bin/env python3
"""kvrun serve as clients and scripts of llama.cpp's server use it: its routes, options and forms, fields that nobody
knows, answers that the client begins. Usage: test_serve_compat.py KVRUN."""
import json, os, subprocess, sys, tempfile, threading, time
from serving import MODEL, ROOT, TINY, Server, check, equal, finish

CHAT, COMPLETION, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
HELLO = [{"role": "user", "content": "Hello"}]
SURE = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools.jinja")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def text_of(s, body, path=CHAT):
    r = s.post(path, {"max_tokens": 12, **SURE, **body})
    check(f"{path} {str(body)[:60]} is answered", r.status == 200, r.body[:300])
    c = r.json()["choices"][0]
    return c["message"]["content"] if "message" in c else c["text"]


def unknown(s):
    body = {"messages": HELLO, "max_tokens": 2, "nonsense": 1, "verbosity": "low", "reasoning_effort": "high",
            "mcp_servers": [], "stream_options": {"include_usage": True}}
    for _ in range(2):
        equal("unknown fields are ignored", s.post(CHAT, body).status, 200)
    equal("also here", s.post(COMPLETION, {"prompt": "a", "max_tokens": 1, "frobnicate": {}}).status, 200)
    equal("tools without a place", s.post(CHAT, {**body, "tools": [TOOL]}).status, 200)
    equal("if they are required", s.post(CHAT, {**body, "tools": [TOOL], "tool_choice": "required"}).status, 200)
    equal("by name, too", s.post(CHAT, {**body, "tools": [TOOL], "tool_choice": {"type": "function", "function":
                                                                                 {"name": "add"}}}).status, 200)
    equal("one call at a time", s.post(CHAT, {**body, "tools": [TOOL], "parallel_tool_calls": False}).status, 200)
    equal("of the Messages API", s.post("/v1/messages", {
        "messages": HELLO, "max_tokens": 2, "tools": [{"name": "add", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}).status, 200)
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    r = s.post(CHAT, {**body, "max_tokens": 50, "json_schema": schema})
    check("a keyword that is not enforced", r.status == 200 and
          r.json()["choices"][0]["message"]["content"].startswith("["), r.body)
    with Server("--strict", "--chat-template", "chatml", model=TINY) as strict:
        r = strict.post(CHAT, {"messages": HELLO, "max_tokens": 1, "nonsense": 1})
        check("--strict refuses them", r.status == 400 and r.json()["error"]["param"] == "nonsense", r.body)
        r = strict.post(CHAT, {"messages": HELLO, "json_schema": schema})
        check("and keywords", r.status == 400 and "uniqueItems" in r.error(), r.body)


def begun(s):
    """A conversation that ends with the assistant is continued there"""
    start = s.post("/apply-template", {"messages": HELLO}).json()["prompt"]
    said = text_of(s, {"messages": HELLO, "max_tokens": 16})
    first = said[:6]
    turn = HELLO + [{"role": "assistant", "content": first}]
    equal("the prompt ends with its text", s.post("/apply-template", {"messages": turn}).json()["prompt"],
          start + first)
    equal("a whole new message", s.post("/apply-template", {"messages": turn, "add_generation_prompt": True}).json()
          ["prompt"].count("assistant"), 2)
    got = text_of(s, {"messages": turn, "max_tokens": 16})
    equal("or so", s.post("/apply-template", {"messages": turn, "continue_final_message": False}).json()["prompt"],
          s.post("/apply-template", {"messages": turn, "add_generation_prompt": True}).json()["prompt"])
    r = s.post("/apply-template", {"messages": turn, "continue_final_message": False, "add_generation_prompt": False})
    equal("none of both", r.json()["prompt"].count("assistant"), 1)
    check("the answer has the new text alone", got and not got.startswith(first), (first, got))
    m = s.post("/v1/messages", {"messages": turn, "max_tokens": 16, **SURE}).json()
    equal("in the Messages API, too", m["content"][0]["text"], got)
    r = s.post("/v1/responses", {"input": turn, "max_output_tokens": 16, **SURE}).json()
    equal("and in the Responses API", r["output"][0]["content"][0]["text"], got)


def native(s):
    body = {"prompt": "Once upon a time", "n_predict": 8, **SURE}
    want = text_of(s, {"prompt": "Once upon a time", "max_tokens": 8}, COMPLETION)
    for path in (NATIVE, "/completions"):
        r = s.post(path, body).json()
        equal(path, (r["content"], r["stop"], r["stop_type"], r["tokens_predicted"]), (want, True, "limit", 8))
        check("its timings", {"prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second", "cache_n"} <=
              set(r["timings"]), r)
    r = s.post(NATIVE, {**body, "stream": True})
    events = [json.loads(e[6:]) for e in r.body.decode().split("\n\n") if e.startswith("data: {")]
    equal("a stream", ("".join(e["content"] for e in events), events[-1]["stop"]), (want, True))
    word = want[3:6]
    r = s.post(NATIVE, {**body, "stop": [word]}).json()
    equal("a stop", (r["stop_type"], r["stopping_word"], r["content"]), ("word", word, want[:want.find(word)]))
    none = s.post(NATIVE, {**body, "n_predict": 0}).json()
    equal("no tokens", (none["content"], none["tokens_predicted"]), ("", 0))
    none = s.post(CHAT, {"messages": HELLO, "max_tokens": 0}).json()
    equal("none of a chat", (none["choices"][0]["message"]["content"], none["usage"]["completion_tokens"],
                             none["choices"][0]["finish_reason"]), ("", 0, "length"))
    echo = text_of(s, {"prompt": "Once upon a time", "max_tokens": 8, "echo": True}, COMPLETION)
    equal("echo", echo, "Once upon a time" + want)
    marked = {"content": "a<s>b</s>", "add_special": True}
    n = len(s.post("/tokenize", marked).json()["tokens"])
    check("control tokens are told from their texts", n < len(s.post("/tokenize", {**marked, "parse_special": False})
                                                              .json()["tokens"]), n)
    equal("they are control tokens in prompts", s.post(COMPLETION, {"prompt": marked["content"], "max_tokens": 1})
          .json()["usage"]["prompt_tokens"], n)
    mixed = s.post("/tokenize", {"content": "Once upon", "add_special": True}).json()["tokens"] + [" a time"]
    equal("tokens and texts", s.post(COMPLETION, {"prompt": mixed, "max_tokens": 1}).status, 200)
    equal("nothing", s.post(COMPLETION, {"prompt": "", "max_tokens": 1}).status, 200)
    equal("n_probs", len(s.post(COMPLETION, {"prompt": "a", "max_tokens": 1, "n_probs": 3}).json()["choices"][0]
                         ["logprobs"]["top_logprobs"][0]), 3)


def native_form(s):
    """The fields of llama.cpp's answers, and fields of its requests"""
    body = {"prompt": "Once upon a time", "n_predict": 8, "return_tokens": True, "stop": ["@@"], **SURE}
    r = s.post(NATIVE, body).json()
    equal("its fields", (r["prompt"][-16:], r["id_slot"], r["truncated"], r["has_new_line"], len(r["tokens"])),
          ("Once upon a time", -1, False, "\n" in r["content"], 8))
    equal("the text of its tokens", s.post("/detokenize", {"tokens": r["tokens"]}).json()["content"].strip(),
          r["content"].strip())
    g = r["generation_settings"]
    equal("its settings", (g["n_predict"], g["temperature"], g["top_k"], g["stop"], g["ignore_eos"]),
          (8, 0, 40, body["stop"], True))
    equal("none unless they are asked for", s.post(NATIVE, {**body, "return_tokens": False}).json()["tokens"], [])
    for asked in (True, False):
        events = [json.loads(e[6:]) for e in s.post(NATIVE, {**body, "stream": True, "return_tokens": asked})
                  .body.decode().split("\n\n") if e]
        equal("tokens of a stream", [t for e in events for t in e["tokens"]], r["tokens"])
    equal("counts of a stream", events[-2]["tokens_predicted"], 8)
    few = s.post(NATIVE, {**body, "response_fields": ["content", "timings/predicted_n", "a/b"]}).json()
    equal("only some", few, {"content": r["content"], "timings/predicted_n": 8})
    p = s.post(NATIVE, {**body, "n_probs": 2}).json()["completion_probabilities"][0]
    equal("ids of probable tokens", (p["id"], p["top_logprobs"][0]["id"]), (r["tokens"][0],) * 2)
    full = s.post(NATIVE, {**body, "n_predict": -1, "response_fields": ["truncated", "stop_type"]}).json()
    equal("a full context", full, {"truncated": True, "stop_type": "limit"})

    many = {**body, "prompt": ["Once", "Two", [5, 6]], "n": 2, "temperature": 1, "seed": 3,
            "response_fields": ["index", "prompt", "content", "generation_settings/seed"]}
    r = s.post(NATIVE, many).json()
    equal("several prompts", [(x["index"], x["generation_settings/seed"]) for x in r],
          [(i, 3 + i % 2) for i in range(6)])
    check("their prompts", r[0]["prompt"].endswith("Once") and r[3]["prompt"].endswith("Two"), r)
    one = s.post(NATIVE, {**many, "prompt": "Two", "n": 1, "seed": 4}).json()
    equal("an answer does not depend on the others", one["content"], r[3]["content"])
    events = [json.loads(e[6:]) for e in s.post(NATIVE, {**many, "stream": True, "response_fields": []})
              .body.decode().split("\n\n") if e]
    equal("one stream of them", ["".join(e["content"] for e in events if e["index"] == i) for i in range(6)],
          [x["content"] for x in r])

    def settings(**more):
        return s.post(NATIVE, {**body, "n_predict": 1, **more}).json()["generation_settings"]
    for seed in (-1, 2**32 - 1):
        equal(f"seed {seed} is another each time", len({settings(seed=seed)["seed"] for _ in range(3)}), 3)
    for seed in (5, 2**63, 2**64 - 2):
        equal(f"seed {seed}", settings(seed=seed)["seed"], seed)
    hot = {"top_k": 1, "temperature": 5, "min_p": 0.1}
    g = settings(samplers=["temperature", "top-p", "infill"], **hot)
    equal("samplers", (g["top_k"], g["temperature"], g["min_p"]), (0, 5, 0))
    g = settings(samplers=["top_k"], **hot)
    equal("the others", (g["top_k"], g["temperature"]), (1, 1))
    equal("greedy", settings(samplers=["top_k"], temperature=0)["temperature"], 0)
    equal("no list of them", settings(samplers="kt", **hot)["top_k"], 1)
    equal("min_keep", (settings()["min_keep"], settings(min_keep=5)["min_keep"]), (0, 5))
    r = s.post(NATIVE, {**body, "min_keep": -1})
    check("no fewer than none", r.status == 400 and "min_keep is -1" in r.error(), r.body)
    for slot in (-1, 1, 2):
        equal(f"id_slot {slot}", s.post(NATIVE, {**body, "n_predict": 1, "id_slot": slot}).json()["id_slot"], -1)
    late = s.post(NATIVE, {**body, "n_predict": 400, "t_max_predict_ms": 1, "grammar": 'root ::= ("a\\n")+'}).json()
    check("an answer that takes too long ends behind a line", late["tokens_predicted"] < 400 and
          "\n" in late["content"] and late["stop_type"] == "limit", late)
    for n, wanted in ((2, "a\n  b\n "), (1, "a\n  b\n c\n\n"), (0, "a\n  b\n c\n\nd")):
        r = s.post(NATIVE, {**body, "n_predict": 40, "n_indent": n, "ignore_eos": False,
                            "grammar": 'root ::= "a\\n  b\\n c\\n\\nd"'}).json()
        equal(f"n_indent {n}", r["content"], wanted)
        equal("ended by it", r["stop_type"], "limit" if n else "eos")
    equal("whole numbers may be written as 2.0", settings(n_predict=2.0)["n_predict"], 2)
    r = s.post(NATIVE, {**body, "n_predict": 2.5})
    check("2.5 is none", r.status == 400 and "n_predict is 2.5" in r.error(), r.body)


def choices(s):
    """One of several texts, as vLLM's clients ask for it"""
    texts = ["yes", 'n"o\\', "vielleicht \u00e9"]
    for field, value in (("guided_choice", texts), ("structured_outputs", {"choice": texts})):
        for seed in range(3):
            got = text_of(s, {"messages": HELLO, field: value, "temperature": 5, "seed": seed, "ignore_eos": False})
            check(f"{field} {seed}", got in texts, got)
    got = text_of(s, {"messages": HELLO, "structured_outputs": {"json": {"enum": [1, 2]}}, "ignore_eos": False})
    check("its schema", got in ("1", "2"), got)
    for body, said in (({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex is not supported"),
                       ({"guided_choice": [1]}, "guided_choice has 1, expected a text"),
                       ({"temperature": "x"}, 'temperature is "x", expected a number from 0.0')):
        r = s.post(CHAT, {"messages": HELLO, **body})
        check(said, r.status == 400 and said in r.error(), r.body)


def live(s):
    """How far a prompt is read, and how fast an answer is, while it is made"""
    asked = {"stream": True, "return_progress": True, "timings_per_token": True, "n_predict": 4, **SURE}
    words = "Once upon a time there was a small house. " * 20
    for path, body in ((NATIVE, {"prompt": words}), (COMPLETION, {"prompt": words}),
                       (CHAT, {"messages": [{"role": "user", "content": words}]})):
        r = s.post(path, {**body, **asked})
        events = [json.loads(e[6:]) for e in r.body.decode().split("\n\n") if e.startswith("data: {")]
        seen = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        check(f"{path}: progress", len(seen) >= 2 and all(set(p) == {"total", "cache", "processed", "time_ms"}
                                                          for p in seen), seen)
        equal(f"{path}: from nothing to all", (seen[0]["processed"], seen[-1]["processed"], seen[0]["cache"]),
              (0, seen[0]["total"], 0))
        check(f"{path}: it grows", seen == sorted(seen, key=lambda p: (p["processed"], p["time_ms"])), seen)
        counts = [e["timings"]["predicted_n"] for e in events if "timings" in e]
        check(f"{path}: timings", len(counts) >= 4 and counts == sorted(counts) and counts[-1] == 4, counts)
        first = next(e["timings"] for e in events if "timings" in e)
        equal(f"{path}: one token has no speed", (first["predicted_n"], first["predicted_per_second"]), (1, 0))
        last = events[-1]["timings"]  # of the steps between the tokens, as llama.cpp counts them
        steps = last["predicted_per_second"] * last["predicted_ms"] / 1000
        check(f"{path}: the speed at the end", abs(steps / 3 - 1) < 1e-6,
              last)
        equal(f"{path}: of its prompt", events[-1]["timings"]["prompt_n"], seen[0]["total"])
    r = s.post(CHAT, {"messages": HELLO, "max_tokens": 2, "return_progress": True})
    check("whole answers have none", r.status == 200 and "prompt_progress" not in r.json(), r.body)


def tokens(s):
    whole = s.post("/tokenize", {"content": "a caf\u00e9"}).json()["tokens"]
    pieces = s.post("/tokenize", {"content": "a caf\u00e9", "with_pieces": True}).json()["tokens"]
    equal("pieces", [p["id"] for p in pieces], whole)
    joined = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
    equal("their texts", joined.decode().strip(), "a caf\u00e9")
    equal("a list", s.post("/tokenize", {"content": ["a", whole[-1]]}).json()["tokens"][-1], whole[-1])
    r = s.post("/detokenize", {"tokens": [10**8]})
    check("an unknown token", r.status == 400 and "recall-4m-f16" in r.error() and "/" not in r.error(), r.body)


def routes(s):
    for a, b in (("/models", "/v1/models"), ("/v1/health", "/health")):
        equal(a, s.get(a).json(), s.get(b).json())
    props, model = s.get("/props").json(), s.get("/v1/models").json()["data"][0]
    equal("/props", (props["default_generation_settings"]["n_ctx"], props["total_slots"], props["model_path"],
                     props["modalities"]["vision"]), (512, 3, os.path.basename(MODEL), False))
    equal("the context", model["meta"]["n_ctx"], 512)
    inspected = subprocess.run([sys.argv[1], "inspect", "--json", MODEL], capture_output=True, check=True).stdout
    facts = json.loads(inspected)
    equal("its size", {k: model["meta"][k] for k in ("n_params", "size", "n_vocab", "n_embd", "n_ctx_train")},
          {"n_params": facts["parameters"], "size": sum(t["bytes"] for t in facts["tensors"]),
           "n_vocab": facts["config"]["vocab"], "n_embd": facts["config"]["dim"],
           "n_ctx_train": facts["config"]["context"]})
    slots = s.get("/slots").json()
    equal("/slots has free ones", [(x["id"], x["state"], x["is_processing"], x["n_ctx"]) for x in slots],
          [(i, "idle", False, 512) for i in range(3)])
    r = s.post("/slots/0?action=save", {"filename": "x"})
    check("slots are saved as sessions", r.status == 400 and "--sessions" in r.error(), r.body)
    equal("OPTIONS of no page", s.ask("OPTIONS", "/health").status, 204)
    n = s.post(CHAT, {"messages": HELLO, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    equal("tokens of a chat", s.post(CHAT + "/input_tokens", {"messages": HELLO}).json()["input_tokens"], n)
    equal("of a response", s.post("/v1/responses/input_tokens", {"input": "Hello"}).json()["input_tokens"], n)
    equal("a chat without /v1", s.post("/chat/completions", {"messages": HELLO, "max_tokens": 1}).status, 200)
    e = s.post("/embedding", {"content": "a"}).json()
    equal("llama.cpp's vectors", (len(e), e[0]["index"], e[0]["embedding"][0]),
          (1, 0, s.post("/v1/embeddings", {"input": "a"}).json()["data"][0]["embedding"]))
    r = s.post(CHAT, {"messages": HELLO, "max_tokens": 2, "stream": True}).events()
    check("timings at the end of a stream", r[-1]["timings"]["predicted_n"] == 2, r[-1])
    check("metrics", s.metric("llamacpp:tokens_predicted_total") > 0 and
          s.metric("llamacpp:requests_processing") == 0, s.get("/metrics").body[-900:])


def options():
    given = ["-fa", "on", "-t", "4", "-tb", "4", "-b", "512", "--jinja", "--metrics", "--slots", "--no-webui", "-cb",
             "--mlock", "--no-mmap", "--embeddings", "--reranking", "--pooling", "mean", "--reasoning-format", "none",
             "--no-context-shift", "-kvu", "--cache-reuse", "256", "-v", "--no-slots", "-nocb", "-no-kvu",
             "--cache-prompt", "--no-cache-prompt", "-sps", "0.5", "--no-mmproj-auto", "--reuse-port", "--no-ui"]
    with Server(*given, "-ctk", "q8_0", "-ctv", "q4_0", "--temp", "0", "-n", "5", "-s", "3", "-to", "60",
                "--chat-template-file", TEMPLATE, "--chat-template-kwargs", '{"a": 1}', "--cors", "http://a.example",
                "--cors", "http://b.example,http://c.example", "--allow-host", "host.docker.internal") as s:
        r = s.post(NATIVE, {"prompt": "Once", "ignore_eos": True}).json()
        equal("-n", r["tokens_predicted"], 5)
        equal("-ctk", s.get("/v1/models").json()["data"][0]["meta"]["kv"], "rtn4,k.bits=8,v.bits=4")
        equal("--temp", s.get("/props").json()["default_generation_settings"]["params"]["temperature"], 0)
        for origin, status in (("http://b.example", 200), ("http://c.example", 200), ("http://d.example", 403)):
            equal(origin, s.get("/health", Origin=origin).status, status)
        equal("--allow-host", s.get("/health", Host="host.docker.internal:8080").status, 200)
        r = s.get("/health", Host="other.example")
        check("another host", r.status == 403 and "--allow-host" in r.error(), r.body)
        equal("it ends", s.stop(), 0)
        said = b"".join(s.log).decode()
        check("warnings", "-fa has no effect" in said and "--cache-reuse has no effect" in said, said)


def thinking():
    """--no-think is a variable of the template, which a request may set"""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write("{{ a }} {{ enable_thinking }}{% for m in messages %}{{ m.content }}{% endfor %}")
        f.flush()
        text = lambda **more: s.post("/apply-template", {"messages": HELLO, **more}).json()["prompt"]
        with Server("--no-think", "--chat-template", f.name, "--chat-template-kwargs",
                    '{"a": "b", "enable_thinking": true}') as s:
            check("--no-think", text().startswith("b False"), text())
            own = text(chat_template_kwargs={"enable_thinking": True})
            check("a request says otherwise", own.startswith("b True"), own)


def scales(*values):
    return [{"id": i, "scale": v} for i, v in enumerate(values)]


def made(s, **more):
    """What depends on the adapters: tokens of an answer, and how many of its prompt's were not read again"""
    r = s.post(NATIVE, {"prompt": "a b c d e f " * 3, "n_predict": 12, "temperature": 0, "ignore_eos": True,
                        "return_tokens": True, **more})
    check("it is answered", r.status == 200, r.body[:300])
    return r.json()["tokens"], r.json()["timings"]["cache_n"]


def vector(s):
    return s.post("/v1/embeddings", {"input": "a b c"}).json()["data"][0]["embedding"]


def adapters():
    """Scales of adapters, of the server and of a request, are those of a server that was started with them"""
    lora = os.path.join(ROOT, "tests", "golden", "lora", "llama.gguf")
    llama = os.path.join(os.path.dirname(TINY), "llama.gguf")
    all_scales, want, vectors = [(0.1, 1), (2, 0), (0, 0)], {}, {}
    for a, b in all_scales:
        with Server("--lora", f"{lora}:{a},{lora}:{b}", "-c", "64", model=llama) as s:
            want[a, b], vectors[a, b] = made(s)[0], vector(s)
    equal("they change answers", len({str(w) for w in want.values()}), 3)
    equal("and vectors", len({str(v) for v in vectors.values()}), 3)
    with Server("--lora", f"{lora}:0.1,{lora}", "-c", "64", "-np", "4", "--idle-unload", "0.05", model=llama) as s:
        listed = lambda *values: [{"id": i, "path": "llama.gguf", "scale": v} for i, v in enumerate(values)]
        equal("its adapters", s.get("/lora-adapters").json(), listed(0.1, 1))
        equal("of the start", made(s), (want[0.1, 1], 0))
        for own in all_scales[1:] + all_scales[:1]:
            again = own == (0.1, 1)
            tokens, cached = made(s, lora=scales(*own))
            equal(f"of a request: {own}", tokens, want[own])
            check("a cache of other scales is not reused", (cached > 0) == again, cached)
        equal("those left out are 0", made(s, lora=scales(2))[0], want[2, 0])
        both = s.post("/v1/completions", {"prompt": "a b c d e f", "max_tokens": 12, "temperature": 0, "n": 2,
                                          "lora": scales(2, 0)}).json()["choices"]
        equal("both choices have the same", both[0]["text"], both[1]["text"])
        equal("an empty list says nothing", made(s, lora=[])[0], want[0.1, 1])

        results = {}
        def ask(i):
            results[i] = vector(s) if i % 4 == 3 else made(s, lora=scales(*all_scales[i % 4]), cache_prompt=i < 8)[0]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i in range(16):
            equal(f"request {i} among others", results[i],
                  vectors[0.1, 1] if i % 4 == 3 else want[all_scales[i % 4]])

        equal("others for all requests", s.post("/lora-adapters", scales(2, 0)).json(), {"success": True})
        equal("are shown", s.get("/lora-adapters").json(), listed(2, 0))
        equal("in answers", made(s)[0], want[2, 0])
        equal("in vectors", vector(s), vectors[2, 0])
        for _ in range(200):
            if s.get("/health").json()["model"] == "unloaded":
                break
            time.sleep(0.05)
        equal("also when the model was unloaded", made(s)[0], want[2, 0])
        for bad, said in ((scales(1, 1, 1), "no adapter 2"), ([{"id": 0}], "no scale"), ({}, "not an array"),
                          ([5], "not an object"), ([{"id": 0, "scale": 1e60}], "scale")):
            for r in (s.post("/lora-adapters", bad), s.post(NATIVE, {"prompt": "a", "n_predict": 1, "lora": bad})):
                check(f"not {bad}", r.status == 400 or bad == {} and r.status == 200, r.body)
                check("it is said", said in r.error() if r.status == 400 else True, r.body)
        equal("nothing has changed", s.get("/lora-adapters").json(), listed(2, 0))
    with Server("--lora", lora, "--lora-init-without-apply", "-c", "64", model=llama) as s:
        equal("loaded, and not applied", s.get("/lora-adapters").json(), listed(0))
        equal("as without", made(s)[0], want[0, 0])
        equal("until a request wants it", made(s, lora=scales(2))[0], want[2, 0])


def main():
    with Server("--chat-template", "chatml", "-c", "512", "-np", "3") as s:
        for part in (unknown, begun, native, native_form, live, choices, tokens, routes):
            part(s)
            check(f"the server goes on after {part.__name__}", s.alive())
        equal("it ends", s.stop(), 0)
        said = b"".join(s.log).decode()
        equal("a notice comes once", said.count("request field 'nonsense' is unknown and ignored"), 1)
        equal("that places are not chosen, once", said.count("id_slot is ignored: "), 1)
        left = "a keyword is not enforced: the JSON schema at #/uniqueItems: uniqueItems is not supported"
        check("and of a keyword", left in said, said)
    options()
    thinking()
    adapters()
    finish()


main()

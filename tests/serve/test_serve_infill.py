#!/usr/bin/env python3
"""kvrun serve fills in the middle: /infill and suffix of /v1/completions give the answer to the tokens that the
markers, prefix, suffix and files make. Usage: test_serve_infill.py KVRUN"""
import json, os, struct, sys, tempfile
from serving import MODEL, ROOT, TINY, Server, check, equal, finish

sys.path.insert(0, os.path.join(ROOT, "tools", "dev"))
from gguf_file import parse_header

COMPLETION, INFILL = "/v1/completions", "/infill"
# any tokens of the vocabulary: the model is not trained for it
MARKERS = {"fim_pre": 50, "fim_suf": 51, "fim_mid": 52, "fim_rep": 53, "fim_sep": 54}
GREEDY = {"temperature": 0, "ignore_eos": True}


def with_markers(path, markers):
    """The tiny model with more keys, u32 each, before its own."""
    with open(TINY, "rb") as f:
        data = f.read()
    _, _, end, base = parse_header(TINY, data)
    keys = b""
    for name, token in markers.items():
        key = f"tokenizer.ggml.{name}_token_id".encode()
        keys += struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, token)
    head = data[:16] + struct.pack("<Q", struct.unpack_from("<Q", data, 16)[0] + len(markers)) + keys + data[24:end]
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data[base:])


def tokens(s, text):
    return s.post("/tokenize", {"content": text, "parse_special": False}).json()["tokens"]


def wanted(s, prompt, n):
    r = s.post(COMPLETION, {"prompt": prompt, "max_tokens": n, **GREEDY})
    check("tokens are answered", r.status == 200, r.body[:300])
    return r.json()["choices"][0]["text"]


def infill(s, body):
    r = s.post(INFILL, {**GREEDY, **body})
    check(f"{body} is answered", r.status == 200, r.body[:300])
    return r.json()


def prompts(s):
    bos = s.post("/tokenize", {"content": "", "add_special": True}).json()["tokens"]
    pre, suf, mid, rep, sep = MARKERS.values()
    plain = [*bos, pre, *tokens(s, "a b"), suf, *tokens(s, " ab"), mid]
    text = wanted(s, plain, 6)
    got = infill(s, {"input_prefix": "a b", "input_suffix": " ab", "n_predict": 6})
    equal("the answer", got["content"], text)
    equal("its tokens", (got["tokens_evaluated"], got["tokens_predicted"]), (len(plain), 6))
    equal("why it ended", (got["stop"], got["stop_type"]), (True, "limit"))
    check("timings by llama.cpp's names", {"prompt_n", "predicted_n", "prompt_ms"} <= set(got["timings"]), got)
    equal("prompt goes on with the prefix",
          infill(s, {"input_prefix": "a ", "prompt": "b", "input_suffix": " ab", "n_predict": 6})["content"],
          wanted(s, [*bos, pre, *tokens(s, "a b"), suf, *tokens(s, " ab"), mid], 6))
    both = s.post(COMPLETION, {"prompt": "a b", "suffix": " ab", "max_tokens": 6, **GREEDY}).json()
    equal("suffix of a completion", both["choices"][0]["text"], text)
    equal("its prompt's tokens", both["usage"]["prompt_tokens"], len(plain))

    files = [*bos, rep, *tokens(s, "myproject\n"), sep, *tokens(s, "one.c\na"), sep, *tokens(s, "two.c\nb"), sep,
             *tokens(s, "filename\n"), pre, *tokens(s, "a"), suf, *tokens(s, "b"), mid]
    extra = [{"filename": "one.c", "text": "a"}, {"filename": "two.c", "text": "b"}]
    got = infill(s, {"input_prefix": "a", "input_suffix": "b", "input_extra": extra, "n_predict": 6})
    equal("the answer behind files", got["content"], wanted(s, files, 6))
    equal("its tokens", got["tokens_evaluated"], len(files))


def editors(s):
    """What llama.vim and llama.vscode send."""
    body = {"input_prefix": "a b", "input_suffix": " ab", "input_extra": [], "prompt": "", "n_indent": 2, "top_k": 40,
            "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
            "t_max_predict_ms": 1000, "stream": False}
    warm = infill(s, {**body, "n_predict": 0})
    equal("a prompt that is only read", (warm["content"], warm["tokens_predicted"]), ("", 0))
    again = infill(s, {**body, "n_predict": 6})
    check("is reused", again["tokens_cached"] >= warm["tokens_evaluated"] - 1, (again, warm))
    r = s.post(INFILL, {**GREEDY, **body, "n_predict": 6, "stream": True})
    events = [json.loads(e[len("data: "):]) for e in r.body.decode().split("\n\n") if e.startswith("data: ")]
    equal("the stream's text", "".join(e["content"] for e in events), again["content"])
    equal("its end", [e["stop"] for e in events], [False] * (len(events) - 1) + [True])


def long_texts(s):
    """The text around the cursor stays: the end of the prefix, the beginning of the suffix, the last files."""
    room = 64 - 8
    words = "".join(f"{chr(97 + i % 26)} " for i in range(200))
    for body in ({"input_prefix": words}, {"input_suffix": words}, {"input_prefix": words, "input_suffix": words},
                 {"input_prefix": "a", "input_suffix": "b",
                  "input_extra": [{"filename": "x", "text": words}, {"filename": "y", "text": "a b"}]}):
        got = infill(s, {"n_predict": 8, **body})
        check("it fits the context", 4 <= got["tokens_evaluated"] <= room, got["tokens_evaluated"])
    bos = s.post("/tokenize", {"content": "", "add_special": True}).json()["tokens"]
    pre, suf, mid, _, _ = MARKERS.values()
    left = room - len(bos) - 3
    suffix = tokens(s, words)[:left // 4]
    prompt = [*bos, pre, *tokens(s, words)[-(left - len(suffix)):], suf, *suffix, mid]
    equal("what stays", infill(s, {"input_prefix": words, "input_suffix": words, "n_predict": 8})["content"],
          wanted(s, prompt, 8))
    r = s.post(COMPLETION, {"prompt": words, "suffix": words, "max_tokens": 8})
    check("a completion is not cut", r.status == 400 and "tokens can hold" in r.error(), r.body)


def refused(s, plain):
    for server, path, body, why in (
            (plain, INFILL, {"input_prefix": "a"}, "no tokens for filling in the middle"),
            (plain, COMPLETION, {"prompt": "a", "suffix": "b"}, "no tokens for filling in the middle"),
            (s, COMPLETION, {"prompt": [3, 4], "suffix": "b"}, "suffix is for prompts that are texts"),
            (s, INFILL, {"input_prefix": 3}, "input_prefix"),
            (s, INFILL, {"input_extra": 3}, "input_extra"),
            (s, INFILL, {"input_extra": [3]}, "input_extra"),
            (s, INFILL, {"input_extra": [{"filename": "a"}]}, "without text"),
            (s, INFILL, {"input_prefix": "a", "n": 2}, "one answer"),
            (s, INFILL, {"input_prefix": "a", "n_predict": "x"}, "n_predict"),
            (s, INFILL, {"input_prefix": "a", "mirostat": 3}, "mirostat")):
        r = server.post(path, body)
        check(f"{path} {body} is refused", r.status == 400 and why in (r.error() or ""), (r.status, r.body))


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "model.gguf")
    with_markers(model, MARKERS)
    with Server("-c", "128", model=model) as s, Server(model=MODEL) as plain:
        prompts(s)
        editors(s)
        refused(s, plain)
        check("the server is alive", s.alive())
    with Server("-c", "64", model=model) as s:
        long_texts(s)
finish()

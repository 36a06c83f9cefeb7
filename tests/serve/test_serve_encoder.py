#!/usr/bin/env python3
"""Serves models that encode texts: /v1/embeddings and /v1/rerank, beside the numbers of HF transformers. Usage:
test_serve_encoder.py KVRUN."""
import json, math, os

from serving import ROOT, Server, check, equal, finish

FOLDER = os.path.join(ROOT, "tests", "golden", "encoder")
EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"


def golden(name):
    with open(os.path.join(FOLDER, name + ".json"), encoding="utf-8") as f:
        return json.load(f)


def unit(v):
    length = math.sqrt(sum(x * x for x in v))
    return [x / length for x in v]


def distance(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def file_of(name):
    return os.path.join(FOLDER, name + ".gguf")


def vectors(name):
    want = golden(name)
    with Server(model=file_of(name)) as s:
        got = s.post(EMBEDDINGS, {"input": want["texts"]}).json()
        for g, w in zip(got["data"], want["embeddings"], strict=True):
            check(f"{name}: vector {g['index']}", distance(g["embedding"], unit(w)) < 1e-3,
                  distance(g["embedding"], unit(w)))
        equal("usage", got["usage"]["prompt_tokens"], sum(map(len, want["texts"])))
        short = s.post(EMBEDDINGS, {"input": want["texts"][2], "dimensions": 7}).json()["data"][0]["embedding"]
        check("shorter vectors have length 1", distance(short, unit(want["embeddings"][2][:7])) < 1e-3, short)
        text, two = (s.post(EMBEDDINGS, {"input": t}).json() for t in ("hello world", ["hello world", "a house"]))
        equal("a text is the same beside another", two["data"][0]["embedding"], text["data"][0]["embedding"])
        tokens = os.path.join(FOLDER, name + ".tokens.json")
        if os.path.exists(tokens):
            with open(tokens, encoding="utf-8") as f:
                strings = json.load(f)
            some = [(t, i) for t, i in zip(strings["strings"], strings["ids"]) if 2 < len(i) < 40][:8]
            of_texts, of_tokens = (s.post(EMBEDDINGS, {"input": [pair[k] for pair in some]}).json() for k in (0, 1))
            equal("texts have the tokens of transformers", of_texts["data"], of_tokens["data"])
            ids = [s.post("/tokenize", {"content": t, "add_special": True}).json()["tokens"] for t, _ in some]
            equal("/tokenize has the tokens around them", ids, [i for _, i in some])
            ids = [s.post("/tokenize", {"content": t}).json()["tokens"] for t, _ in some]
            check("if they are asked for", all(len(i) < len(j) for i, (_, j) in zip(ids, some)), ids)
        meta = s.get("/v1/models").json()["data"][0]["meta"]
        equal("/v1/models says what it is", meta["encodes"], True)
        r = s.post(EMBEDDINGS, {"input": "word " * 5000})
        check("too long", r.status == 400 and "tokens" in r.error(), r.body)
        for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                           ("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"}),
                           ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]})):
            r = s.post(path, body)
            check(f"{path} is refused", r.status == 400 and "encodes texts" in r.body.decode(), r.body)
        r = s.post(RERANK, {"query": "a", "documents": ["b"]})
        check("no classifier", r.status == 400 and "reranker" in r.error(), r.body)
        check("the server goes on", s.alive())
        equal("it ends", s.stop(), 0)


def ranked(name):
    """Scores of pairs that transformers has tokenized itself; the order of documents"""
    pairs = golden(name)["pairs"]
    largest = max(abs(p["score"]) for p in pairs)
    with Server(model=file_of(name)) as s:
        for p in pairs:
            got = s.post(RERANK, {"query": p["query"], "documents": [p["document"]]}).json()
            want = p.get("typed", p["score"])  # with the types that the tokenizer of a pair gives
            want = want[0] if isinstance(want, list) else want
            score = got["results"][0]["relevance_score"]
            check(f"{name}: {p['document']}", abs(score - want) < 2e-3 * largest, (score, want))
            equal("usage", got["usage"]["prompt_tokens"], len(p["ids"]))
        query, documents = pairs[0]["query"], [p["document"] for p in pairs]
        alone = [s.post(RERANK, {"query": query, "documents": [d]}).json()["results"][0]["relevance_score"]
                 for d in documents]
        order = sorted(range(len(alone)), key=lambda i: -alone[i])
        got = s.post(RERANK, {"query": query, "documents": documents}).json()["results"]
        equal("the best first, as alone", [(r["index"], r["relevance_score"]) for r in got],
              [(i, alone[i]) for i in order])
        top = s.post("/rerank", {"query": query, "documents": [{"text": d} for d in documents], "top_n": 2,
                                 "return_documents": True}).json()["results"]
        equal("the best two, with their texts", [(r["index"], r["document"]["text"]) for r in top],
              [(i, documents[i]) for i in order[:2]])
        plain = s.post("/rerank", {"query": query, "texts": documents, "return_text": True}).json()
        equal("as text-embeddings-inference has it", [(r["index"], r["text"]) for r in plain],
              [(i, documents[i]) for i in order])
        for what, body, param in (("no query", {"documents": ["a"]}, "query"),
                                  ("no documents", {"query": "a"}, "documents"),
                                  ("an empty list", {"query": "a", "documents": []}, "documents"),
                                  ("a number", {"query": "a", "documents": [1]}, "documents"),
                                  ("top_n 0", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
                                  ("a text that is too long", {"query": "a", "documents": ["word " * 9000]}, None)):
            r = s.post(RERANK, body)
            equal(f"{what}", r.status, 400)
            if param:
                equal(f"{what}: the field", r.json()["error"]["param"], param)
        check("the server goes on", s.alive())


def both():
    """A model that answers, and another for embeddings and ranks"""
    want = golden("xlmr_reranker")["pairs"][0]
    with Server("--embedding-model", file_of("xlmr_reranker"), "--strict-model") as s:
        equal("both models", [m["id"] for m in s.get("/v1/models").json()["data"]], ["recall-4m-f16", "xlmr_reranker"])
        equal("one of them", s.get("/v1/models/xlmr_reranker").json()["meta"]["encodes"], True)
        r = s.post("/v1/completions", {"model": "recall-4m-f16", "prompt": "Once", "max_tokens": 3})
        equal("answers are the model's", (r.status, r.json()["model"]), (200, "recall-4m-f16"))
        r = s.post(RERANK, {"model": "xlmr_reranker", "query": want["query"], "documents": [want["document"]]}).json()
        check("ranks are the other's", abs(r["results"][0]["relevance_score"] - want["score"]) < 2e-3, r)
        r = s.post(EMBEDDINGS, {"model": "xlmr_reranker", "input": "hello"}).json()
        equal("its vectors", (r["model"], len(r["data"][0]["embedding"])), ("xlmr_reranker", 32))
        equal("a wrong name", [s.post(path, {"model": name, **body}).status for path, name, body in (
            (EMBEDDINGS, "recall-4m-f16", {"input": "a"}), ("/v1/completions", "xlmr_reranker", {"prompt": "a"}))],
            [404, 404])
        r = s.post(EMBEDDINGS, {"input": "word " * 100, "model": "xlmr_reranker"})
        check("its own context", r.status == 400 and "64" in r.error(), r.body)


def main():
    both()
    for name in ("bert", "gemma_embedding", "nomic_bert"):
        vectors(name)
    for name in ("bert_reranker", "xlmr_reranker", "modernbert_reranker", "qwen3_reranker"):
        ranked(name)
    finish()


main()

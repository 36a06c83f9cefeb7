#!/usr/bin/env python3
"""Compares llama.cpp with tests/golden/encoder: writes peer.csv there.

make_encoder_peer.py PEER [NAME...]
PEER is a folder with Debian and llama.cpp (../shared/peer/setup.sh makes one; needs root for chroot). Needs numpy and
gguf. Columns: what is compared ("embeddings": the largest difference of a channel, each embedding at length 1; "scores"
and, by /rerank, "pairs": the largest difference of a score; "tokens": the number of strings with other ids); the
difference; the same with all weights as F32, since llama.cpp rounds rows to F16 in front of F16 matrices; why they
differ. With names: prints only.
"""
import csv
import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np

from peer_server import PeerServer

GOLDEN = Path(__file__).resolve().parents[2] / "tests/golden/encoder"
PORT = 8097
GELU = "GELU of llama.cpp: the tanh form from a table of F16 values; with such a table transformers differs by < 2e-5"
# (name, what) -> why llama.cpp differs by more than rounding.
REMARKS = {(name, "scores" if "reranker" in name else "embeddings"): GELU
           for name in ("bert", "bert_reranker", "xlmr", "xlmr_reranker", "jina_v3", "nomic_bert_moe")} | {
    **{(name, "embeddings"): "the tanh form is the model's, but llama.cpp has it from a table of F16 values"
       for name in ("gemma_embedding", "gemma_embedding2")},
    ("llama_embed", "embeddings"): "llama.cpp 0.7.0 attends causally, as the file has no attention.causal; with it "
                                   "(false) the difference is 3e-7",
    ("jina_v2", "embeddings"): GELU,
    ("jina_v2_code", "embeddings"): "llama.cpp 0.7.0 applies GELU to the half that comes first in the file, which is "
                                    "up; of a file with the halves exchanged the difference is 1.0e-4",
    ("bert", "tokens"): "llama.cpp keeps words of more than 100 characters, and drops marks of category Me like "
                        "those of Mn",
    ("xlmr", "tokens"): "a control character is unknown to sentencepiece and llama.cpp, and dropped by "
                        "transformers; the converter gives the mask no name",
    ("modernbert", "tokens"): "llama.cpp has neither NFC nor, without the model's published name, the mask that takes "
                              "the space in front of it"}


def write_f32(path, out):
    """The same file with all weights as F32."""
    reader = gguf.GGUFReader(path)
    w = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            w.add_key_value(key, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        w.add_tensor(t.name, np.asarray(t.data, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def answers(peer, model, pooling, texts, strings=(), pairs=()):
    """(rows of numbers, ids of strings, scores of pairs) of llama-server."""
    options = ["-m", model, "--embeddings", "--pooling", pooling, "-c", "512", "-b", "512", "-ub", "512", "-ngl", "0",
               "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-warmup"] + ["--rerank"] * bool(pairs)
    with PeerServer(peer, options, PORT) as server:
        rows = server.ask("/embedding", {"content": texts, "embd_normalize": -1})
        rows = [np.array(r["embedding"][0]) for r in sorted(rows, key=lambda r: r["index"])]
        ids = [server.ask("/tokenize", {"content": s, "add_special": True, "parse_special": True})["tokens"]
               for s in strings]
        ranked = [server.ask("/rerank", {"query": p["query"], "documents": [p["document"]]})["results"] for p in pairs]
    return rows, ids, [r[0]["relevance_score"] for r in ranked]


def difference(rows, doc):
    if "scores" in doc:
        return max(float(np.abs(r[:len(s)] - s).max()) for r, s in zip(rows, map(np.array, doc["scores"])))
    unit = lambda v: v / np.linalg.norm(v)
    return max(float(np.abs(unit(r) - unit(np.array(e))).max()) for r, e in zip(rows, doc["embeddings"]))


def compare(peer, name):
    doc = json.loads((GOLDEN / f"{name}.json").read_text())
    path = GOLDEN / f"{name}.tokens.json"
    tokens = json.loads(path.read_text()) if path.exists() else {"strings": [], "ids": []}
    folder = Path(peer) / "tmp/kvrun-encoder"
    folder.mkdir(exist_ok=True)
    try:
        shutil.copy(GOLDEN / f"{name}.gguf", folder / "file.gguf")
        write_f32(GOLDEN / f"{name}.gguf", folder / "f32.gguf")
        run = lambda file: answers(peer, f"/tmp/kvrun-encoder/{file}.gguf", doc["pooling"], doc["texts"],
                                   tokens["strings"], doc.get("pairs", []))
        rows, ids, scores = run("file")
        exact, _, exact_scores = run("f32")
    finally:
        shutil.rmtree(folder)
    what = "scores" if "scores" in doc else "embeddings"
    yield name, what, f"{difference(rows, doc):.1e}", f"{difference(exact, doc):.1e}"
    if pairs := doc.get("pairs"):
        by = [max(abs(a - p["score"]) for a, p in zip(s, pairs)) for s in (scores, exact_scores)]
        yield name, "pairs", f"{by[0]:.1e}", f"{by[1]:.1e}"
    if tokens["strings"]:
        other = [i for i, (a, b) in enumerate(zip(ids, tokens["ids"])) if a != b]
        if len(sys.argv) > 2:
            for i in other:
                print(repr(tokens["strings"][i])[:100])
                print("  llama.cpp", ids[i][:50], "\n  file     ", tokens["ids"][i][:50])
        yield name, "tokens", len(other), ""


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    names = sys.argv[2:] or sorted(p.stem for p in GOLDEN.glob("*.gguf"))
    rows = []
    for name in names:
        for row in compare(sys.argv[1], name):
            rows.append([*row, REMARKS.get(row[:2], "")])
            print(*rows[-1])
    if not sys.argv[2:]:
        with (GOLDEN / "peer.csv").open("w", newline="") as f:
            csv.writer(f, lineterminator="\n").writerows([["name", "what", "difference", "f32", "remark"]] + rows)


if __name__ == "__main__":
    main()

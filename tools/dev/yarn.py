#!/usr/bin/env python3
"""Writes a copy of a model with a longer context by YaRN: the scaling is added to its metadata, weights are unchanged.

  tools/dev/yarn.py MODEL OUT [--factor F]     python3; a GGUF file without RoPE scaling; F times the context [2]
"""
import argparse
import os
import struct
import sys

from gguf_file import parse_header

STRING, U32, FLOAT = 8, 4, 6


def entry(key, kind, value):
    name = key.encode()
    body = {STRING: lambda: struct.pack("<Q", len(value)) + value.encode(), U32: lambda: struct.pack("<I", value),
            FLOAT: lambda: struct.pack("<f", value)}[kind]()
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + body


def main():
    p = argparse.ArgumentParser(prog="tools/dev/yarn.py", allow_abbrev=False)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--factor", type=float, default=2)
    a = p.parse_args()
    if not 1 < a.factor <= 64:
        sys.exit(f"yarn: --factor is {a.factor:g}, expected more than 1, at most 64")
    if os.path.exists(a.out) and os.path.samefile(a.model, a.out):
        sys.exit("yarn: OUT is the model itself; name another file")
    with open(a.model, "rb") as f:
        data = bytearray(f.read())
    meta, _, end, base = parse_header(a.model, data)
    arch = meta.get("general.architecture", "")
    trained = meta.get(f"{arch}.context_length")
    if trained is None or f"{arch}.rope.scaling.type" in meta:
        sys.exit(f"yarn: {a.model} has no {arch}.context_length, or has RoPE scaling already")
    # The context is changed in place; new entries come after the count of entries and before the others.
    key = f"{arch}.context_length".encode()
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    if struct.unpack_from("<I", data, at)[0] != U32:
        sys.exit(f"yarn: {a.model}: {arch}.context_length is not a 32-bit number")
    struct.pack_into("<I", data, at + 4, round(trained * a.factor))
    added = [entry(f"{arch}.rope.scaling.type", STRING, "yarn"), entry(f"{arch}.rope.scaling.factor", FLOAT, a.factor),
             entry(f"{arch}.rope.scaling.original_context_length", U32, trained)]
    struct.pack_into("<Q", data, 16, struct.unpack_from("<Q", data, 16)[0] + len(added))
    head = data[:24] + b"".join(added) + data[24:end]
    head += bytes(-len(head) % meta.get("general.alignment", 32))
    with open(a.out + ".part", "wb") as f:
        f.write(head + data[base:])
    os.replace(a.out + ".part", a.out)


if __name__ == "__main__":
    main()

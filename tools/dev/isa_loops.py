#!/usr/bin/env python3
"""Counts instructions in loops of AMD assembly, written by `kvrun devices --shaders --family CHIP --assembly FOLDER`.

  tools/dev/isa_loops.py FILE... [--use TEXT]     --use: only pipelines whose description contains TEXT; may be repeated

One line per innermost loop, in the order of the code: instructions, vector arithmetic, LDS instructions, memory loads
with bytes per lane, and the bytes in flight before the first wait. A loop that is unrolled or inlined twice has two
lines.
"""
import argparse
import re
import sys

BYTES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "ubyte": 1, "ushort": 2, "sbyte": 1, "sshort": 2,
         "short_d16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16, "u8": 1, "u16": 2}
LOAD = re.compile(r"(?:global|buffer|flat)_load_(\w+)")


def blocks_of(lines):
    """[(label, [instruction, ...])] of a program."""
    out = [("", [])]
    for line in lines:
        code = line.split(";")[0].strip()
        if code.endswith(":"):
            out.append((code[:-1], []))
        elif code:
            out[-1][1].append(code)
    return out


def loops_of(blocks):
    """Ranges [first, last] of blocks enclosed by a backward branch, innermost ones only."""
    at = {label: i for i, (label, _) in enumerate(blocks)}
    found = set()
    for i, (_, code) in enumerate(blocks):
        for c in code:
            m = re.match(r"s_c?branch\w*\s+(\w+)", c)
            if m and at.get(m[1], i + 1) <= i:
                found.add((at[m[1]], i))
    return sorted(a for a in found if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in found))


def load_bytes(code):
    m = LOAD.match(code)
    return BYTES.get(m[1].replace("sbyte_d16", "sbyte"), 4) if m else 0


def row(code):
    names = [c.split()[0] for c in code]
    vector = sum(n.startswith("v_") and not n.startswith(("v_readlane", "v_readfirstlane", "v_nop")) for n in names)
    waits = [i for i, c in enumerate(code) if c.startswith("s_waitcnt") and "vmcnt" in c]
    first = next((i for i in waits if any(load_bytes(c) for c in code[:i])), len(code))
    return {"instructions": len(code), "vector": vector, "LDS": sum(n.startswith("ds_") for n in names),
            "loads": sum(load_bytes(c) > 0 for c in code), "bytes": sum(map(load_bytes, code)),
            "in flight": sum(map(load_bytes, code[:first]))}


def main():
    p = argparse.ArgumentParser(prog="tools/dev/isa_loops.py", allow_abbrev=False)
    p.add_argument("files", nargs="+")
    p.add_argument("--use", action="append", default=[])
    a = p.parse_args()
    shown = 0
    for path in a.files:
        with open(path) as f:
            lines = f.read().splitlines()
        if not all(text in lines[0] for text in a.use):
            continue
        blocks = blocks_of(lines[1:])
        print(lines[0].lstrip("; "))
        for first, last in loops_of(blocks):
            r = row([c for _, code in blocks[first:last + 1] for c in code])
            print("  loop: " + ", ".join(f"{k} {v}" for k, v in r.items()))
        shown += 1
    if not shown:
        sys.exit("isa_loops: no file has such a use; the first line of each says what it is of")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes the Python module of the C interface: make_bindings.py HEADER OUT. Needs cffi.

OUT is cffi's description of engine/kvrun.h (ABI mode: nothing is compiled), with what cffi does not read from a header:
constants, and the initial values of structs from their _INIT macros.
"""
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Mapping

import cffi

NUMBERS = {"NULL": None, "UINT32_MAX": 2**32 - 1, "UINT64_MAX": 2**64 - 1}


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def macros(text: str) -> dict[str, str]:
    joined = re.sub(r"\\\n", " ", text)
    found = re.findall(r"^#define[ \t]+(KVRUN_\w+)[ \t]+(\S.*)$", joined, flags=re.M)
    return {name: re.sub(r"\s+", " ", value).strip() for name, value in found}


def declarations(text: str) -> str:
    """The text for cffi: the header between its extern "C" braces, without preprocessor lines."""
    begin = text.index('extern "C" {')
    body = text[begin + len('extern "C" {'):]
    body = re.sub(r"\\\n", " ", body)
    body = re.sub(r"^[ \t]*#.*$", "", body, flags=re.M)
    body = body[:body.rindex("}")]  # of extern "C"
    return re.sub(r"\bKVRUN_(API|INT_ENUM)\b", "", body)


def number(word: str, named: Mapping[str, object]) -> object:
    if word in NUMBERS:
        return NUMBERS[word]
    if word in named:
        return named[word]
    try:
        return int(word, 0)
    except ValueError:
        return float(word)  # ValueError if it is not a number


def initial_values(ffi: cffi.FFI, macro: dict[str, str], named: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Per struct, the fields whose initial value is not zero, except struct_size, which is set when one is created."""
    out = {}
    for name, value in macro.items():
        if not name.endswith("_INIT"):
            continue
        words = [w.strip() for w in value.strip("{} ").split(",")]
        size = re.fullmatch(r"sizeof\((\w+)\)", words[0])
        if not size:
            raise SystemExit(f"make_bindings: {name} does not begin with the size of its struct")
        struct = size.group(1)
        fields = [f for f, _ in ffi.typeof(struct).fields]
        if fields[0] != "struct_size" or len(words) != len(fields):
            raise SystemExit(f"make_bindings: {name} has {len(words)} values, {struct} has {len(fields)} fields")
        values = {f: number(w, named) for f, w in zip(fields[1:], words[1:])}
        out[struct] = {f: v for f, v in values.items() if v}
    return out


def main(header: str, out: str) -> None:
    with open(header, encoding="utf-8") as f:
        text = without_comments(f.read())
    macro = macros(text)
    ffi = cffi.FFI()
    ffi.set_source("kvrun._cffi", None)
    body = declarations(text)
    ffi.cdef(body)
    enums = {name: int(value) for name, value in re.findall(r"\b(KVRUN_\w+)\s*=\s*(-?\d+)", body)}
    plain = {n: number(v, enums) for n, v in macro.items() if re.fullmatch(r"\w+", v) and (v in NUMBERS or v.isdigit())}
    functions = sorted(set(re.findall(r"\b(kvrun_\w+)\s*\(", re.sub(r"\(\s*\*\s*\w+\s*\)\s*\(", "", body))))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "module.py")
        with contextlib.redirect_stdout(io.StringIO()):  # cffi prints what it writes
            ffi.emit_python_code(path)
        with open(path, encoding="utf-8") as f:
            module = f.read()
    module += f"\nCONSTANTS = {plain!r}\nENUMS = {enums!r}\n"
    module += f"INITIAL = {initial_values(ffi, macro, enums | plain)!r}\nFUNCTIONS = {functions!r}\n"
    with open(out, "w", encoding="utf-8") as f:
        f.write(module)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])

#!/usr/bin/env python3
"""The binary interface of libkvrun as text: functions, structs with the offsets of their fields, values of
enumerations.

Usage: abi.py check|record HEADER LIBRARY DUMP

check:  compares HEADER and LIBRARY with the committed DUMP. A removal or change breaks existing programs: it fails
        unless KVRUN_ABI_VERSION has changed. An addition must be recorded: it also fails.
record: writes DUMP. Exit status 0 if they agree, 1 if not."""
import os
import re
import subprocess
import sys
import tempfile


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def squeeze(text):
    return re.sub(r"\s*([(),*;])\s*", r"\1", re.sub(r"\s+", " ", text)).strip()


def describe(header):
    """Lines of the dump, from the header and a C compiler's layout of its structs."""
    text = without_comments(open(header).read())
    version = re.search(r"#define KVRUN_ABI_VERSION (\d+)", text).group(1)
    functions = sorted(squeeze(f) for f in re.findall(r"^KVRUN_API\s+([^;{]+);", text, flags=re.M))
    callbacks = sorted(squeeze(c) for c in re.findall(r"^typedef\s+([^;{}]*\(\*kvrun_\w+\)\([^;]*\));", text,
                                                      flags=re.M))
    structs = {name: body for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, flags=re.S)}
    enums = [body for body in re.findall(r"enum (?:KVRUN_INT_ENUM )?\{(.*?)\}", text, flags=re.S)]
    program = ["#include <stddef.h>", "#include <stdio.h>", f'#include "{os.path.abspath(header)}"', "int main(void) {"]
    for name, body in sorted(structs.items()):
        program.append(f'printf("struct {name} size %zu\\n", sizeof({name}));')
        for declaration in body.split(";"):
            declaration = declaration.strip()
            if not declaration:
                continue
            pointer = re.search(r"\(\*(\w+)\)", declaration)
            names = [pointer.group(1)
                     ] if pointer else [re.search(r"(\w+)$", d.strip()).group(1) for d in declaration.split(",")]
            for field in names:
                program.append(f'printf("struct {name} {field} offset %zu size %zu\\n", offsetof({name}, {field}),'
                               f" sizeof((({name} *)0)->{field}));")
    for body in enums:
        for value in re.findall(r"(KVRUN_\w+)\s*=", body):
            program.append(f'printf("enum {value} %d\\n", (int){value});')
    program.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source, binary = os.path.join(folder, "a.c"), os.path.join(folder, "a")
        open(source, "w").write("\n".join(program))
        subprocess.run([os.environ.get("CC", "cc"), "-std=c99", source, "-o", binary], check=True)
        layout = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()
    return [f"abi version {version}"] + [f"function {f}" for f in functions] + [f"callback {c}"
                                                                                for c in callbacks] + layout


def exported(library):
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.split()[-2] != "A"}


def has_grown(line, now):
    """Whether a line is the size of a struct with struct_size that has grown: the library accepts both sizes."""
    words = line.split()
    if words[0] != "struct" or words[2] != "size" or f"struct {words[1]} struct_size offset 0 size 4" not in now:
        return False
    return any(n.split()[:3] == words[:3] and int(n.split()[3]) > int(words[3]) for n in now)


def main(mode, header, library, dump):
    now = describe(header)
    declared = {re.search(r"(kvrun_\w+)\(", f).group(1) for f in now if f.startswith("function ")}
    problems = [f"declared and not in the library: {n}" for n in sorted(declared - exported(library))]
    problems += [f"in the library and not declared: {n}" for n in sorted(exported(library) - declared)]
    if mode == "record":
        open(dump, "w").write("\n".join(now) + "\n")
    else:
        before = open(dump).read().splitlines()
        same_version = before[0] == now[0]
        gone = [line for line in before if line not in set(now) and not has_grown(line, now)]
        new = [line for line in now if line not in set(before)]
        if same_version:
            problems += [f"gone or changed: {line}; programs built with it break: raise KVRUN_ABI_VERSION"
                         for line in gone]
        problems += [f"not recorded: {line}; run {sys.argv[0]} record" for line in new]
    for p in problems:
        print(p)
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("check", "record"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

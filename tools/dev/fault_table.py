#!/usr/bin/env python3
"""Writes tests/FAULTS.md: the tests of each row of the fault table (T01 to T84).

    tools/dev/fault_table.py [--check] [ROOT]

Rows are taken from the names of the tests: TEST_CASE("T62, T74 cli: ..."), the first line of a Python test function's
docstring (T50 ...), and a comment `# T65: ...` in a CMake file of tests tags the ctest entries under it. ROWS below has
the requirement of each row, and the reason if it has no test. --check: exit code 1 if the file is not what would be
written, or if a row has neither test nor reason.
"""
import os
import re
import sys

ROWS = {
    1: "GGUF cut off at any point", 2: "GGUF: magic, byte order, version", 3: "GGUF: counts without end",
    4: "GGUF: lengths of strings", 5: "GGUF: arrays", 6: "GGUF: keys and names given twice", 7: "GGUF: types of keys",
    8: "GGUF: alignment", 9: "GGUF: dimensions", 10: "sizes that overflow", 11: "GGUF: offsets of tensors",
    12: "types and architectures that are not run", 13: "shapes against metadata",
    14: "tensors and parts missing or extra",
    15: "NaN and infinity in weights and logits", 16: "files that are no files, names", 17: "sparse files",
    18: "files that change while in use", 19: "vocabularies", 20: "ids of special tokens", 21: "texts that take long",
    22: "texts of any bytes", 23: "special tokens in a user's text", 24: "templates nested too deep",
    25: "templates that run or grow without end", 26: "arithmetic of templates",
    27: "templates that ask for what is not there",
    28: "roles and contents of messages", 29: "command line", 30: "flags against environment",
    31: "standard input", 32: "standard output", 33: "terminals", 34: "prompts longer than the context",
    35: "empty prompts", 36: "contexts that fill up", 37: "sampling options",
    38: "logits that are equal, infinite or none",
    39: "stop strings", 40: "numbers in requests", 41: "grammars", 42: "sessions cut off",
    43: "sessions with flipped bits",
    44: "sessions of something else", 45: "sessions of another version", 46: "sessions with impossible contents",
    47: "a restore that fails half way", 48: "a save that is interrupted", 49: "empty sessions",
    50: "HTTP that is none", 51: "bodies too large", 52: "JSON that is none", 53: "requests that make no sense",
    54: "Host and Origin", 55: "keys", 56: "clients that leave", 57: "clients that do not read", 58: "many connections",
    59: "characters cut in streams", 60: "ports and addresses", 61: "paths in names",
    62: "drivers that are missing, crash, exit, hang or fork", 63: "devices without memory",
    64: "devices without features",
    65: "devices with the least limits", 66: "no device memory", 67: "calls that fail", 68: "lost devices",
    69: "waits without end", 70: "pipeline caches", 71: "drivers known as bad, and drivers that compute wrongly",
    72: "long dispatches",
    73: "stale memory", 74: "no host memory", 75: "offloaded pages that fail", 76: "prefetch that is late",
    77: "signals", 78: "clocks that jump", 79: "threads", 80: "wrong use of the C API", 81: "fork, unload, two engines",
    82: "homes and caches that are not the user's", 83: "locales", 84: "peers that die",
}
REASONS = {84: "there are no peers"}
FUNCTION = re.compile(r'^def \w+\(.*\):\n    """(.*?)(?:"""|\n)', re.M)
CASE = re.compile(r'TEST_CASE(?:_TEMPLATE)?\(\s*"((?:[^"\\]|\\.)*)"')
TAG = re.compile(r"\bT(\d\d)\b")


def cases(root):
    """(row, file, name) of every tagged test."""
    for folder, _, files in sorted(os.walk(os.path.join(root, "tests"))):
        for name in sorted(files):
            path = os.path.join(folder, name)
            shown = os.path.relpath(path, root)
            if name.startswith("test_") and name.endswith(".cpp"):
                with open(path, encoding="utf-8") as f:
                    text = f.read()
                text = re.sub(r'"\s*\n\s*"', "", text)  # names over two lines
                for case in CASE.findall(text):
                    for row in {int(t) for t in TAG.findall(case)}:
                        yield row, shown, case
            elif name.startswith("test_") and name.endswith(".py"):
                with open(path, encoding="utf-8") as f:
                    for said in FUNCTION.findall(f.read()):
                        for row in {int(t) for t in TAG.findall(said)}:
                            yield row, shown, said
            elif name.endswith((".cmake", "CMakeLists.txt")):
                rows, comment = set(), False
                with open(path, encoding="utf-8") as f:
                    for line in f:
                        if line.startswith("#"):  # of several lines, any may have the tag
                            rows = {int(t) for t in TAG.findall(line)} | (rows if comment else set())
                        comment = line.startswith("#")
                        entry = re.match(r"\w*test\((?:NAME )?([\w.]+)", line)
                        if entry and rows:
                            for row in rows:
                                yield row, shown, entry.group(1)


def table(root):
    found = {}
    for row, path, name in cases(root):
        found.setdefault(row, []).append((path, name))
    unknown = sorted(set(found) - set(ROWS))
    missing = [r for r in ROWS if r not in found and r not in REASONS]
    lines = ["# Faults and the tests behind them", "",
             "Written by `tools/dev/fault_table.py` from the names of the tests; ctest checks that it is up to date.",
             "", "| row | fault | tests |", "|---|---|---|"]
    for row in sorted(ROWS):
        tests = "<br>".join(f"{os.path.basename(p)}: {n}".replace("|", "\\|").replace('\\"', '"')
                            for p, n in sorted(set(found.get(row, []))))
        reason = not tests and (REASONS.get(row) or "none")
        lines.append(f"| T{row:02} | {ROWS[row]} | {'<br>'.join(filter(None, [tests, reason and f'*{reason}*']))} |")
    return "\n".join(lines) + "\n", unknown, missing


def main():
    args = [a for a in sys.argv[1:] if a != "--check"]
    root = args[0] if args else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    text, unknown, missing = table(root)
    path = os.path.join(root, "tests", "FAULTS.md")
    for row in unknown:
        print(f"fault_table: a test names T{row:02}, which is no row")
    for row in missing:
        print(f"fault_table: T{row:02} ({ROWS[row]}) has no test and no reason")
    if "--check" not in sys.argv:
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return 1 if unknown or missing else 0
    with open(path, encoding="utf-8") as f:
        same = f.read() == text
    if not same:
        print("fault_table: tests/FAULTS.md is out of date; run tools/dev/fault_table.py")
    return 0 if same and not unknown and not missing else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Checks that lines have at most 120 columns (a tab counts 4) in all files that people write or read.

    tools/dev/columns.py           names longer lines; exit code 1 where there are any
    tools/dev/columns.py --wrap    wraps paragraphs of Markdown and comments that have longer lines; code is unchanged

Exempt: tables, quoted output and images in Markdown, strings in code, and data such as golden files and baselines.
"""
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
COLUMNS, TAB = 120, 4
KINDS = (".cpp", ".h", ".c", ".cu", ".cuh", ".comp", ".glsl", ".py", ".sh", ".cmake", ".md", "CMakeLists.txt")
DATA = ("tests/golden/", "shaders/baselines/", "models/bundled/")
STRING = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")


def width(line):
    return len(line.expandtabs(TAB))


def too_long(line):
    return width(line) > COLUMNS and " " in line.strip()[:COLUMNS]


def sources():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.split("\n")
    return [p for p in listed if p.endswith(KINDS) and not p.startswith(DATA) and os.path.exists(os.path.join(ROOT, p))]


def excused(path, line, fenced):
    if path.endswith(".md"):
        return fenced or line.startswith(("    ", "![")) or line.lstrip().startswith("|")
    return not too_long(STRING.sub('""', line))


def long_lines(path, lines):
    fenced = False
    for number, line in enumerate(lines, 1):
        if path.endswith(".md") and line.lstrip().startswith("```"):
            fenced = not fenced
        if too_long(line) and not excused(path, line, fenced):
            yield number, line


def fill(words, first, rest):
    """Fills words into lines; the first begins with `first`, the others with `rest`; columns count tabs."""
    extra = width(first) - len(first)
    return textwrap.wrap(words, COLUMNS - extra, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                         break_on_hyphens=False)


def wrap_markdown(lines):
    out, fenced, i = [], False, 0
    while i < len(lines):
        line = lines[i]
        if line.startswith("```"):
            fenced = not fenced
        plain = fenced or not line.strip() or line.startswith(("#", "|", "    ", "\t", "<", "!["))
        if plain:
            out.append(line)
            i += 1
            continue
        head = re.match(r"\s*(?:[-*] |\d+\. |> )?", line).group()
        rest, block = " " * len(head), [line[len(head):]]
        i += 1
        while i < len(lines) and lines[i].strip() and not re.match(r"\s*([-*] |\d+\. |> |\||#|```|<)", lines[i]):
            block.append(lines[i].strip())
            i += 1
        if any(too_long(x) for x in lines[i - len(block):i]):
            out += fill(" ".join(block), head, "> " if head == "> " else rest)
        else:
            out += lines[i - len(block):i]
    return out


def wrap_comments(lines, mark):
    """Wraps each comment line that is too long together with the following lines of its paragraph."""
    comment = re.compile(rf"^(\s*){mark}( ?)")
    out, i = [], 0
    while i < len(lines):
        start = comment.match(lines[i])
        if not start or not too_long(lines[i]) or lines[i].startswith("#!"):
            out.append(lines[i])
            i += 1
            continue
        head = start.group()
        words = lines[i][len(head):]
        inner = re.match(r"\s*(?:- )?", words).group()
        i += 1
        block = [words.strip()]
        while i < len(lines) and not inner and re.match(re.escape(head) + r"[a-z(`]", lines[i]):
            block.append(lines[i][len(head):].strip())
            i += 1
        out += fill(" ".join(block), head + inner, head + " " * len(inner))
    return out


def wrap(path, lines):
    if path.endswith(".md"):
        return wrap_markdown(lines)
    return wrap_comments(lines, "#" if path.endswith((".py", ".sh", ".cmake", "CMakeLists.txt")) else "//")


def main():
    if sys.argv[1:] not in ([], ["--wrap"]):
        sys.exit(__doc__.strip())
    n = 0
    for path in sources():
        full = os.path.join(ROOT, path)
        with open(full, encoding="utf-8") as f:
            text = f.read()
        lines = text.split("\n")
        if sys.argv[1:] and any(True for _ in long_lines(path, lines)):
            lines = wrap(path, lines)
            if "\n".join(lines) != text:
                with open(full, "w", encoding="utf-8") as f:
                    f.write("\n".join(lines))
        for number, line in long_lines(path, lines):
            n += 1
            print(f"{path}:{number}: {width(line)} columns")
    if n:
        print(f"{n} lines are longer than {COLUMNS} columns", file=sys.stderr)
    return 1 if n else 0


if __name__ == "__main__":
    sys.exit(main())

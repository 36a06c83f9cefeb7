"""Common parts of cuda_mutants.py and mutate.py: a fault in a source file, and its compilation by a build's command."""
import os
import re
import shlex
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def text_with(path, there):
    """The text of the file, which must contain `there` exactly once; else the program ends."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = f.read()
    if text.count(there) != 1:
        sys.exit(f"error: {path} has {text.count(there)} times '{there}', expected once; bring the list of faults up to date")
    return text


def write_fault(folder, path, there, instead):
    """Writes the file with the fault below `folder`, at its path in the source tree."""
    text = text_with(path, there)
    out = os.path.join(folder, path)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w", encoding="utf-8") as f:
        f.write(text.replace(there, instead))


def compile_fault(build, command, folder, source, out):
    """Runs a compile command of the build on `source`; headers below `folder` precede those of the tree."""
    words = shlex.split(command)
    words[words.index("-c") + 1] = source
    words[words.index("-o") + 1] = out
    del words[words.index("-MD"):words.index("-o")]
    compiler = next(i for i, w in enumerate(words) if re.search(r"(g\+\+|clang\+\+|c\+\+)[^/]*$", w))
    words.insert(compiler + 1, "-I" + folder)
    subprocess.run(words + ["-w"], cwd=build, check=True)


def failed_case(output):
    """The first test case that failed in a doctest program's output, or None. Cases that passed are named too, with
    their time."""
    cases = re.findall(r"TEST CASE:  (.*)", output.partition("ERROR:")[0])
    return cases[-1].strip() if cases else None

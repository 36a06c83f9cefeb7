#!/usr/bin/env python3
"""Checks that tests notice faults: seeds each fault of tools/dev/mutants/*.txt in turn and runs its tests.

    tools/dev/mutate.py [--build BUILD] [--only WORD]... [--from N]    BUILD is a Ninja build folder [build]
    tools/dev/mutate.py --check                             only checks that the text of every fault is still in the
                                                            sources

A fault is one changed source file, compiled into a separate folder below BUILD and linked with the objects of the
build, so the source tree is unchanged. In a unity build a fault compiles a batch of 24 files, which takes several times
as long as in a build made with -DCMAKE_UNITY_BUILD=OFF. --only: faults whose file, tests or note contain the word. A
fault that no test notices is listed as a survivor, and the exit code is then 1; also if a fault's text is not exactly
once in its file.

Form of a fault in the table, followed by an empty line; lines keep their tabs:
    # description
    models/gguf_header.cpp | gguf gguf_files
    < text that occurs once, one or more lines
    > its replacement, any number of lines
A fault in a header names the source file to compile: tools/x.h in tools/x.cpp | tests
"""
import argparse
import glob
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import namedtuple

from seeded_faults import ROOT, compile_fault, failed_case, text_with, write_fault

Fault = namedtuple("Fault", "note path unit tests there instead")  # unit: source file to compile
MOST_MEMORY = 12 << 30  # bytes of address space of a test, because a fault may remove a limit


def read_faults():
    faults = []
    for name in sorted(glob.glob(os.path.join(ROOT, "tools", "dev", "mutants", "*.txt"))):
        with open(name, encoding="utf-8") as f:
            blocks = re.split(r"\n\s*\n", f.read().strip("\n"))
        for block in blocks:
            lines = block.split("\n")
            note = " ".join(x[1:].strip() for x in lines if x.startswith("#"))
            head = [x for x in lines if x[0] not in "#<>"]
            if not head and note and len(lines) == sum(x.startswith("#") for x in lines):
                continue  # a separate comment
            if len(head) != 1 or "|" not in head[0]:
                sys.exit(f"error: {name}: a fault has {len(head)} lines FILE | TESTS, expected one: {block!r}")
            path, tests = (x.strip() for x in head[0].split("|"))
            there = "\n".join(x[2:] for x in lines if x.startswith("<"))
            instead = "\n".join(x[2:] for x in lines if x.startswith(">"))
            if not there or not tests or there == instead:
                sys.exit(f"error: {name}: a fault without text, tests or change: {block!r}")
            path, _, unit = path.partition(" in ")
            if not (unit or path).endswith((".cpp", ".cc")):
                sys.exit(f"error: {name}: {unit or path} is no C++ source file: {block!r}")
            faults.append(Fault(note, path, unit or path, tests.split(), there, instead))
    return faults


class Build:
    """Commands and tests of a build folder."""

    def __init__(self, folder):
        self.folder = folder
        entries = json.loads(
            subprocess.run(["ninja", "-C", folder, "-t", "compdb"], check=True, capture_output=True, text=True).stdout)
        self.compiles, self.links = {}, {}
        self.batch_of = {}  # source file: the file of a unity build that includes it and others
        for e in entries:
            path = os.path.join(folder, e["file"])
            if " -c " in e["command"] and e["file"].endswith((".cpp", ".cc")):
                self.compiles.setdefault(os.path.relpath(path, ROOT), (e["command"], e["output"]))
            elif " -c " in e["command"] and re.search(r"/Unity/unity_\d+_cxx\.cxx$", path):
                with open(path, encoding="utf-8") as f:
                    for source in re.findall(r'^#include "(.*)"$', f.read(), re.M):
                        unit = os.path.relpath(source, ROOT)
                        if unit not in self.compiles:
                            self.compiles[unit] = (e["command"], e["output"])
                            self.batch_of[unit] = path
            elif f" -o {e['output']} " in e["command"] + " ":
                self.links[e["output"]] = e["command"]
        self.tests = {}

    def list_tests(self):
        listed = subprocess.run(["ctest", "--test-dir", self.folder, "--show-only=json-v1"], check=True,
                                capture_output=True, text=True).stdout
        self.tests = {t["name"]: t for t in json.loads(listed)["tests"]}

    def fixtures_of(self, names):
        """The tests that create files read by the tests `names`."""
        def listed(test, key):
            return {v for p in test.get("properties", []) if p["name"] == key for v in p["value"]}

        needed = set().union(*(listed(self.tests[n], "FIXTURES_REQUIRED") for n in names if n in self.tests))
        return sorted(n for n, t in self.tests.items() if listed(t, "FIXTURES_SETUP") & needed)

    def build_programs_of(self, names):
        """Builds the tests' programs; ctest gives no command for a test whose program is missing."""
        with open(os.path.join(self.folder, "tests", "CTestTestfile.cmake"), encoding="utf-8") as f:
            commands = dict(re.findall(r'^add_test\(\[=\[(.*?)\]=\] (.*)\)$', f.read(), re.M))
        wanted = set()
        for name in names:
            if name not in commands:
                sys.exit(f"error: there is no test '{name}'; bring the list of faults up to date")
            paths = [os.path.relpath(p, self.folder) for p in re.findall(r'"(/[^"]*)"', commands[name])]
            wanted.update(p for p in paths if p in self.links)
        subprocess.run(["ninja", "-C", self.folder, *sorted(wanted)], check=True, stdout=subprocess.DEVNULL)
        self.list_tests()

    def test(self, name):
        return self.tests[name]

    def programs(self, name):
        """Programs of the build in a test's command; a preloaded library has none of the sources."""
        paths = [os.path.relpath(w, self.folder) for w in self.test(name)["command"] if os.path.isabs(w)]
        return [p for p in paths if p in self.links and not p.endswith(".so")]

    def libkvrun(self):
        return next(o for o in self.links if re.fullmatch(r"lib/libkvrun\.so[.\d]*", o))


def link_fault(build, output, objects, folder):
    """Links the program or library `output` with the faulty objects. objects: {object of the build: faulty object}."""
    out = os.path.join(folder, output)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    command = build.links[output]
    extra = " -Wl,--allow-multiple-definition"
    for ours, fault in objects.items():
        if f" {ours} " in command:
            command = command.replace(f" {ours} ", f" {fault} ")
        else:
            extra += " " + fault  # before the archives, whose own object is then not linked
    command = command.replace(f" -o {output} ", f"{extra} -o {out} ")
    subprocess.run(command, shell=True, cwd=build.folder, check=True, stdout=subprocess.DEVNULL)
    return out


def run_test(build, name, replaced, environment, limit):
    """None if the test passes, else how it ended."""
    test = build.test(name)
    properties = {p["name"]: p["value"] for p in test.get("properties", [])}
    command = [replaced.get(os.path.relpath(w, build.folder), w) if os.path.isabs(w) else w for w in test["command"]]
    env = dict(os.environ, **environment)
    for pair in properties.get("ENVIRONMENT", []):
        key, _, value = pair.partition("=")
        env[key] = replaced.get(os.path.relpath(value, build.folder), value) if os.path.isabs(value) else value
    try:
        done = subprocess.run(command,
                              cwd=properties.get("WORKING_DIRECTORY", build.folder),
                              env=env,
                              timeout=limit,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL,
                              text=True,
                              errors="replace",
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY)))
    except subprocess.TimeoutExpired:
        return f"{name}: no end within {limit:.0f} s"
    if done.returncode == properties.get("SKIP_RETURN_CODE", 0) != 0:
        sys.exit(f"error: the test '{name}' is skipped here, so it notices nothing: {done.stdout.strip()[-300:]}")
    if done.returncode == 0 and not any(re.search(r, done.stdout)
                                        for r in properties.get("FAIL_REGULAR_EXPRESSION", [])):
        return None
    return f"{name}: " + (failed_case(done.stdout) or f"exit code {done.returncode}")


def noticed_by(build, fault, folder, limits):
    write_fault(folder, fault.path, fault.there, fault.instead)
    command, ours = build.compiles[fault.unit]
    out = os.path.join(folder, "fault.o")
    source = os.path.join(folder if fault.unit == fault.path else ROOT, fault.unit)
    if batch := build.batch_of.get(fault.unit):
        with open(batch, encoding="utf-8") as f:
            text = f.read().replace(f'"{os.path.join(ROOT, fault.unit)}"', f'"{source}"')
        source = os.path.join(folder, "batch.cxx")
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
    compile_fault(build.folder, command, folder, source, out)
    linked = {}
    for name in fault.tests:
        environment = {}
        for program in build.programs(name):
            library = build.libkvrun()
            if "lib/libkvrun.so" in build.links[program] and f" {ours} " in build.links[library]:
                if library not in linked:
                    linked[library] = link_fault(build, library, {ours: out}, folder)
                    soname = os.path.join(folder, "lib", "libkvrun.so.1")
                    if not os.path.exists(soname):
                        os.symlink(linked[library], soname)
                environment["LD_LIBRARY_PATH"] = os.path.join(folder, "lib")
            elif program not in linked:
                linked[program] = link_fault(build, program, {ours: out}, folder)
        if how := run_test(build, name, linked, environment, limits[name]):
            return how
    return None


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--only", action="append", default=[])
    options.add_argument("--check", action="store_true")
    options.add_argument("--from", dest="first", type=int, default=1, metavar="N",
                         help="leave out the first N - 1 of them")
    o = options.parse_args()
    faults = read_faults()
    for f in faults:
        text_with(f.path, f.there)
    if o.check:
        print(f"{len(faults)} faults, each has its place")
        return 0
    faults = [f for f in faults if not o.only or any(w in f.note or w in f.path or w in f.tests for w in o.only)]
    first, faults = o.first, faults[o.first - 1:]
    build = Build(os.path.abspath(o.build))
    names = sorted({t for f in faults for t in f.tests})
    build.list_tests()
    fixtures = build.fixtures_of(names)
    build.build_programs_of(names + fixtures)
    for n in fixtures:
        if how := run_test(build, n, {}, {}, 1800):
            sys.exit(f"error: without any fault: {how}")
    limits = {}
    for n in names:  # a test that fails without a fault proves nothing
        start = time.monotonic()
        if how := run_test(build, n, {}, {}, 1800):
            sys.exit(f"error: without any fault: {how}")
        limits[n] = 60 + 10 * (time.monotonic() - start)
    survivors = []
    for number, f in enumerate(faults, first):
        folder = os.path.join(build.folder, "mutants", str(number))
        subprocess.run(["rm", "-rf", folder], check=True)
        how = noticed_by(build, f, folder, limits)
        print(f"{number:2}  {f.path}: {f.note}: {how or 'SURVIVES'}", flush=True)
        if not how:
            survivors.append(f)
        subprocess.run(["rm", "-rf", folder], check=True)
    print(f"{len(faults)} faults, {len(survivors)} survive")
    for f in survivors:
        print(f"survivor: {f.path}: {f.note} ({' '.join(f.tests)})")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

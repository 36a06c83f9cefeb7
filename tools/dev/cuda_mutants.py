#!/usr/bin/env python3
"""Checks that the tests of the CUDA sources notice bugs: seeds one bug at a time and runs the sources on the host.

    tools/dev/cuda_mutants.py [BUILD [FILE...]]     BUILD is the build folder [build]; a few minutes. FILE: only bugs in
                                                    these sources, such as fetch.cu
    tools/dev/cuda_mutants.py --check               only checks that the text of every bug is still in the sources

Bugs that no test notices are printed, and the exit code is then 1. backends/cuda/README.md has the list.
"""
import os, re, subprocess, sys
from seeded_faults import ROOT, compile_fault, failed_case, text_with, write_fault

CUDA = "backends/cuda/"
SUITES = ["pack", "attend", "ops"]  # quick ones first
SUITES_OF = {"fetch.cu": ["ops", "fetch"], "index.cu": ["ops"]}
CASES = {"fetch": "*largest weights*,*share of a row*,*the sets and the attention*"}  # whole models take minutes on the host
READERS = {"page.cuh": ["attend", "fetch", "pack", "score"], "weights.cuh": ["basic", "matmul"],
           "device.cuh": ["basic", "matmul", "kv", "attend", "fetch", "index", "pack", "score", "experts", "state"]}

BUGS = [  # file, text that occurs once, its replacement, description
    ("matmul.cu", "__syncthreads(); // before the next columns are brought", "",
     "no barrier before a tile is overwritten"),
    ("matmul.cu", "__syncthreads(); // before the columns are read", "", "no barrier before a tile is read"),
    ("matmul.cu", "__syncwarp(); // before a part of x is read", "", "no barrier before a part of x is read"),
    ("matmul.cu", "__syncwarp(); // before the next part of x", "", "no barrier before a part of x is overwritten"),
    ("matmul.cu", "if (u == 0 || scales_units(w.traits))", "if (u == 0)", "two units of Q6_K share a scale"),
    ("attend.cu", "__syncthreads(); // before the next tile's scores", "", "no barrier before the next tile's scores"),
    ("attend.cu", "__syncwarp(); // every lane has read the state", "", "no barrier before a warp changes its state"),
    ("attend.cu", "__syncthreads(); // before the scores of a prompt's next tile", "",
     "no barrier before a prompt's next scores"),
    ("attend.cu", "const float keep = s.keep[j];", "const float keep = 1;", "sums of earlier tiles are not rescaled"),
    ("attend.cu", "__syncthreads();\n\t\tif (lane.group != group", "if (lane.group != group",
     "no barrier between groups that add their sums"),
    ("attend.cu", "__syncthreads(); // every thread has read the maxima", "",
     "no barrier before factors replace maxima"),
    ("attend.cu", "return t <= a.first + row_of(j) + a.ahead &&", "return t < a.first + row_of(j) &&",
     "a row of a prompt does not see itself"),
    ("attend.cu", "return t <= a.first + row_of(j) + a.ahead &&", "return t <= a.first + row_of(j) &&",
     "rows of an image do not see rows behind their own"),
    ("attend.cu", "w.part + uint64_t(row_of(j)) * a.part_step", "w.part + uint64_t(row_of(j))",
     "wrong stride between rows' partial states"),
    ("attend.cu", "factor = own_max == minus_inf() && own_sum == 0 ? 0.f : expf(own_max - max);", "factor = 1;",
     "a part is not rescaled when parts are merged"),
    ("page.cuh", "x.x * factor.x, x.y * factor.y,", "x.x * factor.y, x.y * factor.x,",
     "channel factors of a pair are swapped"),
    ("page.cuh", "return kv_k_word(head, w, t,", "return kv_k_word(head, w, t ^ 1,", "keys of the neighbouring token"),
    ("page.cuh", "(high >> i & 1u) << 2;", "(high >> i & 1u) << 1;", "high bits of 3-bit codes one place off"),
    ("page.cuh", "| s.mean << 11", "", "keys without means are decoded as keys with means"),
    ("page.cuh", "step *= 2) {\n\t\t__syncthreads();", "step *= 2) {", "no barrier between the steps of a rotation"),
    ("kv.cu", "to.k[uint64_t(w) * a.dst.k_word_stride] = half_pair(out", "to.k[uint64_t(w)] = half_pair(out",
     "keys are stored without their stride"),
    ("kv.cu", "c >= a.first + a.rotary_dim) out[c]", "c > a.first + a.rotary_dim) out[c]",
     "the first channel past the rotation is left out"),
    ("pack.cu", "const uint32_t run = (h * D + c) / group - first_run;",
     "const uint32_t run = (h * D + c + 1) / group - first_run;",
     "the last channel of a group has the next group's scale"),
    ("pack.cu", "return float((1u << bits) - 1);", "return float(1u << bits);", "2^bits steps instead of 2^bits - 1"),
    ("pack.cu", "min[i] = t == 0 || x[i] < min[i] ? x[i] : min[i];", "min[i] = x[i] < min[i] ? x[i] : min[i];",
     "a block's minimum begins at 0"),
    ("pack.cu", "const float norm = s.norm[t + i];", "const float norm = s.norm[t];",
     "tokens share the norm of the first in a word"),
    ("pack.cu", "if (near > nearest) nearest = near,", "if (nearest < 0) nearest = near,",
     "a head's codes have the first scale, not the best"),
    ("score.cu", "if (t > a.first + row || !is_seen", "if (t >= a.first + row || !is_seen",
     "a row gives its own token no score"),
    ("basic.cu", "(uint64_t(t) * a.n_heads + h * share + j)", "(uint64_t(t) * a.n_heads + h + j)",
     "maxima over other kv heads' query heads"),
    ("weights.cuh", "weight_high_bits(word_of(w.high, unit), i, 4)",
     "weight_high_bits(word_of(w.high, unit ^ 1), i, 4)", "high bits of Q6_K of the neighbouring unit"),
    ("weights.cuh", ">> unit % 2 * 4, i, pair ? 2 : 4)", ">> unit % 2 * 4, i, 4)", "fifth bits of Q5_K one place off"),
    ("fetch.cu", "uint64_t(h) * w.weight_stride + p", "uint64_t(h) + p", "wrong stride between kv heads' weights"),
    ("fetch.cu", "__popc(equal & before)) < ties", "__popc(equal & before)) <= ties",
     "one equal weight too many is picked"),
    ("fetch.cu", "at_least(bound | bit) >= a.k", "at_least(bound | bit) > a.k",
     "the bound is the next smaller maximum"),
    ("fetch.cu", "const bool mine = at < a.n && float_order", "const bool mine = float_order",
     "what follows a row is listed"),
    ("fetch.cu", "if (p < w[2]) inside += x;", "if (p <= w[2]) inside += x;", "a part too many counts as fetched"),
    ("index.cu", "__syncthreads(); // before the tile is overwritten", "", "no barrier before queries are overwritten"),
    ("index.cu", "__syncthreads(); // before products are read", "", "no barrier before heads are added"),
    ("index.cu", "(tie && before < wanted)", "(tie && before <= wanted)", "one equal block too many is chosen"),
    ("index.cu", "else if (digit == d)", "else if (digit == 0)", "blocks above a digit are not counted"),
    ("index.cu", "(w.first + page * w.page + token) / 32", "(page * w.page + token) / 32",
     "pages of a sequence's tail are taken for its first ones"),
    ("device.cuh", "if (bits == 0x80000000u) bits = 0;", "", "-0 is less than 0"),
    ("device.cuh", "for (uint32_t step = kWarp / 2; step; step /= 2) x = fminf(",
     "for (uint32_t step = kWarp / 4; step; step /= 2) x = fminf(", "a minimum over half a warp"),
    ("device.cuh", "if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;\n\t__syncthreads();",
     "if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;", "no barrier in a sum over a block"),
]


def commands(build):
    """Command lines of the build: compilation of each kernel file for the host, and linking of the tests."""
    text = subprocess.run(["ninja", "-C", build, "-t", "commands", "tests/kvrun_device_tests"], check=True,
                          capture_output=True, text=True).stdout
    compiles, link = {}, None
    for line in text.splitlines():
        if (found := re.search(r"kvrun_cuda_host\.dir/\S*/(\w+)\.cu\.o ", line)) and " -c " in line:
            compiles[found[1]] = line
        if " -o tests/kvrun_device_tests " in line:
            link = line
    return compiles, link


def run_mutant(build, number, bug, compiles, link):
    """The name of the suite that noticed the bug, or None."""
    name, there, instead, _ = bug
    folder = os.path.join(build, "mutants", str(number))
    write_fault(folder, CUDA + name, there, instead)
    objects = []
    for unit in READERS.get(name, [name.split(".")[0]]):
        out = os.path.join(folder, unit + ".o")
        compile_fault(build, compiles[unit], folder,
                      os.path.join(folder if unit + ".cu" == name else ROOT, CUDA, unit + ".cu"), out)
        objects.append(out)
    program = os.path.join(folder, "kvrun_device_tests")
    relink = link.replace(" -o tests/kvrun_device_tests ",
                          f" -o {program} {' '.join(objects)} -Wl,--allow-multiple-definition ")
    subprocess.run(relink, shell=True, cwd=build, check=True)
    noticed = None
    for suite in SUITES_OF.get(name, SUITES):
        done = subprocess.run(
            [program, f"--source-file=*test_{suite}*", f"--test-case={CASES.get(suite, '*')}", "--no-version"],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "KVRUN_TEST_DEVICES": "cuda-host"})
        if done.returncode == 77:
            sys.exit("error: cuda-host is not there: " + done.stdout.strip())
        if done.returncode:
            noticed = failed_case(done.stdout) or f"{suite}: exit code {done.returncode}"
            break
    os.remove(program)
    return noticed


def main():
    for bug in BUGS:
        text_with(CUDA + bug[0], bug[1])  # checked before any bug is run
    if sys.argv[1:] == ["--check"]:
        print(f"{len(BUGS)} bugs, each has its place")
        return 0
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build"))
    subprocess.run(["cmake", "--build", build, "--target", "kvrun_device_tests"], check=True, stdout=subprocess.DEVNULL)
    compiles, link = commands(build)
    if not compiles or not link:
        sys.exit("error: this build has no kvrun_cuda_host; it needs Boost.Context (package libboost-context-dev)")
    missed = 0
    bugs = [b for b in BUGS if len(sys.argv) < 3 or b[0] in sys.argv[2:]]
    for number, bug in enumerate(bugs, 1):
        noticed = run_mutant(build, number, bug, compiles, link)
        missed += noticed is None
        print(f"{number:2}  {bug[0]:12} {bug[3]}: {noticed or 'NOT NOTICED'}", flush=True)
    print(f"{len(bugs)} bugs, {missed} not noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

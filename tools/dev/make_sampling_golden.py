#!/usr/bin/env python3
"""What llama.cpp's samplers keep of given logits: writes tests/golden/sampling/peer.json.

make_sampling_golden.py PEER
PEER is a folder with Debian and llama.cpp (../shared/peer/setup.sh makes one; needs root for chroot). The first run
adds headers and a compiler to it. The vocabulary is the bundled model's. XTC excludes at every token. Of what is kept,
the number and the likeliest tokens with their probabilities are written. Mirostat and adaptive-p are run for several
steps; each also has the token that llama.cpp chose.
"""
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/bundled/recall-4m-f16.gguf"
N_VOCAB = 2048
BREAKS = 13, 45, 2006, 2023  # of the vocabulary: a line break, an asterisk, a colon, a double quote
LIKELIEST = 40
OFF = {"dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 4096, "top_n_sigma": 0,
       "top_k": 0, "typical_p": 1, "top_p": 1, "min_p": 0, "xtc_threshold": 1, "temperature": 1, "dynatemp_range": 0,
       "dynatemp_exponent": 1, "min_keep": 1}
DRY = {"dry_multiplier": 0.8, "temperature": 0.75}


def logits(seed, spread):
    """Numbers that floats have exactly. No two are equal: each program breaks ties in its own way."""
    r = random.Random(seed)
    out = []
    while len(out) < N_VOCAB:
        x = round(r.gauss(0, spread) * 16384) / 16384
        if x not in out:
            out.append(x)
    return out


def repeats(seed, likely, breaks=BREAKS):
    """A few phrases of likely tokens that repeat, with tokens of `breaks` in between."""
    r = random.Random(seed)
    phrases = [[r.choice(likely) for _ in range(r.randrange(5, 9))] for _ in range(4)]
    out = list(phrases[0])
    for _ in range(12):
        p = r.choice(phrases)
        out += p[:r.randrange(1, len(p) + 1)]
        if breaks and r.random() < 0.3:
            out.append(r.choice(breaks))
    return out + phrases[0][:3]


def cases(sets):
    """(options, name of the logits, tokens before)"""
    names = list(sets)
    plain = [{name: x} for name, values in
             {"top_n_sigma": (0.5, 1, 2, 5), "typical_p": (0, 0.1, 0.5, 0.9, 0.99),
              "xtc_threshold": (0, 0.01, 0.05, 0.1, 0.4, 0.6), "top_p": (0.3, 0.95),
              "dynatemp_range": (0.2, 0.5, 1, 3)}.items() for x in values]
    plain += [{"dynatemp_range": 0.7, "dynatemp_exponent": 2.5, "temperature": 0.9},
              {"dynatemp_range": 0.7, "dynatemp_exponent": 0.3, "temperature": 1.2, "top_k": 20},
              {"top_k": 30, "typical_p": 0.8, "top_p": 0.9}, {"typical_p": 0.6, "min_p": 0.3},
              {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "xtc_threshold": 0.08, "temperature": 0.8},
              {"top_n_sigma": 1.5, "top_k": 10, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.1, "xtc_threshold": 0.1},
              {"top_n_sigma": 1, "top_p": 0.5}]
    plain += [{"min_keep": 7, **cut} for cut in
              ({"top_p": 0.1}, {"min_p": 0.9}, {"typical_p": 0.05}, {"top_p": 0.1, "min_p": 0.9}, {"top_p": 0.95},
               {"top_k": 20, "top_p": 0.1}, {"top_k": 5, "min_p": 0.9}, {"top_k": 9, "xtc_threshold": 0.03},
               {"top_k": 40, "xtc_threshold": 0.03}) for _ in range(2)]
    for i, options in enumerate(plain):
        yield options, names[i % len(names)], []
    likely = sorted(range(N_VOCAB), key=lambda t: -sets["normal"][t])[:40]
    for seed in range(6):
        yield {**DRY, "top_k": 60}, "normal", repeats(seed, likely)
    for more in {"dry_base": 1.2}, {"dry_allowed_length": 0}, {"dry_allowed_length": 1}, {"dry_allowed_length": 5}, \
            {"dry_penalty_last_n": 20}, {"dry_penalty_last_n": 0}, {"dry_multiplier": 5, "dry_base": 4}, \
            {"top_n_sigma": 1, "min_p": 0.02}:
        yield {**DRY, **more}, "normal", repeats(20, likely, [])


def step_cases():
    """(Mirostat's version or 3 for adaptive-p, target, rate or decay, temperature, name of the logits)"""
    for version in 1, 2:
        yield version, 5.0, 0.1, 0.8, "normal"
        yield version, 2.0, 0.5, 1.0, "normal"
        yield version, 6.0, 0.3, 1.0, "peaked"
        yield version, 8.0, 0.2, 1.5, "normal"  # of flatter ones version 1 keeps all; llama.cpp's number overflows
    yield 3, 0.1, 0.9, 1.0, "normal"
    yield 3, 0.4, 0.5, 0.8, "peaked"
    yield 3, 0.9, 0.99, 1.2, "peaked"
    yield 3, 0.0, 0.0, 1.0, "flat"


def kept(words):
    pairs = [[int(t), float(f"{float(p):.6g}")] for t, p in zip(words[::2], words[1::2])]
    return {"n_kept": len(pairs), "likeliest": sorted(pairs, key=lambda x: -x[1])[:LIKELIEST]}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    peer = Path(sys.argv[1])
    if not (peer / "usr/include/llama.h").exists() or not (peer / "usr/bin/gcc").exists():
        install = ("apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "
                   "libllama-dev gcc libc6-dev")
        subprocess.run(["chroot", peer, "sh", "-c", install], check=True, stdout=sys.stderr)
    work = peer / "tmp/kvrun-sampling"
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tools/dev/peer_sampling.c", work)
    shutil.copy(MODEL, work / "model.gguf")
    inside = Path("/tmp/kvrun-sampling")
    subprocess.run(["chroot", peer, "gcc", "-O2", "-Wall", inside / "peer_sampling.c", "-o", inside / "peer_sampling",
                    "-lllama", "-lggml", "-lggml-base", "-lm"], check=True)
    version = subprocess.run(["chroot", peer, "dpkg-query", "-W", "-f", "${Version}", "libllama-dev"], check=True,
                             stdout=subprocess.PIPE, text=True).stdout
    sets = {"normal": logits(1, 3), "flat": logits(2, 0.4), "peaked": logits(3, 9)}
    rows, lines = [], []
    for options, name, before in cases(sets):
        all_options = {**OFF, **options}
        rows.append({"options": options, "before": before, "logits": name})
        lines.append(" ".join(map(str, [*all_options.values(), len(before), *before, *sets[name]])))
    run = subprocess.run(["chroot", peer, inside / "peer_sampling", inside / "model.gguf"], input="\n".join(lines),
                         check=True, stdout=subprocess.PIPE, text=True)
    for row, line in zip(rows, run.stdout.splitlines(), strict=True):
        row |= kept(line.split())
    steps = 12
    stepped = [dict(zip(("kind", "target", "rate", "temperature", "logits"), c)) for c in step_cases()]
    lines = [" ".join(map(str, [c["kind"], c["target"], c["rate"], c["temperature"], seed, steps, *sets[c["logits"]]]))
             for seed, c in enumerate(stepped)]
    run = subprocess.run(["chroot", peer, inside / "peer_sampling", inside / "model.gguf", "steps"],
                         input="\n".join(lines), check=True, stdout=subprocess.PIPE, text=True)
    out = [line.split() for line in run.stdout.splitlines()]
    for i, case in enumerate(stepped):
        case["steps"] = [{"chosen": int(words[0])} | kept(words[1:]) for words in out[i * steps:(i + 1) * steps]]
    shutil.rmtree(work)
    folder = ROOT / "tests/golden/sampling"
    folder.mkdir(exist_ok=True)
    (folder / "peer.json").write_text(json.dumps({"llama.cpp": version, "logits": sets, "cases": rows,
                                                  "steps": stepped},
                                                 separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prints a record of lines and one question about it, as the bundled model was trained to read; the answer goes to stderr.

  make_record.py LINES [SEED [DEPTH]]     DEPTH: place of the line asked for, 0 = first, 1 = last; default: drawn
"""
import random, sys
from words import ADJ, NOUN


def record(lines, seed, depth=None):
    """(text that ends where the answer begins, key asked for, answer)"""
    rng = random.Random(seed)
    if not 1 <= lines <= min(len(ADJ), len(NOUN)):
        sys.exit(f"error: {lines} lines, expected 1 to {min(len(ADJ), len(NOUN))}")
    keys = [f"{a}-{n}" for a, n in zip(rng.sample(ADJ, lines), rng.sample(NOUN, lines))]
    values = [str(rng.randrange(10000, 100000)) for _ in keys]
    at = rng.randrange(lines) if depth is None else round(depth * (lines - 1))
    text = "Record:\n" + "".join(f"line {k}: REGISTER_CONTENT is <{v}>\n" for k, v in zip(keys, values))
    return text + f"Query: {keys[at]}\nAnswer: <", keys[at], values[at]


if __name__ == "__main__":
    text, _, answer = record(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0,
                             float(sys.argv[3]) if len(sys.argv) > 3 else None)
    print(text)
    print(answer, file=sys.stderr)

#!/usr/bin/env python3
"""Prints a record of lines and a query in the form that the bundled model was trained on; the answer goes to stderr.

  make_record.py LINES [SEED [DEPTH]]     DEPTH: position of the queried line, 0 = first, 1 = last; default: random
"""
import random, sys
from words import ADJ, NOUN


def record(lines, seed, depth=None):
    """(text that ends where the answer begins, queried key, answer)"""
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

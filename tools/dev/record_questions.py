#!/usr/bin/env python3
"""Questions about records for `kvrun eval --task FILE --ask later`: record_questions.py [RECORDS [QUESTIONS [SEED]]]

Writes JSON lines: RECORDS records [6] of 20 lines, each followed by 700 characters of another text, so that no line is
among the newest tokens, and QUESTIONS questions [8] about each record. Needs only the standard library."""
import json
import os
import random
import sys

FILLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quality_texts/dialogue.txt")
ADJECTIVES = ("amber silver quiet broken golden frozen hollow crimson ancient gentle bitter rapid narrow polished "
              "velvet wooden yellow distant eager fragile").split()
NOUNS = ("falcon lantern river candle anchor meadow engine garden mirror ladder harbor pencil castle window basket "
         "hammer violin bridge teapot marble").split()
LENGTH = 700


def main():
    records, questions, seed = (int(x) for x in (sys.argv[1:] + ["6", "8", "1"][len(sys.argv) - 1:]))
    with open(FILLER) as f:
        filler = f.read()
    draw = random.Random(seed)
    for _ in range(records):
        names = [f"{a} {n}" for a, n in zip(draw.sample(ADJECTIVES, 20), draw.sample(NOUNS, 20))]
        codes = [str(draw.randrange(1000, 10000)) for _ in names]
        at = filler.index(" ", draw.randrange(len(filler) - LENGTH - 100)) + 1
        context = "Record:\n" + "".join(f"The code of the {n} is {c}.\n" for n, c in zip(names, codes))
        context += "\n" + filler[at:at + LENGTH].strip()
        for i in sorted(draw.sample(range(20), questions)):
            print(json.dumps({"context": context, "question": f"code of the {names[i]}", "answers": [codes[i]]}))


if __name__ == "__main__":
    main()

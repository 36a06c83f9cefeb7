#!/usr/bin/env python3
"""Every text that a schema's grammar allows is a value of the schema, according to the package jsonschema.

    test_schema_samples.py CHECK [VOCABULARY.gguf]     (CHECK: kvrun_schema_check)

Random texts of each schema of schemas.json, byte by byte, and by the tokens of a real vocabulary if one is given.
Exit code 77: the package is not installed.
"""
import json, os, subprocess, sys

try:
    import jsonschema
except ImportError:
    print("skipped: the Python package jsonschema is not installed (apt: python3-jsonschema)")
    sys.exit(77)

CHECKED = ("date", "ipv4", "ipv6", "email")  # formats that the package checks without further packages


def main(check, vocabulary):
    folder = os.path.dirname(os.path.abspath(__file__))
    program = subprocess.Popen([check], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    judged = wrong = 0
    for i, schema in enumerate(json.load(open(os.path.join(folder, "schemas.json")))):
        draft = jsonschema.validators.validator_for(schema,
                                                    default=getattr(jsonschema, "Draft202012Validator",
                                                                    jsonschema.Draft7Validator))
        judge = draft(schema, format_checker=jsonschema.FormatChecker(CHECKED))
        for source in [{}] + ([{"vocabulary": vocabulary}] if vocabulary and i % 8 == 0 else []):
            request = {"schema": schema, "samples": 4 if source else 25, "seed": i + 1, **source}
            program.stdin.write(json.dumps(request) + "\n")
            program.stdin.flush()
            out = json.loads(program.stdout.readline())
            if not out.get("texts"):
                print("no complete text of", json.dumps(schema), out)
                wrong += 1
                continue
            for text in out["texts"]:
                judged += 1
                try:
                    judge.validate(json.loads(text))
                except (ValueError, jsonschema.ValidationError) as e:
                    wrong += 1
                    print(json.dumps(schema), "->", repr(text[:200]), ":", str(e).splitlines()[0])
    program.stdin.close()
    print(f"{judged} texts judged, {wrong} wrong")
    return 1 if wrong or judged < 500 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 and os.path.exists(sys.argv[2]) else None))

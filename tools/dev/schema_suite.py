#!/usr/bin/env python3
"""Checks kvrun's grammars of JSON schemas by a public test suite, and prints a table.

    schema_suite.py SUITE build/tests/kvrun_schema_check    (SUITE: a clone of json-schema-org/JSON-Schema-Test-Suite)

Each case of tests/draft2020-12 has a schema with valid and invalid instances. A grammar may be stricter than a schema,
but not laxer: `wrong` counts invalid instances that are texts of the grammar, and must be 0. Instances are passed as
JSON without white space, with properties in the order of the schema if the grammar requires an order.
"""
import json, os, subprocess, sys


def ordered(value, schema):
    """The value with properties in the order of the schema, as far as it names them."""
    if isinstance(value, dict) and isinstance(schema, dict):
        names = list(schema.get("properties", {})) if isinstance(schema.get("properties"), dict) else []
        keys = [n for n in names if n in value]
        keys += [n for n in schema.get("required", []) if isinstance(n, str) and n in value and n not in keys]
        keys += [k for k in value if k not in keys]
        return {k: ordered(value[k], schema.get("properties", {}).get(k) if k in names else None) for k in keys}
    return value


def main(suite, check):
    folder = os.path.join(suite, "tests", "draft2020-12")
    files = [(n, os.path.join(folder, n)) for n in sorted(os.listdir(folder)) if n.endswith(".json")]
    formats = os.path.join(folder, "optional", "format")
    for name in ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"):
        files.append(("format/" + name, os.path.join(formats, name + ".json")))
    program = subprocess.Popen([check], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rows, wrong = [], []
    for name, path in files:
        cases = json.load(open(path))
        row = dict(schemas=len(cases), refused=0, agree=0, stricter=0, wrong=0)
        for case in cases:
            texts = [json.dumps(ordered(t["data"], case["schema"]), separators=(",", ":"), ensure_ascii=False)
                     for t in case["tests"]]
            program.stdin.write(json.dumps({"schema": case["schema"], "texts": texts}) + "\n")
            program.stdin.flush()
            out = json.loads(program.stdout.readline())
            if "refused" in out:
                row["refused"] += 1
                if "--refused" in sys.argv:
                    print(name, case["description"], out["refused"])
                continue
            for test, accepted in zip(case["tests"], out["accepts"]):
                key = "agree" if accepted == test["valid"] else "stricter" if test["valid"] else "wrong"
                row[key] += 1
                if key == "wrong":
                    wrong.append(f"{name}: {case['description']}: {test['description']}: "
                                 f"{json.dumps(case['schema'])} {json.dumps(test['data'])}")
        rows.append((name.removesuffix(".json"), row))
    columns = ("schemas", "refused", "agree", "stricter", "wrong")
    print("file," + ",".join(columns))
    for name, row in rows:
        print(name + "," + ",".join(str(row[c]) for c in columns))
    print("all," + ",".join(str(sum(r[c] for _, r in rows)) for c in columns))
    for w in wrong:
        print("wrong:", w, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

#!/usr/bin/env python3
"""tools/dev/quality.sh --model NAME: quality loss of every policy on a model that tools/models.sh fetches.

--table tuned compares tuned:BITS with fixed policies; --table candidates measures changes that might lower the
divergence, each alone; --table recipes has SpeCache and MiKV under several options; --table short a few policies, for a
larger model. tuned:BITS comes from `kvrun tune` on other texts, unless --work already has its file.

Texts: tools/dev/quality_texts, and an article of WikiText-2's test split if that file exists. Each gives one chunk of
1024 tokens, of which the last 255 are scored by decode steps. Results are kept in --work as JSON, a file per text and
--together policies, and are not measured again, so an interrupted run continues. Needs only the standard library."""
import argparse
import csv
import datetime
import json
import math
import os
import subprocess
import sys
from quality import Failed, say

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEXTS = os.path.join(ROOT, "tools/dev/quality_texts")
SHARED = os.environ.get("KVRUN_SHARED", os.path.join(ROOT, "..", "shared"))
WIKI = os.path.join(SHARED, "assets/text/wikitext2/wiki.test.raw")
WIKI_FROM, WIKI_BYTES = 1203720, 10500  # the article Tatwine and what follows
BLOCK = 16  # tokens, as in kvrun eval

# of 30 layers, as 1.4 bits of 32 layers in the paper
XQUANT_SHARED = "xquant,group=128,flush=128,recent_keep=64,kq=28,vq=2,km=30,vm=15"
# policy, the policy its difference is from (or none), what the row shows
POLICIES = [
    ("rtn8", None), ("rtn4", None), ("rtn2", None),
    ("kivi4", None), ("kivi4,sinks=4", "kivi4"), ("kivi2", None), ("kivi2,sinks=4", "kivi2"),
    ("kivi2,param_bits=8,sinks=4", "kivi2,sinks=4"),
    ("zipcache", None), ("zipcache,sinks=4", "zipcache"), ("logquant", None), ("logquant,sinks=4", "logquant"),
    ("mikv", None), ("mikv,salient.bits=8", "mikv"),
    ("specache2", None), ("specache1", None), ("asymkv", None),
    (XQUANT_SHARED, "xquant"), ("xquant", None), ("xquant,sinks=4", "xquant"),
    ("h2o", None), ("streaming", None),
    ("mixed,sinks=0", None), ("mixed", "mixed,sinks=0"),
    ("turbo4,sinks=0", None), ("turbo4", "turbo4,sinks=0"), ("turbo3", None),
    ("turbo3/2,sinks=0", None), ("turbo3/2", "turbo3/2,sinks=0"),
    ("turbo2,sinks=0", None), ("turbo2", "turbo2,sinks=0"),
    ("turbo2/1,sinks=0", None), ("turbo2/1", "turbo2/1,sinks=0"),
]
TUNED = [
    ("turbo2/1", None), ("turbo2", None), ("turbo3/2", None), ("turbo3", None), ("turbo4", None),
    ("tuned:1.74", "turbo2/1"), ("tuned:2.24", "turbo2"), ("tuned:2.74", "turbo3/2"), ("tuned:3.24", "turbo3"),
    ("tuned:4.24", "turbo4"),
]
KIVI_SMALL = "kivi2,param_bits=8,sinks=4"
OUTLIERS = "turbo2,score=key_length,key_length=%s,salient.bits=16,ratio=0.02"
CANDIDATES = [
    ("turbo2,sinks=0", "turbo2"), ("turbo2,sinks=1", "turbo2"), ("turbo2", None), ("turbo2,sinks=16", "turbo2"),
    ("turbo2,recent=256", "turbo2"), ("turbo2,mean=off", "turbo2"), ("turbo2,rotate=off", "turbo2"),
    ("turbo2,k.scale=channel", "turbo2"),
    ("turbo2,param_bits=16", "turbo2"), ("turbo2,group=32,flush=32", "turbo2"), ("tuned:2.24", "turbo2"),
    ("kivi2,sinks=4", None), (KIVI_SMALL, "kivi2,sinks=4"), (KIVI_SMALL + ",group=64,flush=64", KIVI_SMALL),
    ("kivi2,eta=0.045,sinks=4", "kivi2,sinks=4"),
    (OUTLIERS % "large", "turbo2"), (OUTLIERS % "small", "turbo2"),
]
MIKV8 = "mikv,salient.bits=8"
CHANNEL_KEYS = ",regular.k.scale=channel,regular.k.group=32"
RECIPES = [  # options of SpeCache and MiKV
    ("kivi2", None), ("specache2", "kivi2"), ("specache2,sinks=4", "specache2"),
    ("specache1", "kivi2"), ("specache1,sinks=4", "specache1"),
    ("mikv", "kivi2"), ("mikv,sinks=4", "mikv"), (MIKV8, "mikv"), (MIKV8 + ",sinks=4", MIKV8),
    (MIKV8 + ",sinks=4" + CHANNEL_KEYS, MIKV8 + ",sinks=4"),
]
SHORT = [  # of a larger model
    ("kivi4", None), ("kivi2", None), ("kivi2,sinks=4", "kivi2"), ("zipcache", None),
    *((f"{p},k.scale=codebook", None) for p in ("turbo4", "turbo3/2", "turbo2", "turbo2/1")),
    *((f"{p},k.scale=channel", f"{p},k.scale=codebook") for p in ("turbo4", "turbo3/2", "turbo2", "turbo2/1")),
    ("tuned:2.1", "turbo2,k.scale=channel"), ("tuned:2.24", "turbo2,k.scale=channel"),
    ("tuned:4.24", "turbo4,k.scale=channel"),
]
TABLES = {"policies": POLICIES, "tuned": TUNED, "candidates": CANDIDATES, "recipes": RECIPES, "short": SHORT}
EVICTS = {"h2o", "streaming"}
# Texts of tune: another part of WikiText-2, a play, and code; (file, first byte, bytes).
TUNE_TEXTS = [(WIKI, 100000, 9000), (os.path.join(SHARED, "assets/text/tinyshakespeare/input.txt"), 100000, 8000),
              (os.path.join(ROOT, "engine/kv_host/classify.cpp"), 0, 8000)]


def run(command, good=(0,)):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in good:
        raise Failed(done.stderr.strip() or f"{' '.join(command)} ended with {done.returncode}", done.returncode)
    return done.stdout


def texts_of(work):
    """{name: path}"""
    out = {f[:-4]: os.path.join(TEXTS, f) for f in sorted(os.listdir(TEXTS)) if f.endswith(".txt")}
    if os.path.exists(WIKI):
        with open(WIKI, "rb") as f:
            f.seek(WIKI_FROM)
            text = f.read(WIKI_BYTES)
        out["wiki"] = os.path.join(work, "wiki.txt")
        with open(out["wiki"], "wb") as f:
            f.write(text)
    else:
        say(f"no {os.path.relpath(WIKI)}: WikiText-2 is left out; KVRUN_SHARED names a folder with assets/text/wikitext2")
    return out


def measure(args, model, texts):
    """Fills args.work."""
    for name, path in texts.items():
        done = {row["policy"] for row in results(args.work).get(name, {}).values()}
        left = [p for p, _ in args.policies if p not in done]
        for at in range(0, len(left), args.together):
            some = left[at:at + args.together]
            command = [args.kvrun, "eval", "-m", model, "-f", path, "-c", str(args.chunk), "--score", str(args.score),
                       "--chunks", "1", "--kv", ",".join(some), "--together", str(args.together), "--json"]
            if args.device:
                command += ["--device", args.device]
            if args.dry_run:
                print(" ".join(command))
                continue
            say(f"{name}: {', '.join(some)}")
            result = json.loads(run(command))
            result["text"], result["date"] = name, datetime.date.today().isoformat()
            result["kvrun"] = run([args.kvrun, "--version"]).split("\n")[0]
            number = 0
            while os.path.exists(target := os.path.join(args.work, f"{name}.{number}.json")):
                number += 1
            with open(target + ".part", "w") as f:
                json.dump(result, f)
            os.rename(target + ".part", target)


def tune(args, model):
    """The model under a name in args.work, with what kvrun tune measured beside it."""
    link = os.path.join(os.path.abspath(args.work), os.path.basename(model))
    if not os.path.exists(link):
        os.symlink(os.path.abspath(model), link)
    if os.path.exists(link + ".kv.json"):
        return link
    command = [args.kvrun, "tune", link] + (["--device", args.device] if args.device else [])
    for i, (path, first, n) in enumerate(TUNE_TEXTS):
        if not os.path.exists(path):
            say(f"no {os.path.relpath(path)}: tune does without; KVRUN_SHARED names a folder with assets/text")
            continue
        part = os.path.join(args.work, f"tune{i}.txt")
        with open(path, "rb") as f, open(part, "wb") as out:
            f.seek(first)
            out.write(f.read(n).decode(errors="ignore").encode())
        command += ["-f", part]
    say(" ".join(command))
    if not args.dry_run:
        run(command)
    return link


def files(work):
    for name in sorted(os.listdir(work)):
        if name.endswith(".json") and not name.endswith(".kv.json"):
            with open(os.path.join(work, name)) as f:
                yield json.load(f)


def results(work):
    """{text: {policy: row}}; a row has the divergence of every scored token."""
    out = {}
    for result in files(work):
        for row in result["texts"][0]["results"]:
            out.setdefault(result["text"], {})[row["policy"]] = row
    return out


def blocks(values):
    return [sum(values[at:at + BLOCK]) / len(values[at:at + BLOCK]) for at in range(0, len(values), BLOCK)]


def interval(klds):
    """Mean over all texts' tokens and the half of its 95 % interval, from means of blocks of tokens: neighbours depend
    on each other. klds: a list per text."""
    all_tokens = [x for text in klds for x in text]
    mean = sum(all_tokens) / len(all_tokens)
    means = [b for text in klds for b in blocks(text)]
    middle = sum(means) / len(means)
    error = math.sqrt(sum((b - middle) ** 2 for b in means) / (len(means) - 1) / len(means))
    return mean, 1.96 * error


def quantile(values, p):
    values = sorted(values)
    at = p * (len(values) - 1)
    i = int(at)
    return values[i] + (at - i) * (values[min(i + 1, len(values) - 1)] - values[i])


def summary(args, model, got):
    """A dict per policy that was measured on every text."""
    rows = []
    for policy, base in args.policies:
        if not all(policy in text for text in got.values()):
            continue
        of = [text[policy] for text in got.values()]
        mean, half = interval([r["klds"] for r in of])
        every = [x for r in of for x in r["klds"]]
        plan = json.loads(run([args.kvrun, "plan", "-m", model, "--kv", policy, "-c", "8192", "--device", "cpu",
                               "--json"], (0, 6)))
        shape = "x".join(str(plan["shape"][k]) for k in ("n_layers", "n_kv_heads", "head_dim"))
        at_32k = json.loads(run([args.kvrun, "plan", "--shape", shape, "--kv", plan["policy"], "-c", "32768",
                                 "--memory", "64G", "--json"], (0, 6)))
        row = {"policy": policy, "bits": of[0]["stored_bits_per_element"],
               "bits_32k": at_32k["stored_bits_per_element"],
               "kld": mean, "half": half, "p999": quantile(every, 0.999), "worst": max(every),
               "top1": sum(r["top1"] for r in of) / len(of), "base": base}
        for name, text in got.items():
            row["kld_" + name] = text[policy]["kld_mean"]
        if base and all(base in text for text in got.values()):
            row["difference"], row["difference_half"] = interval(
                [[x - y for x, y in zip(text[policy]["klds"], text[base]["klds"])] for text in got.values()])
        rows.append(row)
    return rows


def markdown(rows, texts):
    head = ["`--kv`", "bits", "at 32k", "KLD", *[f"KLD, {t}" for t in texts], "99.9 %", "worst", "top-1",
            "less that of"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" + "---:|" * (len(head) - 1)]
    for r in rows:
        note = f"{r['difference']:+.4f} ± {r['difference_half']:.4f} (`{r['base']}`)" if "difference" in r else ""
        cells = [f"`{r['policy']}`" + (" (evicts)" if r["policy"] in EVICTS else ""), f"{r['bits']:.2f}",
                 f"{r['bits_32k']:.2f}", f"{r['kld']:.4f} ± {r['half']:.4f}", *[f"{r['kld_' + t]:.4f}" for t in texts],
                 f"{r['p999']:.2f}", f"{r['worst']:.2f}", f"{r['top1'] * 100:.1f} %", note]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_csv(path, rows):
    with open(path, "w", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(["policy", "stored_bits", "stored_bits_32k", "kld", "kld_half", "kld_p999", "kld_worst",
                    "top1_percent"])
        for r in rows:
            w.writerow([r["policy"], f"{r['bits']:.2f}", f"{r['bits_32k']:.2f}", f"{r['kld']:.5f}", f"{r['half']:.5f}",
                        f"{r['p999']:.4f}", f"{r['worst']:.4f}", f"{r['top1'] * 100:.1f}"])


def arguments():
    p = argparse.ArgumentParser(prog="tools/dev/quality.sh", allow_abbrev=False, description=__doc__)
    p.add_argument("--model", required=True, help="a name of tools/models.sh")
    p.add_argument("--table", choices=list(TABLES), default="policies", help="which policies [policies]")
    p.add_argument("--only", default="", metavar="PREFIX", help="only policies whose names begin so [all]")
    p.add_argument("--kvrun", default=os.path.join(ROOT, "build/kvrun"))
    p.add_argument("--device", default="", help="as for kvrun [its choice]")
    p.add_argument("--work", default="", help="folder of results [build/quality-NAME]")
    p.add_argument("--csv", default="", help="write the table's numbers to this file too")
    p.add_argument("--texts", default="", help="only these texts, like wiki,dialogue [all]")
    p.add_argument("--chunk", type=int, default=1024)
    p.add_argument("--score", type=int, default=255)
    p.add_argument("--together", type=int, default=8, help="policies measured side by side")
    p.add_argument("--no-measure", action="store_true", help="only print the tables of what --work holds")
    p.add_argument("--dry-run", action="store_true", help="print the commands, measure nothing")
    a = p.parse_args()
    if not os.access(a.kvrun, os.X_OK):
        raise Failed(f"{a.kvrun} is not there; build it (cmake --build --preset release) or give --kvrun", 2)
    a.policies = [row for row in TABLES[a.table] if row[0].startswith(a.only)]
    if not a.policies:
        raise Failed(f"--only: no policy of --table {a.table} begins with {a.only}", 2)
    a.work = a.work or os.path.join(ROOT, "build", "quality-" + a.model)
    os.makedirs(a.work, exist_ok=True)
    return a


def main():
    args = arguments()
    fetch = [os.path.join(ROOT, "tools/models.sh"), args.model]
    model = run(fetch).strip()
    texts = texts_of(args.work)
    if args.texts:
        unknown = [t for t in args.texts.split(",") if t not in texts]
        if unknown:
            raise Failed(f"--texts: no text {unknown[0]}; there are {', '.join(texts)}", 2)
        texts = {name: texts[name] for name in args.texts.split(",")}
    if any(p.startswith("tuned") for p, _ in args.policies):
        model = tune(args, model)
    if not args.no_measure:
        measure(args, model, texts)
    if args.dry_run:
        return
    got = {name: rows for name, rows in results(args.work).items() if name in texts}
    if not got:
        raise Failed(f"{args.work} holds no results", 2)
    rows = summary(args, model, got)
    print(markdown(rows, list(got)) + "\n")
    first = next(files(args.work))
    print(f"{first['date']}, {os.path.basename(model)}, {first['device']['name']} ({first['device']['driver']}). "
          f"Texts: {', '.join(got)}; of each {first['chunk']} tokens, the last {first['scored']} scored.")
    if args.csv:
        write_csv(args.csv, rows)


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        say(str(e))
        sys.exit(e.code)
    except KeyboardInterrupt:
        sys.exit(130)

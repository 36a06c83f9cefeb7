#!/usr/bin/env python3
"""Makes the quality and ablation tables of tools/dev/quality.sh: runs `kvrun eval`, prints markdown. Needs only the
standard library."""
import argparse
import concurrent.futures
import datetime
import functools
import json
import math
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.environ.get("KVRUN_SHARED", os.path.join(ROOT, "..", "shared"))
TEXT = os.path.join(SHARED, "assets/models/recall/stories-eval.txt")
MODEL = os.path.join(ROOT, "models/bundled/recall-4m-f16.gguf")

# Settings of (full, quick) runs.
SETTINGS = {"samples": (48, 8), "lines": (40, 20), "chunk": (1024, 256), "chunks": (4, 1), "sentences": (60, 20),
            "needles": (24, 4)}
ABLATION_SETTINGS = SETTINGS | {"samples": (32, 6), "chunks": (2, 1)}

PAPER = ("fp16 rtn8 rtn4 rtn2 kivi4 kivi2 kivi1 specache2 specache1 logquant xquant asymkv zipcache mikv h2o streaming").split()
# Windows of 33 to 64 f16 tokens, 48 on average; LogQuant keeps 2 W to 3 W. Eviction gets about as many bytes as 2 bits.
SMALL = [
    "fp16", "rtn8", "rtn4", "rtn2", "kivi4,recent=64", "kivi2,recent=64", "kivi1,recent=64", "specache2", "specache1",
    "logquant,group=32,W=19", "xquant,group=32,flush=32,recent=64", "asymkv,recent=64", "zipcache", "mikv",
    "h2o,budget=64,recent=64",
    "streaming,recent=128",
]


PER_CALL = 5  # policies per `kvrun eval`; text also runs the f16 cache each time


class Failed(Exception):
    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


def say(text):
    print("quality: " + text, file=sys.stderr, flush=True)


class Kvrun:
    """The measured program, with the options common to all calls."""

    def __init__(self, args):
        self.args = args
        self.shape = self.device = None

    def output(self, arguments, quiet=False, good=(0,)):
        command = [self.args.kvrun] + arguments
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None, text=True)
        if done.returncode not in good:
            raise Failed((done.stderr or "").strip() or f"{' '.join(command)} ended with {done.returncode}",
                         done.returncode)
        return done.stdout

    def plan(self, policy, tokens, shape):
        # 6: the policy evicts some of these tokens
        return json.loads(self.output(["plan", *shape, "--kv", policy, "-c", str(tokens), "--device", "cpu", "--json"],
                                      True, (0, 6)))

    @functools.lru_cache(None)
    def stored_bytes(self, policy, tokens):
        if self.shape is None:  # queried once: a plan of a shape need not open the model
            s = self.plan("fp16", tokens, ["-m", self.args.model])["shape"]
            self.shape = ["--shape", "x".join(str(s[key]) for key in ("n_layers", "n_kv_heads", "head_dim"))]
        return self.plan(policy, tokens, self.shape)["bytes"]

    def command(self, what, policies):
        a = self.args
        own = {"text": ["-f", a.text, "-c", str(a.chunk), "--chunks", str(a.chunks)],
               "needle": ["--task", "needle", "--sentences", str(a.sentences), "--samples", str(a.needles), "--ask",
                          "later"]}
        own = own.get(what) or ["--task", "recall", "--lines", str(a.lines), "--samples", str(a.samples), "--ask", what]
        return ["eval", "-m", a.model, *own, "--device", a.device, "--seed", str(a.seed), "--json", "--kv",
                ",".join(policies)]

    def evaluate(self, measures, policies):
        """{measure: {policy: row of `kvrun eval`}}; each call has a few policies, and --jobs calls run at a time."""
        calls = [(what, policies[at:at + PER_CALL]) for what in measures for at in range(0, len(policies), PER_CALL)]
        if self.args.dry_run:
            print("\n".join(" ".join(["kvrun", *self.command(*call)]) for call in calls))
            return {}
        got, start = {what: {} for what in measures}, time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            running = {pool.submit(self.output, self.command(*call), True): call for call in calls}
            for done, future in enumerate(concurrent.futures.as_completed(running), 1):
                what, some = running[future]
                try:
                    result = json.loads(future.result())
                    rows = {row["policy"]: row for row in result["results"]}
                    samples = self.args.needles if what == "needle" else self.args.samples
                    if any(p not in rows or rows[p].get("n", samples) != samples for p in some):
                        raise Failed(f"{what} was not measured to its end", 130)
                except Failed:
                    pool.shutdown(cancel_futures=True)
                    raise
                got[what].update(rows)
                self.device = result["device"]
                say(f"{done} of {len(calls)} runs, {time.monotonic() - start:.0f} s ({what})")
        return got


# ---- ablations: name -> (title, rows of (variant, policy[, policy to compare with, else that of the first row]))


def first_that(low, high, holds):
    """Smallest integer in low + 1 .. high for which `holds` is true; it is false at low and true at high."""
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def same_size_eviction(kvrun, policy, like, tokens):
    """`policy` with the smallest share that takes at least the bytes of `like`, and all tokens that then fit its
    pages."""
    size = lambda percent: kvrun.stored_bytes(f"{policy},ratio={percent / 100:g}", tokens)
    want = kvrun.stored_bytes(like, tokens)
    enough = size(first_that(0, 100, lambda percent: size(percent) >= want))
    percent = first_that(0, 101, lambda percent: percent > 100 or size(percent) > enough) - 1
    return f"{policy},ratio={percent / 100:g}", percent


def same_size_window(kvrun, group, w, tokens):
    """KIVI with the smallest f16 window that takes at least LogQuant's bytes, averaged over lengths, because windows
    fill and flush at different times and tokens that wait for a full group are also in f16."""
    lengths = [tokens // 2 + i * tokens // 12 for i in range(6)]
    size = lambda policy: sum(kvrun.stored_bytes(policy, n) for n in lengths)
    want, kivi = size(f"logquant,group={group},W={w}"), f"kivi2,group={group},flush={group},recent_keep="
    newest = first_that(max(0, 5 * w // 2 - group) - 1, 3 * w + group, lambda n: size(kivi + str(n)) >= want)
    return kivi + str(newest), newest


def ablations(kvrun, only):
    z = "zipcache,ratio=0.4"
    tables = {}
    tables["probes"] = ("Probe rows (ZipCache, Table 2: 40 % salient at 4 bits, 60 % at 2)", lambda: [
        ("all rows", z + ",probe=all"), ("5 % newest + 5 % random", z), ("10 % newest", z + ",probe=recent"),
        ("10 % random", z + ",probe=random")])
    tables["score"] = ("Score (ZipCache, eq. 7 and 8)", lambda: [
        ("normalised, all rows", z + ",probe=all"), ("accumulated, all rows", z + ",probe=all,score=sum"),
        ("normalised, hybrid probes", z), ("accumulated, hybrid probes", z + ",score=sum"),
        ("no ranking: nearly all at 2 bits", "zipcache,ratio=0.001"),
        ("no ranking: all at 4 bits", "zipcache,ratio=1")])
    token, grouped = "k.scale=token,k.group=all", "k.scale=token,k.group=32"
    tables["granularity"] = ("Granularity of keys / values (ZipCache, Table 1), 4 and 2 bits, 60 % salient", lambda: [
        ("channelwise / channel-separable tokenwise", "zipcache"),
        ("channelwise / tokenwise", "zipcache,v.prescale=none"),
        ("channelwise / tokenwise in groups of 32", "zipcache,v.prescale=none,v.group=32"),
        ("tokenwise / tokenwise", f"zipcache,{token},v.prescale=none"),
        ("both tokenwise in groups of 32", f"zipcache,{grouped},v.prescale=none,v.group=32"),
        ("channelwise by 32 tokens / in groups of 32", "zipcache,k.group=32,v.prescale=none,v.group=32")])
    tables["steps"] = ("From ZipCache towards KIVI, one thing at a time", lambda: [
        ("as it is", "zipcache"), ("every row a probe", "zipcache,probe=all"), ("80 % salient", "zipcache,ratio=0.8"),
        ("newest 32 never packed", "zipcache,recent_keep=32"), ("K by 32 tokens, V in groups of 32",
        "zipcache,k.group=32,v.prescale=none,v.group=32"), ("KIVI", "kivi2,recent=64")])
    tables["balancer"] = ("Channel balancer (MiKV, Table 2), 20 % in f16", lambda: [
        ("2 bits, on", "mikv"), ("2 bits, off", "mikv,balance=off"),
        ("1 bit, on", "mikv,bits=1", "mikv,bits=1"), ("1 bit, off", "mikv,bits=1,balance=off", "mikv,bits=1")])

    turbo = "turbo2,group=32,flush=32,recent=64"
    tables["outliers"] = ("What outlier channels ask for (run it on a model of tools/dev/outliers.py too)", lambda: [
        ("KIVI: keys per channel, 2 bits", "kivi2,recent=64"),
        ("both per token, 2 bits", "rtn2,recent=64", "kivi2,recent=64"),
        ("MiKV: balanced keys", "mikv", "mikv"), ("no balancer", "mikv,balance=off", "mikv"),
        ("ZipCache: channel-separable values", "zipcache", "zipcache"),
        ("values per token", "zipcache,v.prescale=none", "zipcache"),
        ("codebooks, rotated, 2 bits", turbo, turbo), ("not rotated", turbo + ",rotate=off", turbo),
        ("rotated, no means", turbo + ",mean=off", turbo)])

    def eviction():
        rows = []
        for percent, base in ((50, "mikv,balance=off,ratio=0.5"), (20, "mikv,balance=off")):
            policy, share = same_size_eviction(kvrun, "mikv,balance=off,bits=0", base, 18 * kvrun.args.lines)
            rows += [(f"{percent} % f16, rest 2 bits", base, base),
                     (f"{percent} % f16, rest 4 bits", base + ",bits=4", base),
                     (f"{percent} % f16, rest evicted", base + ",bits=0", base),
                     (f"{share} % f16, rest evicted: the bytes of 2 bits", policy, base)]
        return rows

    tables["eviction"] = ("Retention against eviction (MiKV, Table 1; no balancer)", eviction)
    tables["salient"] = ("Bits of the importance cache (MiKV, Table 3), 20 %, rest 2 bits", lambda: [
        ("f16", "mikv"), ("8 bits", "mikv,salient.bits=8"), ("4 bits", "mikv,salient.bits=4")])

    def logwindow():
        rows = []
        for group, w in ((32, 10), (32, 21), (64, 42)):
            policy, newest = same_size_window(kvrun, group, w, kvrun.args.chunk)
            rows += [(f"groups of {group}, newest {newest} .. {newest + group}", policy, policy),
                     (f"groups of {group}, log window {2 * w} .. {3 * w}", f"logquant,group={group},W={w}", policy)]
        return rows

    tables["logwindow"] = ("Log window against newest tokens, 2 bits, same groups and bytes (LogQuant)", logwindow)
    unknown = [name for name in only if name not in tables]
    if unknown:
        raise Failed(f"no table {', '.join(unknown)}; there are {' '.join(tables)}", 2)
    return {name: (title, make()) for name, (title, make) in tables.items() if not only or name in only}


# ---- markdown


def table(head, rows):
    cells = [head] + rows
    width = [max(len(row[i]) for row in cells) for i in range(len(head))]
    line = lambda row: "| " + " | ".join(
        c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, width))) + " |"
    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(width)) + "|"
    return "\n".join([line(head), rule] + [line(row) for row in rows])


def text_cells(row):
    if row is None:
        return ["-"] * 4
    return [f"{row['ppl']:.3f}", f"{row['kld_mean']:.5f} ± {row['kld_error']:.5f}", f"{row['top1'] * 100:.1f} %",
            f"{row['stored_bits_per_element']:.2f}"]


def share_cell(row):
    return f"{row['share'] * 100:.0f} ({row['low'] * 100:.0f} .. {row['high'] * 100:.0f}) %"


def loss_cell(row):
    return f"{row['loss']:.3f} ± {row['loss_error']:.3f}"


def difference(row, base):
    """Mean difference of losses on the same questions, with its standard error, much smaller than each mean's."""
    d = [x - y for x, y in zip(row["losses"], base["losses"])]
    mean = sum(d) / len(d)
    error = math.sqrt(sum((x - mean) ** 2 for x in d) / (len(d) - 1) / len(d)) if len(d) > 1 else 0
    return "-" if row is base else f"{mean:+.3f} ± {error:.3f}"


def quality_table(policies, got):
    head = ["kv", "ppl", "KLD", "top-1", "bits", "recall, asked in prompt", "loss", "recall, asked later", "loss",
            "needle",
            "bits"]
    rows = []
    for p in policies:
        prompt, later, needle = (got[w][p] for w in ("prompt", "later", "needle"))
        rows.append([f"`{p}`"] + text_cells(got["text"][p] if "text" in got else None) +
                    [share_cell(prompt), loss_cell(prompt), share_cell(later), loss_cell(later),
                     f"{needle['share'] * 100:.0f} %", f"{later['stored_bits_per_element']:.2f}"])
    return table(head, rows)


def ablation_table(rows, got):
    head = ["variant", "bits", "KLD", "top-1", "asked in prompt", "loss", "difference", "asked later", "loss",
            "difference", "policy"]
    out = []
    for variant, p, *base in rows:
        prompt, later = got["prompt"], got["later"]
        text = text_cells(got["text"][p] if "text" in got else None)
        base = base[0] if base else rows[0][1]
        out.append([variant, f"{later[p]['stored_bits_per_element']:.2f}", text[1], text[2],
                    f"{prompt[p]['share'] * 100:.0f} %", loss_cell(prompt[p]), difference(prompt[p], prompt[base]),
                    f"{later[p]['share'] * 100:.0f} %", loss_cell(later[p]), difference(later[p], later[base]),
                    f"`{p}`"])
    return table(head, out)


def footer(args, device, got, seconds):
    text = (f"{args.chunks} chunks of {args.chunk} tokens, the last half of each scored by decode steps"
            if "text" in got
            else "not measured, for the text was not there")
    return "\n".join([
        f"{datetime.date.today().isoformat()}, {device['name']} ({device['driver']}), {seconds / 60:.0f} minutes.",
        f"Text: {text}. Recall: {args.samples} records of {args.lines} lines, seed {args.seed}, share of right answers with its",
        "95 % interval, and loss: mean -ln p of the right answer's digits ± standard error. bits: stored bits per element,",
        "everything counted, at the end of a chunk of text or of a question."])


def arguments():
    p = argparse.ArgumentParser(prog="tools/dev/quality.sh", allow_abbrev=False)
    p.add_argument("--ablations", action="store_true")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--windows", choices=["small", "paper"], default="small")
    p.add_argument("--only", default="")
    p.add_argument("--kvrun", default=os.path.join(ROOT, "build/kvrun"))
    p.add_argument("--device", default="cpu")
    p.add_argument("--model", default=MODEL)
    p.add_argument("--text", default=None)
    p.add_argument("--seed", type=int, default=1)
    for name in SETTINGS:
        p.add_argument("--" + name, type=int, default=None)
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    p.add_argument("--dry-run", action="store_true")
    a = p.parse_args()
    for name, values in (ABLATION_SETTINGS if a.ablations else SETTINGS).items():
        if getattr(a, name) is None:
            setattr(a, name, values[1 if a.quick else 0])
        if getattr(a, name) < 1:
            raise Failed(f"--{name} is {getattr(a, name)}, expected 1 or more", 2)
    a.only = [name for name in a.only.split(",") if name]
    if a.only and not a.ablations:
        raise Failed("--only chooses among the tables of --ablations", 2)
    if not os.access(a.kvrun, os.X_OK):
        raise Failed(f"{a.kvrun} is not there; build it (cmake --build --preset release) or give --kvrun", 2)
    if a.text is None:
        a.text = TEXT
        if not os.path.exists(a.text):
            say(f"no {os.path.relpath(a.text)}: perplexity and KLD are left out; give --text FILE or set KVRUN_SHARED")
            a.text = None
    elif not os.path.exists(a.text):
        raise Failed(f"{a.text}: no such text", 5)
    return a


def main():
    args = arguments()
    kvrun = Kvrun(args)
    start = time.monotonic()
    if args.ablations:
        tables = ablations(kvrun, args.only)
        policies = list(dict.fromkeys(p for _, rows in tables.values() for _, p, *_ in rows))
        measures = ["prompt", "later"]
    else:
        policies = SMALL if args.windows == "small" else PAPER
        measures = ["prompt", "later", "needle"]
    for p in policies:  # reports invalid policies before minutes of work
        kvrun.stored_bytes(p, args.chunk)
    if args.text:
        measures.insert(0, "text")
    got = kvrun.evaluate(measures, policies)
    if args.dry_run:
        return
    if args.ablations:
        for title, rows in tables.values():
            print(f"**{title}**\n\n{ablation_table(rows, got)}\n")
    else:
        print(quality_table(policies, got) + "\n")
    print(footer(args, kvrun.device, got, time.monotonic() - start))


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        say(str(e))
        sys.exit(e.code)
    except KeyboardInterrupt:
        sys.exit(130)

#!/usr/bin/env python3
"""Draws tools/dev/readme.svg from memory.csv and quality_smollm2.csv beside it (cache memory over context, and KL
divergence over stored bits), and pareto.svg from pareto.csv, which pareto.py measures.

  plot_readme.py                  writes the drawings
  plot_readme.py --update KVRUN   recomputes the planned rows of memory.csv with this program, then writes the drawings
  plot_readme.py --check          fails if a drawing does not match the data, or quality.csv differs from
                                  models/bundled/README.md
"""
import csv, json, math, os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = "4x8x128"  # of the model `deep`, on which rows were measured
TOKENS = [256, 512, 1024] + [2048 * i for i in range(1, 17)]
MEMORY = {"fp16": "#444444", "kivi4": "#1b6ca8", "kivi2": "#c8553d", "xquant": "#2a7f4f", "streaming": "#8a6fae"}
EVICTS = {"streaming", "h2o"}
LABELS = {  # positions of names for points that lie close together
    "zipcache": (-8, 6, "end"), "kivi2": (-8, -2, "end"), "specache1": (-2, 15, "middle"), "logquant": (8, -2, "start"),
    "turbo3/2": (-8, 6, "end"), "turbo2": (-8, 6, "end"), "turbo2/1": (-8, 8, "end"), "turbo3": (-8, 8, "end"),
    "rtn4": (-8, 0, "end"), "asymkv": (-8, 8, "end"), "xquant": (8, 2, "start")}
W, H, TOP, BOTTOM = 440, 330, 46, 48  # of a panel, in pixels
LEFT, RIGHT = 58, 22


def rows(name):
    with open(os.path.join(HERE, name), newline="") as f:
        return list(csv.DictReader(f))


def update(program):
    out = [r for r in rows("memory.csv") if r["kind"] == "measured"]
    planned = []
    for policy in MEMORY:
        for n in TOKENS:
            r = subprocess.run([program, "plan", "--shape", SHAPE, "--kv", policy, "-c", str(n), "--memory", "64G",
                                "--json"],
                               capture_output=True, text=True)
            planned.append({"policy": policy, "tokens": n, "mib": f"{json.loads(r.stdout)['bytes'] / 2**20:.1f}",
                            "kind": "planned"})
    with open(os.path.join(HERE, "memory.csv"), "w", newline="") as f:
        w = csv.DictWriter(f, ["policy", "tokens", "mib", "kind"], lineterminator="\n")
        w.writeheader()
        w.writerows(planned + out)


def text(x, y, s, anchor="middle", size=11, color="#222222", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{color}"{more}>{s}</text>'


def line(x1, y1, x2, y2, color="#dddddd", width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>'


class Panel:
    """Axes with a title; x() and y() map data to pixels."""

    def __init__(self, at, title, x_label, y_label, x_range, y_range, log_y=False):
        self.at, self.x_range, self.y_range, self.log_y = at, x_range, y_range, log_y
        self.out = [text(at + LEFT, 20, title, "start", 14, more=' font-weight="bold"'),
                    text(at + LEFT, 37, y_label, "start"),
                    text(at + (LEFT + W - RIGHT) / 2, H - 10, x_label)]

    def x(self, v):
        lo, hi = self.x_range
        return self.at + LEFT + (v - lo) / (hi - lo) * (W - LEFT - RIGHT)

    def y(self, v):
        lo, hi = (math.log10(e) for e in self.y_range) if self.log_y else self.y_range
        v = math.log10(v) if self.log_y else v
        return H - BOTTOM - (v - lo) / (hi - lo) * (H - TOP - BOTTOM)

    def grid(self, xs, ys):
        for v, s in ys:
            self.out += [line(self.x(self.x_range[0]), self.y(v), self.x(self.x_range[1]), self.y(v)),
                         text(self.x(self.x_range[0]) - 6, self.y(v) + 4, s, "end")]
        for v, s in xs:
            self.out += [line(self.x(v), self.y(self.y_range[0]), self.x(v), self.y(self.y_range[0]) + 4, "#888888"),
                         text(self.x(v), self.y(self.y_range[0]) + 17, s)]


def memory_panel():
    p = Panel(0, "Memory of the KV cache", "context, tokens", "MiB; dots: measured on the device; * evicts", (0, 40960),
              (0, 550))
    p.grid([(n * 8192, f"{n * 8192}") for n in range(5)], [(v, str(v)) for v in range(0, 501, 100)])
    data = rows("memory.csv")
    for policy, color in MEMORY.items():
        planned = [(int(r["tokens"]), float(r["mib"])) for r in data if r["policy"] == policy
                   and r["kind"] == "planned"]
        path = " ".join(f"{p.x(n):.1f},{p.y(v):.1f}" for n, v in [(0, 0)] + planned)
        dash = ' stroke-dasharray="5 3"' if policy in EVICTS else ""
        p.out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        n, v = planned[-1]
        name = f"{policy}*" if policy in EVICTS else policy
        p.out.append(text(p.x(n) + 8, p.y(v) + 4, name, "start", 11, color))
    for r in data:
        if r["kind"] == "measured" and r["policy"] in MEMORY:
            p.out.append(f'<circle cx="{p.x(int(r["tokens"])):.1f}" cy="{p.y(float(r["mib"])):.1f}" r="3.5" '
                         f'fill="{MEMORY[r["policy"]]}"/>')
    return p.out


def quality_panel():
    floor = 1e-5
    p = Panel(W, "Quality on SmolLM2-135M-Instruct", "stored bits per element at 1024 tokens",
              "KL divergence from f16, nats per token",
              (1, 11), (floor, 4), log_y=True)
    p.grid([(b, str(b)) for b in range(1, 12)],
           [(10.0**e, "0.00001" if e == -5 else f"{10.0**e:g}") for e in range(-5, 1)])
    for r in rows("quality_smollm2.csv"):
        policy, bits = r["policy"], float(r["stored_bits"])
        if "," in policy or bits > 11:  # variants of others; what evicts nothing of 1024 tokens
            continue
        kld = max(float(r["kld"]), floor)
        x, y, evicts = p.x(bits), p.y(kld), policy in EVICTS
        fill = 'fill="white" stroke="#8a6fae" stroke-width="2"' if evicts else 'fill="#c8553d"'
        p.out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {fill}/>')
        dx, dy, anchor = LABELS.get(policy, (8, 4, "start"))
        p.out.append(text(x + dx, y + dy, policy, anchor))
    x, y = p.x(7.2), p.y(1.5)
    p.out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#c8553d"/>',
              text(x + 9, y + 4, "keeps every token", "start"),
              f'<circle cx="{x:.1f}" cy="{y + 18:.1f}" r="4" fill="white" stroke="#8a6fae" stroke-width="2"/>',
              text(x + 9, y + 22, "evicts: cannot recall the rest", "start")]
    return p.out


FAMILIES = {"turbo": ("#c8553d", "rotated codebooks"), "tuned": ("#2a7f4f", "tuned: formats by layer"),
            "llama.cpp": ("#444444", "llama.cpp"), "": ("#1b6ca8", "grouped scales")}
NAMED = {"kivi4", "kivi2", "xquant", "mikv", "rtn4", "rtn8", "turbo2/1", "turbo3/2", "turbo8/4", "turbo8", "q8_0",
         "q4_0", "tuned:3"}


def family_of(row):
    name = "llama.cpp" if row["by"] == "llama.cpp" else re.match("[a-z]*", row["policy"])[0]
    return name if name in FAMILIES else ""


def pareto_panel(at, model, title):
    floor = 1e-6
    p = Panel(at, title, "stored bits per element at 32768 tokens", "KL divergence from f16, nats per token", (1, 10),
              (floor, 10), log_y=True)
    p.grid([(b, str(b)) for b in range(1, 11)], [(10.0**e, f"1e{e}" if e < -2 else f"{10.0**e:g}")
                                                 for e in range(-6, 2)])
    data = [r for r in rows("pareto.csv") if r["model"] == model]
    place = lambda r: (p.x(float(r["bits"])), p.y(max(float(r["kld"]), floor)))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(place(r) for r in data if family_of(r) == "tuned"))
    if path:
        p.out.append(f'<polyline points="{path}" fill="none" stroke="{FAMILIES["tuned"][0]}" stroke-width="1.5"/>')
    for r in data:
        x, y = place(r)
        name = r["policy"].split(",")[0]
        p.out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{FAMILIES[family_of(r)][0]}"/>')
        if name in NAMED:
            left = family_of(r) in ("tuned", "turbo")
            p.out.append(text(x - 6 if left else x + 6, y + 11 if left else y - 3, name, "end" if left else "start",
                              10))
    for i, (color, what) in enumerate(FAMILIES.values()):
        x, y = p.x(7), p.y(2) + 16 * i
        p.out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>', text(x + 8, y + 4, what, "start")]
    return p.out


def pareto():
    return svg(pareto_panel(0, "bundled", "Bundled model") + pareto_panel(W, "outliers",
                                                                          "The same with outlier channels"))


def drawing():
    return svg(memory_panel() + quality_panel())


def svg(parts):
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * W}" height="{H}" viewBox="0 0 {2 * W} {H}" '
            f'font-family="sans-serif">\n<rect width="{2 * W}" height="{H}" fill="white"/>\n{body}\n</svg>\n')


DRAWINGS = {"readme.svg": drawing, "pareto.svg": pareto}


def check():
    problems = []
    for name, make in DRAWINGS.items():
        with open(os.path.join(HERE, name)) as f:
            if f.read() != make():
                problems.append(f"{name} is not what the data give; run plot_readme.py")
    with open(os.path.join(HERE, "..", "..", "models", "bundled", "README.md")) as f:
        section = f.read().split("## Quality on the bundled model")[1].split("\n## ")[0]
    table = {}
    for m in re.finditer(r"^\| `(\w+)[^`]*` +\| +[\d.]+ \| ([\d.]+) ± ([\d.]+) \|[^|]+\| +([\d.]+) \| +(\d+) \(",
                         section, re.M):
        table[m[1]] = [float(v) for v in (m[4], m[2], m[3], m[5])]
    data = {r["policy"]: [float(r[k]) for k in ("stored_bits", "kld", "kld_error", "recall_percent")]
            for r in rows("quality.csv")}
    if table != data or len(data) < 10:
        problems.append(f"quality.csv and models/bundled/README.md differ: {set(map(str, table.items())) ^ set(map(str, data.items()))}")
    print("\n".join(problems) or "the drawings are as the data give them")
    return 1 if problems else 0


if "--check" in sys.argv:
    sys.exit(check())
if "--update" in sys.argv:
    update(sys.argv[sys.argv.index("--update") + 1])
for name, make in DRAWINGS.items():
    with open(os.path.join(HERE, name), "w") as f:
        f.write(make())

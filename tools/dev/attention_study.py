#!/usr/bin/env python3
"""Where a small model attends, and the error of each way of storing keys and values, in numpy.

  tools/dev/attention_study.py [options]     python3 with numpy; ../shared/reference/kvref.py is the arithmetic of the
                                             methods
  --check          only compare `kvrun replay` with the reference on the model's own tensors; exit code 1 if they differ
  --kvrun FILE     program that tokenises and replays [build/kvrun]
  --model FILE     GGUF file: llama, F16 or F32 matrices [models/bundled/recall-4m-f16.gguf]
  --text FILE      text [../shared/assets/models/recall/stories-eval.txt; skipped with a message if absent]
  --records N      records of 40 lines [4]       --chunks N    chunks of 1024 tokens of text [3]
  --only TABLE     only outliers, granularity, sketch, probes, distance, log_window or hits, and the check
Exit code 77: numpy or the reference is missing, nothing was measured. This script runs the model itself, in float32.
"""
import argparse
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("attention_study: python3 has no numpy; install python3-numpy. Nothing was measured", file=sys.stderr)
    sys.exit(77)

from gguf_file import F16, F32, read_header
from make_codebook_golden import codebook, rotation

TABLES = ["outliers", "granularity", "sketch", "probes", "distance", "log_window", "hits"]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.environ.get("KVRUN_SHARED", os.path.join(ROOT, "..", "shared"))
sys.path[:0] = [os.path.join(SHARED, "reference"), os.path.join(ROOT, "models/bundled")]


def read_gguf(path):
    """(metadata, tensors as float32) of a file with F16 or F32 tensors."""
    with open(path, "rb") as f:
        data = f.read()
    meta, infos = read_header(path, data)
    tensors = {}
    for name, (shape, kind, at) in infos.items():
        if kind not in (F32, F16):
            sys.exit(f"attention_study: {name} is not F16 or F32; give a model that is not quantised")
        flat = np.frombuffer(data, (np.float32, np.float16)[kind], int(np.prod(shape)), at)
        tensors[name] = flat.reshape(shape).astype(np.float32)
    return meta, tensors


class Llama:
    """A forward pass that returns q, k, v of every layer (after RoPE) for a whole sequence."""

    def __init__(self, path):
        meta, self.t = read_gguf(path)
        if meta["general.architecture"] != "llama":
            sys.exit(f"attention_study: {path} is a {meta['general.architecture']} model; only llama is known here")
        g = lambda key, other=None: meta.get("llama." + key, other)
        self.layers, self.heads, self.kv = g("block_count"), g("attention.head_count"), g("attention.head_count_kv")
        self.dim = g("attention.key_length", g("embedding_length") // self.heads)
        self.eps, self.base = g("attention.layer_norm_rms_epsilon"), g("rope.freq_base", 10000.0)

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rotate(self, x):
        angle = np.arange(len(x))[:, None] * self.base ** (-np.arange(0, self.dim, 2) / self.dim)[None]
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        y = np.empty(x.shape, np.float32)
        y[..., 0::2], y[..., 1::2] = x[..., 0::2] * c - x[..., 1::2] * s, x[..., 0::2] * s + x[..., 1::2] * c
        return y

    def qkv(self, ids):
        """[(q (T, heads, D), k, v (T, kv, D))] by layer; keys and values are rounded to f16, as in a cache."""
        n, out, x = len(ids), [], self.t["token_embd.weight"][ids]
        f16 = lambda y: y.astype(np.float16).astype(np.float32)
        mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        for layer in range(self.layers):
            w = lambda name: self.t[f"blk.{layer}.{name}.weight"]
            h = self.norm(x, w("attn_norm"))
            q = self.rotate((h @ w("attn_q").T).reshape(n, self.heads, self.dim))
            k = f16(self.rotate((h @ w("attn_k").T).reshape(n, self.kv, self.dim)))
            v = f16((h @ w("attn_v").T).reshape(n, self.kv, self.dim))
            out.append((q, k, v))
            o = np.empty_like(q)
            for head in range(self.heads):
                of = head * self.kv // self.heads
                o[:, head] = softmax(q[:, head] @ k[:, of].T / np.sqrt(self.dim) + mask) @ v[:, of]
            x = x + o.reshape(n, -1) @ w("attn_output").T
            h = self.norm(x, w("ffn_norm"))
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return out


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k):
    """Attention (rows, heads, T) of queries (rows, heads, D) that see all of k (T, kv, D)."""
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    return softmax(np.einsum("nhd,thd->nht", q, k) / np.sqrt(q.shape[2]))


def by_channel(x, bits, group):
    """Quantises per channel in groups of `group` tokens; newest tokens that do not fill a group stay exact, as in the
    cache."""
    n = len(x) // group * group
    y = x.copy()
    if n:
        y[:n] = ref.per_channel(x[:n], bits, group)
    return y


def by_codebook(x, bits, keep_length=True, mean=False, page=128):
    """TurboQuant's form for least squared error: each head of a token rotated, divided by its norm, quantised by a
    Gaussian codebook.

    keep_length: the stored norm gives the decoded vector the length of the original, as in kvrun; else the norm itself
    is stored. mean: the mean of each channel over a page is stored separately.
    """
    r, book = rotation(x.shape[2]), codebook(bits)
    y = np.empty(x.shape)
    for first in range(0, len(x), page):
        part = x[first:first + page] @ r.T
        mu = part.mean(0) if mean else 0
        rest = part - mu
        length = np.linalg.norm(rest, axis=2, keepdims=True)
        unit = rest / np.maximum(length, 1e-30) * np.sqrt(x.shape[2])
        values = book[np.abs(unit[..., None] - book).argmin(-1)]
        norm = length / (np.linalg.norm(values, axis=2, keepdims=True) if keep_length else np.sqrt(x.shape[2]))
        y[first:first + page] = (values * norm + mu) @ r
    return y.astype(np.float32)


def by_sketch(x, bits):
    """TurboQuant's form for inner products: a codebook with one bit less, and for the residual its norm and the signs
    of a Gaussian projection, which estimate its product with a query without bias. The estimate is linear in the query,
    so it acts as a key."""
    dim = x.shape[2]
    coarse = by_codebook(x, bits - 1, keep_length=False)
    rest = x - coarse
    s = np.random.default_rng(7).standard_normal((dim, dim))
    signs = np.sign(rest @ s.T)
    return (coarse + np.linalg.norm(rest, axis=2, keepdims=True) * np.sqrt(np.pi / 2) / dim * (signs @ s)).astype(
        np.float32)


class Study:
    def __init__(self, args):
        self.args, self.model, self.records, self.texts = args, Llama(args.model), [], []
        for seed in range(args.records):
            text, _, answer = record(40, seed)
            ids = self.tokens(text + answer)
            # look-up rows: the question and its answer; the record before them is stored
            self.records.append((self.model.qkv(ids), len(self.tokens(text[:text.index("Query:")]))))
        if args.text and not args.check:
            with open(args.text, encoding="utf-8") as f:
                ids = self.tokens(f.read(12000 * args.chunks))
            self.texts = [self.model.qkv(ids[i * 1024:(i + 1) * 1024]) for i in range(args.chunks)]

    def tokens(self, text):
        command = [self.args.kvrun, "tokenize", "-m", self.args.model]
        out = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout
        return np.array(out.split(), int)

    # ---- kvrun replay against the reference

    def replay(self, policy, q, k, v, dq, probes):
        with tempfile.TemporaryDirectory() as folder:
            tensors = {"q": q, "k": k, "v": v, "dq": dq} | ({"probes": probes} if probes is not None else {})
            command = [self.args.kvrun, "replay", "--kv", policy, "--device", "cpu", "--out", folder + "/out"]
            for name, x in tensors.items():
                np.save(f"{folder}/{name}.npy", np.ascontiguousarray(x))
                command += ["--" + name, f"{folder}/{name}.npy"]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            return {f[:-4]: np.load(f"{folder}/out/{f}") for f in os.listdir(folder + "/out") if f.endswith(".npy")}

    def expected(self, policy, q, k, v, probes):
        """(k_hat, v_hat, whether in f16 or salient (T, kv)) of one layer, by the reference."""
        n, kv = k.shape[:2]
        better = np.zeros((n, kv), bool)
        if policy.startswith("zipcache"):
            score = ref.saliency(q, k, probes).mean(1)
            better[ref.salient_tokens(score, 0.6)] = True
            k_hat, v_hat = np.empty_like(k), np.empty_like(v)
            for some, bits in ((better[:, 0], 4), (~better[:, 0], 2)):
                k_hat[some] = ref.quant_group(k[some], bits, axis=0)[0]
                v_hat[some] = ref.channel_separable(v[some], bits, v[0].size)
            return k_hat, v_hat, better
        if policy.startswith("mikv"):
            judged = n - 32  # the newest 32 tokens stay
            score = ref.saliency(q, k, np.arange(n), normalized=False)
            better[judged:] = True
            for h in range(kv):
                better[ref.salient_tokens(score[:judged, h], 0.2), h] = True
            half = k.shape[2] // 2
            k_hat = (ref.per_token if "balance=off" in policy else
                     lambda x, b, g: ref.balanced_per_token(q, x, b, g))(k, 2, half)
            v_hat = ref.per_token(v, 2, half)
        elif policy.startswith("logquant"):
            gone = leaving_order(n, 21)
            gone = gone[:len(gone) // 32 * 32]  # the rest waits in f16 for a full group
            better[:] = True
            better[gone] = False
            k_hat, v_hat = k.copy(), ref.per_token(v, 2, 32)
            k_hat[gone] = ref.per_channel(k[gone], 2, 32)
        k_hat, v_hat = (np.where(better[:, :, None], x, y) for x, y in ((k, k_hat), (v, v_hat)))
        return k_hat, v_hat, better

    def check(self):
        """True if replay agrees: equal tiers, and equal codes except a few at rounding boundaries."""
        layers, n = self.records[0]
        q, k, v = (np.stack([layer[i][:n] for layer in layers]) for i in range(3))
        dq, probes = layers[-1][0][n:], ref.probe_rows(n, np.random.default_rng(0))
        rows, good = [], True
        for policy in ("zipcache", "mikv", "mikv,balance=off", "logquant,group=32,W=21"):
            got = self.replay(policy, q, k, v, dq, probes if policy == "zipcache" else None)
            moved = off = 0
            for layer in range(len(layers)):
                k_hat, v_hat, better = self.expected(policy, q[layer], k[layer], v[layer], probes)
                moved += ((got["tier"][layer] < 2) != better).sum()
                for x, want in ((got["k_hat"][layer], k_hat), (got["v_hat"][layer], v_hat)):
                    off += (np.abs(x - want) > 2e-3 * np.abs(want).max()).sum()  # less than a step of 4 bits
            out = ref.attend(dq, got["k_hat"][-1], got["v_hat"][-1])
            worst = np.abs(got["out"] - out).max() / np.abs(out).max()
            share = off / (2 * k.size)
            good &= bool(moved <= 2 and share < 2e-3 and worst < 2e-3)
            rows.append([f"`{policy}`", str(moved), f"{share * 100:.3f} %", f"{worst:.1e}"])
        show("`kvrun replay` against the reference, keys and values of the model on a record of 40 lines",
             ["kv", "tokens in another class", "codes that differ", "worst error of attention"], rows)
        return good

    # ---- measurements

    def outliers(self):
        """Channels much larger than the others, the reason for per-channel scales and the balancer."""
        rows = []
        for layer in range(self.model.layers):
            found = []
            for layers, n in self.records:
                q, k, v = (x[:n] for x in layers[layer])
                top = [np.abs(x).max(0).reshape(-1, x.shape[2]) for x in (q, k, v)]
                # share of a key channel's size that is equal in all tokens, which a zero point removes
                offset = np.abs(k.mean(0)).mean() / np.abs(k).mean()
                found.append([(x.max(1) / np.median(x, axis=1)).mean() for x in top] + [offset])
            rows.append([f"layer {layer}"] + [f"{x:.2f}" for x in np.mean(found, 0)])
        show("Outlier channels: the largest channel over the median one (max over tokens; mean over heads), and the part "
             "of a key channel that is constant", ["", "q", "k", "v", "constant part of k"], rows)

    def granularity(self):
        ways = {
            "K per token, groups of 32": lambda q, k, v: (ref.per_token(k, 2, 32), v),
            "K per token, groups of 32, balanced": lambda q, k, v: (ref.balanced_per_token(q, k, 2, 32), v),
            "K per channel, 32 tokens": lambda q, k, v: (by_channel(k, 2, 32), v),
            "K per channel, 64 tokens": lambda q, k, v: (by_channel(k, 2, 64), v),
            "K per channel, 128 tokens": lambda q, k, v: (by_channel(k, 2, 128), v),
            "K per channel, all tokens": lambda q, k, v: (ref.quant_group(k, 2, axis=0)[0], v),
            "V per token, groups of 32": lambda q, k, v: (k, ref.per_token(v, 2, 32)),
            "V per token, one pair": lambda q, k, v: (k, ref.per_token(v, 2, v[0].size)),
            "V channel-separable, one pair": lambda q, k, v: (k, ref.channel_separable(v, 2, v[0].size)),
        }
        self.show_errors("2 bits over the whole record", ways)

    def sketch(self):
        ways = {}
        for bits in (2, 3, 4):
            ways.update({
                f"K {bits} bits, codebook": lambda q, k, v, b=bits: (by_codebook(k, b, keep_length=False), v),
                f"K {bits} bits, codebook, lengths kept": lambda q, k, v, b=bits: (by_codebook(k, b), v),
                f"K {bits} bits, codebook, lengths and means": lambda q, k, v,
                b=bits: (by_codebook(k, b, mean=True), v),
                f"K {bits - 1} bits, codebook, and a sketch of 1": lambda q, k, v, b=bits: (by_sketch(k, b), v),
            })
        self.show_errors("Rotated keys over the whole record", ways)

    def show_errors(self, title, ways):
        """ways: name, which begins with the stored side -> function of (q, k, v) that returns the stored k and v."""
        rows = []
        for name, way in ways.items():
            errors = []
            for layers, n in self.records:
                for q, k, v in layers:
                    k_hat, v_hat = way(q[:n], k[:n], v[:n])
                    a, b = attention(q[n:], k[:n]), attention(q[n:], k_hat)
                    per = q.shape[1] // v.shape[1]
                    out = [np.einsum("nht,thd->nhd", x, np.repeat(y, per, axis=1)) for x, y in ((a, v[:n]), (b, v_hat))]
                    x, y = (k[:n], k_hat) if name[0] == "K" else (v[:n], v_hat)
                    errors.append((np.linalg.norm(y - x) / np.linalg.norm(x), np.abs(b - a).sum(-1).mean(),
                                   np.linalg.norm(out[1] - out[0]) / np.linalg.norm(out[0])))
            rows.append([name] + [f"{x:.3f}" for x in np.mean(errors, 0)])
        show(title + ": relative error of what is stored, L1 error of the question's attention, "
             "relative error of its output", ["stored", "error", "attention, L1", "output"], rows)

    def probes(self):
        """Share of the question's attention on the 40 % of tokens that each score ranks as salient."""
        def ways(q, k, n, asked):
            g = np.random.default_rng(1)
            every, tenth = np.arange(n), max(1, n // 10)
            yield "normalised, all rows", ref.saliency(q, k, every).mean(1)
            yield "normalised, 5 % newest + 5 % random", ref.saliency(q, k, ref.probe_rows(n, g)).mean(1)
            yield "normalised, 10 % newest", ref.saliency(q, k, every[-tenth:]).mean(1)
            yield "normalised, 10 % random", ref.saliency(q, k, np.sort(g.permutation(n)[:tenth])).mean(1)
            yield "accumulated, all rows", ref.saliency(q, k, every, normalized=False).mean(1)
            yield "no score: any 40 %", g.random(n)
            yield "the question itself", asked.mean(1).sum(0)
        found = {}
        for layers, n in self.records:
            for layer, (q, k, _) in enumerate(layers):
                asked = attention(q[n:], k[:n])
                for prompt in ("record", "record and question"):
                    m = n if prompt == "record" else len(q) - 6  # the answer's digits are scored afterwards
                    for name, score in ways(q[:m], k[:m], m, asked if m == n else attention(q[n:], k[:m])):
                        rows = q[n:] if m == n else q[m:]
                        on = attention(rows, k[:m])[:, :, ref.salient_tokens(score, 0.4)].sum(-1).mean()
                        found.setdefault((name, prompt), {}).setdefault(layer, []).append(on)
        names = list(dict.fromkeys(name for name, _ in found))
        rows = [[name] + [f"{np.mean([np.mean(x) for x in found[name, prompt].values()]) * 100:.0f} %"
                          for prompt in ("record", "record and question")] for name in names]
        show("Share of later attention on the 40 % of tokens called salient, mean over layers and heads",
             ["score", "prompt: the record", "prompt: record and question"], rows)

    def positions(self):
        """(name, (layers), rows) of text and of answers: positions of decode steps."""
        for layers in self.texts:
            yield "text", layers, range(520, 1020, 25)
        for layers, _ in self.records:
            yield "recall", layers, range(len(layers[0][0]) - 6, len(layers[0][0]))

    def distance(self):
        edges = [0, 1, 4, 16, 64, 128, 256, 1024]
        mass = {}
        for what, layers, rows in self.positions():
            for layer, (q, k, _) in enumerate(layers):
                for t in rows:
                    a = attention(q[t:t + 1], k[:t + 1])[0].mean(0)
                    bins = np.searchsorted(edges, t - np.arange(t + 1), side="right") - 1
                    mass.setdefault((what, layer), []).append(np.bincount(bins, a, len(edges) - 1)[:len(edges) - 1])
        show("Where attention lies: share by distance in tokens, mean over heads", ["layer"] + [
            f"{a} .. {b - 1}" if b - a > 1 else str(a) for a, b in zip(edges, edges[1:])], [
            [f"{what}, layer {layer}"] + [f"{x * 100:.1f} %" for x in np.mean(m, 0)] for (what, layer),
            m in mass.items()])

    def log_window(self):
        """LogQuant's figure 4 and table 2: its tokens compared with as many newest tokens."""
        cover, error = {}, {}
        for what, layers, rows in self.positions():
            for q, k, _ in layers:
                for t in rows:
                    a = attention(q[t:t + 1], k[:t + 1])
                    for w in (10, 21, 42, 64):
                        kept = ref.log_window(t + 1, w)
                        for name, keep in (("log", kept), ("newest", np.arange(t + 1 - len(kept), t + 1))):
                            # the paper excludes the first two tokens
                            cover.setdefault((what, w, name), []).append(a[0, :, keep[keep >= 2]].sum(0).mean())
                            rest = np.setdiff1d(np.arange(t + 1), keep)
                            for group in (32, 64):
                                k_hat = k[:t + 1].copy()
                                k_hat[rest] = by_channel(k[rest], 2, group)
                                b = attention(q[t:t + 1], k_hat)
                                error.setdefault((what, w, f"{name} 2 bits, {group}"),
                                                 []).append(np.abs(b - a).sum(-1).mean())
                            b = np.zeros_like(a)
                            b[:, :, keep] = attention(q[t:t + 1], k[keep])
                            error.setdefault((what, w, f"{name} evicted"), []).append(np.abs(b - a).sum(-1).mean())
        ways = [f"{name} {how}" for how in ("2 bits, 32", "2 bits, 64", "evicted") for name in ("log", "newest")]
        rows = [[f"{what}, W = {w}", f"{np.mean(cover[what, w, 'log']) * 100:.1f} %",
                 f"{np.mean(cover[what, w, 'newest']) * 100:.1f} %"] + [f"{np.mean(error[what, w, x]):.3f}"
                                                                        for x in ways]
                for what, w in dict.fromkeys((what, w) for what, w, _ in cover)]
        show("Log window against as many newest tokens: share of attention they cover, and L1 error of attention when the "
             "others are stored at 2 bits (keys per channel, groups of 32 and 64) or evicted",
             ["", "log covers", "newest cover"] + ways, rows)


    def hits(self):
        """SpeCache's figure 2: tokens that a query attends to most, compared with tokens that greedy eviction keeps."""
        budgets, window = (16, 32, 64, 128), 32
        ways = ["the query's own choice", "the query before it", "greedy eviction", "newest"]
        on, of = {}, {}
        for what, layers, rows in self.positions():
            for q, k, _ in layers:
                kv, per = k.shape[1], q.shape[1] // k.shape[1]
                by_head = lambda t: attention(q[t:t + 1], k[:t + 1])[0].reshape(kv, per, t + 1).mean(1)
                kept = {n: kept_by_score(q, k, rows, n, window) for n in budgets}
                for t in rows:
                    old = t + 1 - window
                    now, before = by_head(t)[:, :old], by_head(t - 1)[:, :old]
                    of[what] = of.get(what, 0) + now.sum()
                    for n in budgets:
                        top = lambda a: np.argpartition(-a, n, axis=1)[:, :n]
                        newest = np.tile(np.arange(old - n, old), (kv, 1))
                        for name, some in zip(ways, (top(now), top(before), kept[n][t], newest)):
                            mass = sum(now[h, [i for i in some[h] if i < old]].sum() for h in range(kv))
                            on[what, n, name] = on.get((what, n, name), 0) + mass
        show(f"Share of attention to tokens older than the newest {window} that falls on k of them", ["", "k"] + ways, [
            [what, str(n)] + [f"{on[what, n, name] / of[what] * 100:.0f} %" for name in ways] for what in of
            for n in budgets])


def kept_by_score(q, k, rows, n, window):
    """{row: (kv heads, n) tokens older than the window that H2O holds there}: each new token permanently evicts the
    least attended one."""
    kv, per = k.shape[1], q.shape[1] // k.shape[1]
    score, live, out = np.zeros((kv, len(k))), np.ones((kv, len(k)), bool), {}
    for t in range(max(rows) + 1):
        s = np.einsum("gpd,tgd->gpt", q[t].reshape(kv, per, -1), k[:t + 1]) / np.sqrt(k.shape[2])
        s[~np.broadcast_to(live[:, None, :t + 1], s.shape)] = -np.inf
        score[:, :t + 1] += softmax(s).mean(1)
        old = max(t + 1 - window, 0)
        for h in range(kv):
            if live[h, :old].sum() > n:
                live[h, np.argmin(np.where(live[h, :old], score[h, :old], np.inf))] = False
        if t in rows:
            out[t] = [np.flatnonzero(live[h, :old]) for h in range(kv)]
    return out


def leaving_order(n, w):
    """Tokens that LogQuant drops, in that order."""
    held, left = [], []
    for t in range(n):
        if len(held) >= 3 * w:
            left += held[1:2 * w:2]
            held = held[0:2 * w:2] + held[2 * w:]
        held.append(t)
    return np.array(left, int)


def show(title, head, rows):
    print(f"**{title}**\n\n| " + " | ".join(head) + " |\n|---|" + "---:|" * (len(head) - 1))
    print("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n", flush=True)


def main():
    p = argparse.ArgumentParser(prog="tools/dev/attention_study.py", description=__doc__, allow_abbrev=False,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--kvrun", default=os.path.join(ROOT, "build/kvrun"))
    p.add_argument("--model", default=os.path.join(ROOT, "models/bundled/recall-4m-f16.gguf"))
    p.add_argument("--text", default=os.path.join(SHARED, "assets/models/recall/stories-eval.txt"))
    p.add_argument("--only", choices=TABLES)
    p.add_argument("--records", type=int, default=4)
    p.add_argument("--chunks", type=int, default=3)
    args = p.parse_args()
    if not os.access(args.kvrun, os.X_OK):
        sys.exit(f"attention_study: {args.kvrun} is not there; build it or give --kvrun")
    if args.check:
        args.records = 1
    elif not os.path.exists(args.text):
        print(f"attention_study: no {args.text}: text is left out; give --text", file=sys.stderr)
        args.text = None
    study = Study(args)
    good = study.check()
    if not args.check:
        for table in [args.only] if args.only else TABLES:
            getattr(study, table)()
    if not good:
        sys.exit("attention_study: kvrun replay and the reference differ; see the first table")


if __name__ == "__main__":
    try:
        import kvref as ref
    except ImportError:
        print("attention_study: no reference (../shared/reference/kvref.py); set KVRUN_SHARED. Nothing was measured",
              file=sys.stderr)
        sys.exit(77)
    from make_record import record
    main()

"""Merges the JSON of all N parts of `kvrun eval --shard I/N --json`:

    python -m kvrun.merge PART.json .. [-o FILE]

The result equals the output of one run, except for the 95 % interval of KL divergences and of their differences, whose
bootstrap draws other blocks. Parts that Ctrl-C ended are refused.
"""
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from ._errors import FormatError, error_of

SAME = ("model", "ctx", "chunk", "scored", "against", "task", "ask", "seed", "lines", "turns", "sentences")
BLOCK, DRAWS = 16, 2000  # of the bootstrap, as in `kvrun eval`


def _damaged(message: str) -> FormatError:
    error = error_of(-9, "KVRUN_EFORMAT", message)
    assert isinstance(error, FormatError)
    return error


def _in_order(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All parts of one run, each once."""
    if not parts:
        raise _damaged("no parts to merge")
    try:
        of = int(parts[0]["shard"]["of"])
        found = {int(p["shard"]["index"]): p for p in parts if int(p["shard"]["of"]) == of}
    except (KeyError, TypeError):
        raise _damaged("a part has no field 'shard'; make it with kvrun eval --shard I/N --json") from None
    missing = [str(i) for i in range(of) if i not in found]
    if missing or len(parts) != of:
        raise _damaged(f"{len(parts)} parts of {of}" + (f": part {', '.join(missing)} is missing" if missing else
                                                       "; a part is there twice, or of another run"))
    ordered = [found[i] for i in range(of)]
    cancelled = [str(i) for i, p in enumerate(ordered) if p.get("cancelled")]
    if cancelled:
        raise _damaged(f"part {', '.join(cancelled)} was interrupted and is not whole; measure it again")
    for field in SAME:
        values = [p.get(field) for p in ordered]
        if any(v != values[0] for v in values):
            raise _damaged(f"the parts differ in '{field}': {values[0]!r} and "
                           f"{next(v for v in values if v != values[0])!r}")
    policies = [[r["policy"] for r in p["results"]] for p in ordered]
    if any(p != policies[0] for p in policies):
        raise _damaged(f"the parts have other policies: {policies}")
    return ordered


def _interval(x: Any, stretch: int) -> tuple[float, float]:
    """95 % interval of the mean by the moving-block bootstrap; no block crosses the borders of a chunk."""
    import numpy as np

    n = len(x)
    if n == 0:
        return 0.0, 0.0
    block = min(BLOCK, stretch)
    starts = np.array([c + i for c in range(0, n, stretch) for i in range(min(stretch, n - c) - block + 1)] or [0])
    sums = np.concatenate([[0.0], np.cumsum(x, dtype=np.float64)])
    drawn = np.random.default_rng(1).choice(starts, (DRAWS, max(1, n // block)))
    means = (sums[np.minimum(drawn + block, n)] - sums[drawn]).sum(axis=1) / (drawn.shape[1] * block)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _wilson(k: int, n: int) -> tuple[float, float]:
    if n == 0:
        return 0.0, 1.0
    z, p = 1.959963984540054, k / n
    middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n))**0.5
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def _mean(x: Any) -> tuple[float, float]:
    """Mean and its standard error."""
    import numpy as np

    values = np.asarray(x, np.float64)
    if len(values) == 0:
        return 0.0, 0.0
    return float(values.mean()), float(values.std(ddof=1) / len(values)**0.5) if len(values) > 1 else 0.0


def _cost(rows: Sequence[dict[str, Any]], weights: Sequence[int]) -> dict[str, Any]:
    total = {name: sum(r["cost"][name] for r in rows) for name in rows[0]["cost"]}

    def mean(name: str) -> float:
        return float(sum(r[name] * w for r, w in zip(rows, weights)) / max(1, sum(weights)))

    bits = mean("stored_bits_per_element")

    def speed(kind: str) -> float | None:
        if any(r[kind + "_tok_s"] is None for r in rows):  # with --together
            return None
        seconds = float(total[kind + "_seconds"])
        return total[kind + "_tokens"] / seconds if seconds > 0 else 0.0

    return {"stored_bits_per_element": bits, "ratio": 16 / bits if bits > 0 else 0, "f16_share": mean("f16_share"),
            "decode_tok_s": speed("decode"), "prefill_tok_s": speed("prefill"), "cost": total}


def _text_row(rows: Sequence[dict[str, Any]], weights: Sequence[int], scored: int) -> dict[str, Any]:
    """One policy on the tokens of all parts, in the order of the text."""
    import numpy as np

    nll, kld = (np.concatenate([r[name] for r in rows]).astype(np.float64) for name in ("nlls", "klds"))
    agreed = np.concatenate([r["agreed"] for r in rows])
    mean, error = _mean(nll)
    kld_mean, kld_error = _mean(kld)
    low, high = _interval(kld, scored)
    median, p99, p999 = np.quantile(kld, [0.5, 0.99, 0.999])
    return {"policy": rows[0]["policy"], "tokens": len(kld), "ppl": float(np.exp(mean)),
            "ppl_error": float(np.exp(mean) * error), "kld_mean": kld_mean, "kld_error": kld_error, "kld_low": low,
            "kld_high": high, "kld_median": float(median), "kld_p99": float(p99), "kld_p999": float(p999),
            "kld_worst": float(kld.max()), "top1": float(agreed.mean()), **_cost(rows, weights),
            "klds": kld.tolist(), "nlls": nll.tolist(), "agreed": agreed.tolist()}


def _add_differences(rows: list[dict[str, Any]], against: str | None, scored: int) -> None:
    """--against: of each policy's KL divergence from that of one policy, token by token."""
    import numpy as np

    base = next((r for r in rows if r["policy"] == against), None)
    if base is None:
        return
    for row in rows:
        d = np.asarray(row["klds"], np.float32) - np.asarray(base["klds"], np.float32)
        low, high = _interval(d, scored)
        row["difference"] = {"mean": _mean(d)[0], "low": low, "high": high}


def _text(parts: list[dict[str, Any]], out: dict[str, Any]) -> None:
    scored, raw = int(parts[0]["scored"]), ("klds", "nlls", "agreed", "cost")
    files = [t["file"] for t in parts[0]["texts"]]
    if any([t["file"] for t in p["texts"]] != files for p in parts):
        raise _damaged("the parts are of other texts")
    policies = range(len(parts[0]["results"]))
    out["texts"] = []
    for i, file in enumerate(files):
        texts = [p["texts"][i] for p in parts]
        chunks = [int(t["chunks"]) for t in texts]
        rows = [_text_row([t["results"][k] for t in texts], chunks, scored) for k in policies]
        _add_differences(rows, parts[0].get("against"), scored)
        out["texts"].append({"file": file, "chunks": sum(chunks), "results": rows})
    chunks = [t["chunks"] for t in out["texts"]]
    rows = [_text_row([t["results"][k] for t in out["texts"]], chunks, scored) for k in policies]
    _add_differences(rows, parts[0].get("against"), scored)
    for text in out["texts"]:
        text["results"] = [{n: v for n, v in r.items() if n not in raw or n == "klds"} for r in text["results"]]
    out["chunks"] = sum(chunks)
    out["results"] = [{n: v for n, v in r.items() if n not in raw} for r in rows]


def _task(parts: list[dict[str, Any]], out: dict[str, Any]) -> None:
    out["samples"] = sum(int(p["samples"]) for p in parts)
    out["results"] = []
    for i in range(len(parts[0]["results"])):
        rows = [p["results"][i] for p in parts]
        right = [a for r in rows for a in r["answers"]]
        losses = [x for r in rows for x in r["losses"]]
        low, high = _wilson(sum(right), len(right))
        loss, error = _mean(losses)
        cost = _cost(rows, [len(r["answers"]) for r in rows])
        del cost["cost"]
        out["results"].append({"policy": rows[0]["policy"], "n": len(right), "right": sum(right),
                               "share": sum(right) / len(right) if right else 0, "low": low, "high": high, "loss": loss,
                               "loss_error": error, "longest": max(r["longest"] for r in rows), "answers": right,
                               "losses": losses, **cost})


def merge(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges the dictionaries of all parts, in any order, into that of one run."""
    ordered = _in_order(parts)
    of_parts = ("shard", "results", "texts", "chunks", "samples")
    out = {n: v for n, v in ordered[0].items() if n not in of_parts}
    out["merged"] = len(ordered)
    (_text if "texts" in ordered[0] else _task)(ordered, out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kvrun.merge", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", metavar="PART.json")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file instead of stdout")
    a = parser.parse_args()
    parts = []
    for path in a.parts:
        try:
            with open(path, encoding="utf-8") as f:
                parts.append(json.load(f))
        except OSError as error:
            sys.exit(f"error: {path}: {error.strerror}")
        except ValueError as error:
            sys.exit(f"error: {path}: not JSON: {error}")
    try:
        text = json.dumps(merge(parts), indent=2)
    except FormatError as error:
        sys.exit(f"error: {error}")
    except (KeyError, TypeError) as error:
        sys.exit(f"error: a part is not what kvrun eval --shard writes: {error!r}")
    if a.output:
        with open(a.output, "w", encoding="utf-8") as f:
            f.write(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()

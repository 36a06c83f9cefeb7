"""The program kvrun, for measurements: eval, tune, replay. Each runs in a separate process."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._check import path_of
from ._errors import ProgramError, in_python, invalid, program_error
from ._runtime import native_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

MODEL_FAULT = 1  # exit code of a fault in kvrun


def program() -> str:
    """Path of the program in this package; KVRUN_PROGRAM overrides it."""
    return os.environ.get("KVRUN_PROGRAM") or native_file("kvrun")


def run(arguments: Sequence[str | os.PathLike[str]], accept: Sequence[int] = (0,)) -> str:
    """Runs the program; returns its stdout. Raises ProgramError for another exit code."""
    import subprocess

    command = [program(), *(path_of(a, "an argument") for a in arguments)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              errors="replace")
    except OSError as error:
        raise ProgramError(f"kvrun's program cannot be started: {error}", MODEL_FAULT) from None
    if done.returncode not in accept:
        lines = done.stderr.splitlines()
        lines = [line for line in lines if line.startswith("error:")] or lines[-1:]
        said = lines[0].removeprefix("error:").strip() if lines else "no message"
        if done.returncode < 0:
            said = f"ended by signal {-done.returncode}: {said}"
        raise program_error(in_python(said, program=True), done.returncode)
    return done.stdout


def _options(device: str | int | None, ctx: int | None, more: dict[str, Any]) -> list[str]:
    """Keywords as options of the program: chunks=4 is --chunks 4, check=True is --check."""
    out = [] if device is None else ["--device", str(device)]
    if ctx is not None:
        out += ["--ctx-size", str(ctx)]
    for name, value in more.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            out.append(flag)
        elif isinstance(value, (list, tuple)):
            for one in value:
                out += [flag, str(one)]
        elif value is not None and value is not False:
            out += [flag, str(value)]
    return out


def evaluate(model: str | os.PathLike[str], *, kv: str | Sequence[str] = "fp16",
             files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), task: str | None = None,
             ctx: int | None = None, device: str | int | None = None, **more: Any) -> dict[str, Any]:
    """The results of `kvrun eval --json` as a dictionary; `kvrun help eval` lists its keys.

    kv: policies. files: texts to score, or task: "recall", "needle" or a file of questions. More options by their
    names: chunks=4, score=128, against="kivi2", samples=50, shard="1/4".
    """
    import json

    texts = [files] if isinstance(files, (str, bytes, os.PathLike)) else list(files)
    policies = kv if isinstance(kv, str) else ",".join(kv)
    command: list[str | os.PathLike[str]] = ["eval", model, "--json", "--kv", policies]
    for text in texts:
        command += ["--file", text]
    if task is not None:
        command += ["--task", task]
    found: dict[str, Any] = json.loads(run(command + list(_options(device, ctx, more))))
    return found


def tune(model: str | os.PathLike[str], *, file: str | os.PathLike[str] | None = None, chunks: int = 4,
         output: str | os.PathLike[str] | None = None, ctx: int | None = None, device: str | int | None = None,
         **more: Any) -> dict[str, Any]:
    """The measurements of `kvrun tune` per layer, as a dictionary with the contents of its file.

    output: path to which the file is also written, such as MODEL.kv.json, which `--kv auto` reads.
    """
    import json
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kvrun-") as folder:
        path = os.fspath(output) if output is not None else os.path.join(folder, "tuning.json")
        command = ["tune", model, "--output", path, "--chunks", str(chunks), *_options(device, ctx, more)]
        if file is not None:
            command += ["--file", file]
        run(command)
        with open(path, encoding="utf-8") as f:
            found: dict[str, Any] = json.load(f)
    return found


class Replay(NamedTuple):
    """Keys and values as stored by a policy. Arrays have the given shapes, with or without layers.

    k_hat, v_hat: as read by attention; NaN: evicted. tier: 0 f16, 1 salient, 2 regular, 3 evicted. score: of tokens;
    None if the policy has none. out: attention output of the last layer for the queries of decode steps. report: the
    policy's bytes and stored_bits_per_element, described by `kvrun help replay`.
    """

    k_hat: Array
    v_hat: Array
    tier: npt.NDArray[np.uint8]
    score: Array | None
    out: Array
    report: dict[str, Any]


def replay(k: npt.ArrayLike, v: npt.ArrayLike, q: npt.ArrayLike | None = None, policy: str = "fp16", *,
           dq: npt.ArrayLike | None = None, probes: npt.ArrayLike | None = None, device: str | int | None = None,
           seed: int = 1, check: bool = False) -> Replay:
    """Stores keys and values under a KV-cache policy on a device, and computes attention over them.

    k, v: (tokens, kv heads, head_dim), or (layers, ...); keys after RoPE. q: (tokens, heads, head_dim), or
    (layers, ...), after RoPE: the prompt's queries, which policies that rank tokens use; None: the keys, one head per
    kv head. dq: (n, heads, head_dim): queries of decode steps; None: the prompt's last query.
    """
    import json
    import re
    import tempfile

    import numpy as np

    keys, values = np.asarray(k, np.float32), np.asarray(v, np.float32)
    queries = keys if q is None else np.asarray(q, np.float32)
    layers = keys.ndim == 4
    if keys.ndim not in (3, 4) or values.shape != keys.shape or queries.ndim != keys.ndim:
        raise invalid(f"k, v and q have shapes {keys.shape}, {values.shape} and {queries.shape}; "
                      "expected (tokens, heads, head_dim) or (layers, tokens, heads, head_dim), k and v alike")
    if queries[..., 0, :].shape != keys[..., 0, :].shape:
        raise invalid(f"q has shape {queries.shape}, expected that of k, {keys.shape}, but for the number of heads")
    if not keys.size or not queries.size:
        raise invalid(f"{'q' if keys.size else 'k'} is empty: shape {queries.shape if keys.size else keys.shape}")
    if queries.shape[-2] % keys.shape[-2]:
        raise invalid(f"q has {queries.shape[-2]} heads, expected a multiple of k's {keys.shape[-2]}")
    if not layers:
        keys, values, queries = keys[None], values[None], queries[None]
    steps = queries[-1, -1:] if dq is None else np.asarray(dq, np.float32)
    if steps.ndim != 3 or steps.shape[1:] != queries.shape[2:]:
        raise invalid(f"dq has shape {steps.shape}, expected (n, {queries.shape[2]}, {queries.shape[3]}), heads and "
                      "head_dim as of q")
    for name, array in (("k", keys), ("v", values), ("q", queries), ("dq", steps)):
        if not np.isfinite(array).all():
            raise invalid(f"{name} contains a number that is not finite")
    with tempfile.TemporaryDirectory(prefix="kvrun-") as folder:
        arrays: dict[str, Any] = {"q": queries, "k": keys, "v": values, "dq": steps}
        if probes is not None:
            arrays["probes"] = np.asarray(probes, np.int64)
        command = ["replay", "--kv", policy, "--out", folder, "--seed", str(seed)]
        command += (["--check"] if check else []) + _options(device, None, {})
        for name, array in arrays.items():
            path = os.path.join(folder, f"in-{name}.npy")
            np.save(path, np.ascontiguousarray(array))
            command += [f"--{name}", path]
        try:
            run(command)
        except ProgramError as error:  # names the arrays by files
            said = re.sub(rf"(?:\w+= ?)?{re.escape(folder)}/in-(\w+)\.npy", r"\1", str(error))
            raise program_error(said, error.exit_code) from None
        found: dict[str, Any] = {}
        for name in ("k_hat", "v_hat", "tier", "score", "out"):
            path = os.path.join(folder, name + ".npy")
            loaded = np.load(path) if os.path.exists(path) else None
            found[name] = loaded if layers or loaded is None or name == "out" else loaded[0]
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as f:
            return Replay(**found, report=json.load(f))

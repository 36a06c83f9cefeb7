"""Measurements on many machines, as Ray tasks: finished results are kept, and one folder has all results."""
from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ray

from .._errors import ProgramError
from .._program import run

OUT = "{out}"  # in a command: the file or folder that the program writes


class Job(NamedTuple):
    """name: of its result in the folder. command: of the program kvrun. The result is the file or folder OUT if the
    command contains it, else stdout."""

    name: str
    command: tuple[str, ...]


def eval_jobs(model: str, kv: Sequence[str], shards: int = 1, options: Sequence[str] = ()) -> list[Job]:
    """`kvrun eval --json`, a job per policy and shard. options: such as ["-f", "text.txt", "-c", "1024"]."""
    jobs = []
    for policy in kv:
        for i in range(shards):
            name = f"eval-{policy}-{i}of{shards}".replace("/", "_").replace(",", "_")
            part = ["--shard", f"{i}/{shards}"] if shards > 1 else []
            jobs.append(Job(name, ("eval", model, "--json", "--kv", policy, *options, *part)))
    return jobs


def tune_jobs(models: Iterable[str], options: Sequence[str] = ()) -> list[Job]:
    return [Job("tune-" + os.path.basename(m), ("tune", m, "--output", OUT, *options)) for m in models]


def compare_jobs(model: str, machines: Iterable[str], options: Sequence[str] = ()) -> list[Job]:
    """`kvrun compare`, a job for each name; merge results by `kvrun compare merge`. Exit codes 7 and 8 are results."""
    return [Job("compare-" + m, ("compare", "-m", model, "-o", OUT, *options)) for m in machines]


def _measure(job: Job) -> bytes:
    """Runs on some machine; returns the program's stdout, the file it wrote, or its folder as a tar archive."""
    with tempfile.TemporaryDirectory(prefix="kvrun-") as folder:
        out = os.path.join(folder, "out")
        accept = (0, 7, 8) if job.command[0] == "compare" else (0, )
        text = run([a.replace(OUT, out) for a in job.command], accept)
        if not any(OUT in a for a in job.command):
            return text.encode()
        if os.path.isdir(out):
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w") as tar:
                tar.add(out, ".")
            return data.getvalue()
        with open(out, "rb") as f:
            return f.read()


def _keep(folder: str, job: Job, data: bytes) -> None:
    """Stores a result under its name once it is complete."""
    path = os.path.join(folder, job.name)
    if job.command[0] != "compare":
        with open(path + ".json.new", "wb") as f:
            f.write(data)
        os.replace(path + ".json.new", path + ".json")
        return
    shutil.rmtree(path + ".new", ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        if hasattr(tarfile, "data_filter"):  # not before Python 3.11.4
            tar.extractall(path + ".new", filter="data")
        else:
            tar.extractall(path + ".new")
    os.replace(path + ".new", path)


def _is_done(folder: str, job: Job) -> bool:
    path = os.path.join(folder, job.name)
    return os.path.isdir(path) if job.command[0] == "compare" else os.path.isfile(path + ".json")


def sweep(jobs: Sequence[Job], folder: str | os.PathLike[str], *, resources: dict[str, float] | None = None,
          num_cpus: float = 1, retries: int = 3) -> dict[str, str]:
    """Runs the jobs that have no result in the folder yet; if a machine is lost, its job is tried again.

    resources: of a job; None: {"vulkan_device": 1}. Returns errors by the names of jobs; these run again next time. Uses
    a running Ray, or starts it on this machine.
    """
    path = os.fspath(folder)
    os.makedirs(path, exist_ok=True)
    names = [job.name for job in jobs]
    if len(set(names)) != len(names):
        raise ValueError("two jobs have one name")
    if not ray.is_initialized():
        ray.init()
    task = ray.remote(_measure).options(num_cpus=num_cpus, max_retries=retries,
                                        resources={"vulkan_device": 1} if resources is None else resources)
    waiting = {task.remote(job): job for job in jobs if not _is_done(path, job)}
    errors: dict[str, str] = {}
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1)
        job = waiting.pop(done[0])
        try:
            _keep(path, job, ray.get(done[0]))
        except (ProgramError, ray.exceptions.RayError) as error:
            cause = getattr(error, "cause", None) or error
            errors[job.name] = str(cause).strip().splitlines()[-1]
    with open(os.path.join(path, "errors.json"), "w", encoding="utf-8") as f:
        json.dump(errors, f, indent=1)
    return errors


def results(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Results of eval and tune in the folder, by the names of their jobs."""
    out: dict[str, Any] = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json") and name != "errors.json":
            with open(os.path.join(os.fspath(folder), name), encoding="utf-8") as f:
                out[name.removesuffix(".json")] = json.load(f)
    return out

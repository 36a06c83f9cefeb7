"""kvrun on many machines, with Ray: PyPI ray[serve] 2.60 or newer.

    serve run kvrun.ray:app model=/shared/model.gguf sessions=/shared/chats replicas=4 kv=kivi2

serves OpenAI's API from replicas, each with its own copy of the model; sweep() distributes eval, tune and compare.
"""
from ._app import app, build
from ._sweep import Job, compare_jobs, eval_jobs, sweep, tune_jobs

__all__ = ["Job", "app", "build", "compare_jobs", "eval_jobs", "sweep", "tune_jobs"]

"""The Ray Serve application: a gateway before replicas."""
from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from .._errors import error_of
from ._gateway import Gateway
from ._replica import Replica
from ._router import CacheAwareRouter
from ._scaling import KvPolicy


def build(model: str | os.PathLike[str], *, replicas: int | tuple[int, int] = 1, kv: str | None = None,
          ctx: int | None = None, sessions: str | os.PathLike[str] | None = None, parallel: int = 8,
          device: str | None = None, resources: dict[str, float] | None = None, num_cpus: float = 1,
          max_queued: int = 64, gateways: int = 1, options: Sequence[str] = ()) -> Any:
    """An application for serve.run().

    model: a path that exists on every machine. replicas: their number, or (least, most), chosen by cache memory in use.
    kv, ctx, parallel: of each replica. sessions: a folder shared by all machines, in which named conversations are kept
        with their packed cache, so that any replica can answer the next turn.
    device: as for `kvrun serve`; None: each replica takes a GPU of its machine that no other replica uses.
    resources: Ray resources of a replica; None: {"vulkan_device": 1}, which `ray start --resources` gives a machine.
    max_queued: requests that may wait for a replica; further requests get 429. options: more options of `kvrun serve`.
    """
    command = list(options)
    if kv is not None:
        command += ["--kv", kv]
    if ctx is not None:
        command += ["--ctx-size", str(ctx)]
    many = isinstance(replicas, tuple)
    least, most = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    if not 1 <= least <= most:
        raise error_of(-1, "KVRUN_EINVALID", f"replicas is {replicas}, expected a number from 1, or (least, most)")
    scaling: dict[str, Any] = {"num_replicas": least}
    if many:
        policy = AutoscalingPolicy(policy_function=KvPolicy, policy_kwargs={"per_replica": parallel})
        scaling = {"autoscaling_config": AutoscalingConfig(min_replicas=least, max_replicas=most, policy=policy)}
    workers = serve.deployment(
        Replica, name="replica", max_ongoing_requests=parallel, max_queued_requests=max_queued,
        health_check_period_s=5, graceful_shutdown_timeout_s=60,
        ray_actor_options={"num_cpus": num_cpus, "resources": {"vulkan_device": 1} if resources is None else resources},
        request_router_config=RequestRouterConfig(request_router_class=CacheAwareRouter), **scaling)
    front = serve.deployment(Gateway, name="gateway", num_replicas=gateways, max_ongoing_requests=1000,
                             ray_actor_options={"num_cpus": 0})
    folder = None if sessions is None else os.fspath(sessions)
    return front.bind(workers.bind(os.fspath(model), device, folder, parallel, command))


def app(args: dict[str, str]) -> Any:
    """For `serve run kvrun.ray:app model=... replicas=2`: calls build() with its arguments as words.

    replicas=1-4: chosen by cache memory in use. resources='{"vulkan_device": 1}'. options='--chat-template chatml'.
    """
    given = dict(args)
    if "model" not in given:
        raise error_of(-1, "KVRUN_EINVALID", "give model=FILE.gguf, a path that every machine has")
    known: dict[str, Any] = {"model": given.pop("model")}
    for name in ("parallel", "max_queued", "gateways", "ctx"):
        if name in given:
            known[name] = int(given.pop(name))
    if "num_cpus" in given:
        known["num_cpus"] = float(given.pop("num_cpus"))
    if "replicas" in given:
        least, dash, most = str(given.pop("replicas")).partition("-")
        known["replicas"] = (int(least), int(most)) if dash else int(least)
    if "resources" in given:
        known["resources"] = json.loads(given.pop("resources"))
    if "options" in given:
        known["options"] = shlex.split(given.pop("options"))
    for name in ("kv", "sessions", "device"):
        if name in given:
            known[name] = given.pop(name)
    if given:
        raise error_of(-1, "KVRUN_EINVALID", f"'{next(iter(given))}' is no argument of kvrun.ray:app")
    return build(**known)

"""Number of replicas, by the share of cache memory in use."""
from __future__ import annotations

import math
from typing import Any

TARGET = 0.7  # used share of the cache budget or of the places for answers, whichever is larger


def replicas_wanted(shares: list[float], now: int, queued: float, per_replica: int, target: float = TARGET) -> int:
    """shares: used share of each running replica's memory. queued: requests that wait outside of the replicas."""
    need = sum(shares) / target + queued / max(1, per_replica)
    wanted = math.ceil(need - 1e-9)
    # hysteresis: shrinks only if one replica less could hold the load, and grows only above the target
    return max(1, now if now - 1 < need <= now else wanted)


class KvPolicy:
    """An autoscaling policy of Ray Serve."""

    def __init__(self, per_replica: int = 8, target: float = TARGET) -> None:
        self._per_replica, self._target = per_replica, target

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        by_replica: dict[Any, float] = {}
        for name in ("kv_share", "place_share"):
            for replica, value in metrics.get(name, {}).items():
                by_replica[replica] = max(by_replica.get(replica, 0.0), float(value))
        wanted = replicas_wanted(list(by_replica.values()), context.target_num_replicas,
                                 float(context.total_queued_requests or 0), self._per_replica, self._target)
        low, high = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return max(low, min(high, wanted)), {}

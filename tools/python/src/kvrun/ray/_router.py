"""Sends requests to the replica that has the packed cache of their prompt's beginning."""
from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from ._keys import Keys

MOST_PREFIXES = 1 << 18  # remembered prefixes


class CacheAwareRouter(ConsistentHashRouter):  # type: ignore[misc,unused-ignore]
    """First choice: the replica that has answered the longest beginning of this prompt, else the one that consistent
    hashing gives. If it is full: of the next two in the ring the one with the smaller load; then any."""

    # A machine whose processors are all in use answers late. With Ray's 1 s its replica would get no requests at all.
    max_queue_len_response_deadline_s = 20.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answered: OrderedDict[str, Any] = OrderedDict()  # prefix -> replica, the most recently used last

    @staticmethod
    def _keys(pending_request: Any) -> Keys | None:
        ask = pending_request.args[0] if pending_request is not None and pending_request.args else None
        return getattr(ask, "keys", None)

    def _routing_key(self, pending_request: Any) -> Any:
        keys = self._keys(pending_request)
        return keys.home if keys is not None else super()._routing_key(pending_request)

    def _holder(self, keys: Keys) -> Any:
        for prefix in reversed(keys.prefixes):
            replica = self._replicas.get(self._answered.get(prefix))
            if replica is not None:
                return replica
        return None

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        ranks: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
        keys = self._keys(pending_request)
        if keys is None or len(ranks) < 2 or any(len(r) != 1 for r in ranks):
            return ranks
        ring = [r[0] for r in ranks]
        first = self._holder(keys) or ring[0]
        others = [r for r in ring if r is not first]
        rest = [r for r in candidate_replicas if r is not first and r not in others[:2]]
        return [rank for rank in ([first], others[:2], rest) if rank]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        keys = self._keys(pending_request)
        for prefix in keys.prefixes if keys is not None else ():
            self._answered[prefix] = replica_id
            self._answered.move_to_end(prefix)
        while len(self._answered) > MOST_PREFIXES:
            self._answered.popitem(last=False)

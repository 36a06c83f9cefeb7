"""Which cache a request can use: hashes of the beginnings of its prompt, and a hash common to all turns of its
conversation. Does not need Ray."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

BLOCK = 512  # bytes of a prompt between two hashes
SHARED = 2 * BLOCK  # prompts with so long a common beginning go to one replica


class Keys(NamedTuple):
    """home: hash of the conversation or the long prefix, for consistent hashing. prefixes: hashes of longer and longer
    beginnings; a replica that has answered one has its cache."""

    home: str
    prefixes: tuple[str, ...]


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[bytes, bool]]:
    """Pieces of the prompt in order, and whether the first question of a conversation ends there."""
    yield json.dumps([body.get("model"), body.get("kv"), body.get("tools")], sort_keys=True).encode(), False
    messages = body.get("messages")
    if isinstance(messages, list):
        asked = False
        for message in messages:
            question = isinstance(message, dict) and message.get("role") == "user"
            yield json.dumps(message, sort_keys=True).encode() + b"\n", question and not asked
            asked = asked or question
    else:
        prompt = body.get("prompt", body.get("input"))
        yield (prompt if isinstance(prompt, str) else json.dumps(prompt)).encode("utf-8", "surrogatepass"), True


def keys_of(body: Any) -> Keys | None:
    """None: the request has no prompt, so any replica will do."""
    if not isinstance(body, dict) or not any(k in body for k in ("messages", "prompt", "input", "session")):
        return None
    digest = hashlib.blake2b(digest_size=8)
    prefixes: list[str] = []
    home, length = "", 0
    for data, question_ends in _parts(body):
        for at in range(0, len(data), BLOCK):
            piece = data[at:at + BLOCK]
            digest.update(piece)
            length += len(piece)
            prefixes.append(digest.hexdigest())
            if not home and length >= SHARED:
                home = prefixes[-1]
        if not home and question_ends:
            home = prefixes[-1]
    session = body.get("session")
    if isinstance(session, str) and session:
        return Keys("session:" + session, ())  # the session's file has the conversation, whatever this request repeats of it
    return Keys(home or prefixes[-1], tuple(prefixes[1:]))

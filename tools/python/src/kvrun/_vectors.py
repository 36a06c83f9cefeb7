"""Vectors of texts, and scores of documents."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ._check import text
from ._errors import invalid
from ._runtime import (NULL, Canceller, Handle, Struct, check, encoded, ffi, from_array, lib, on_piece, running,
                       token_array)

if TYPE_CHECKING:
    from ._runtime import Floats, Tokens

POOLINGS = ("model", "mean", "first", "last")  # in the order of kvrun_pooling


@contextlib.contextmanager
def reading(canceller: Canceller | None = None) -> Iterator[Any]:
    """Around a call that reads prompts: its options. Signals are handled between pieces; what they raise ends it."""
    canceller = Canceller.of(canceller)
    options = Struct("kvrun_generate_options", canceller=canceller.pointer, on_prefill=on_piece)
    with running([canceller.pointer]):
        yield options.p


def pooling_number(pooling: str) -> int:
    if pooling not in POOLINGS:
        raise invalid(f"pooling is {pooling!r}, expected one of {', '.join(POOLINGS)}")
    return POOLINGS.index(pooling)


def vectors_of(engine: Handle, texts: Sequence[Tokens], dim: int, pooling: str) -> Floats:
    """(texts, dim), not normalised."""
    import numpy as np

    how = pooling_number(pooling)
    tokens = token_array(np.concatenate(texts)) if texts else token_array([])
    counts = np.array([len(t) for t in texts], np.uintp)
    out = np.empty((len(texts), dim), np.float32)
    with reading() as options:
        check(lib.kvrun_embed_texts(engine.pointer, from_array(tokens, "uint32_t[]"), from_array(counts, "size_t[]"),
                                    len(texts), how, options, from_array(out, "float[]")))
    return out


def scores_of(engine: Handle, query: str, documents: Sequence[str]) -> Floats:
    """(documents), the larger the better."""
    import numpy as np

    if isinstance(documents, str):
        raise TypeError("documents is a text; give a list of them")
    kept = [ffi.new("char[]", encoded(text(d, "a document"))) for d in documents]
    out = np.empty(len(kept), np.float32)
    with reading() as options:
        check(lib.kvrun_score_texts(engine.pointer, encoded(text(query, "query")),
                                    ffi.new("char *[]", kept), len(kept), options, from_array(out, "float[]"), NULL))
    return out

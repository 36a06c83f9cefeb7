"""Vectors of texts, and scores of documents."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._errors import error_of
from ._runtime import NULL, Canceller, Handle, Struct, check, ffi, from_array, lib, running, token_array

if TYPE_CHECKING:
    from ._runtime import Floats, Tokens

POOLINGS = ("model", "mean", "first", "last")  # in the order of kvrun_pooling


def pooling_number(pooling: str) -> int:
    if pooling not in POOLINGS:
        raise error_of(-1, "KVRUN_EINVALID", f"pooling is {pooling!r}, expected one of {', '.join(POOLINGS)}")
    return POOLINGS.index(pooling)


def vectors_of(engine: Handle, texts: Sequence[Tokens], dim: int, pooling: str) -> Floats:
    """(texts, dim), not normalised."""
    import numpy as np

    how = pooling_number(pooling)
    tokens = token_array(np.concatenate(texts)) if texts else token_array([])
    counts = np.array([len(t) for t in texts], np.uintp)
    out = np.empty((len(texts), dim), np.float32)
    canceller = Canceller()
    options = Struct("kvrun_generate_options", canceller=canceller.pointer)
    with running([canceller.pointer]):
        check(lib.kvrun_embed_texts(engine.pointer, from_array(tokens, "uint32_t[]"), from_array(counts, "size_t[]"),
                                    len(texts), how, options.p, from_array(out, "float[]")))
    return out


def scores_of(engine: Handle, query: str, documents: Sequence[str]) -> Floats:
    """(documents), the larger the better."""
    import numpy as np

    kept = [ffi.new("char[]", d.encode("utf-8", "surrogateescape")) for d in documents]
    out = np.empty(len(documents), np.float32)
    canceller = Canceller()
    options = Struct("kvrun_generate_options", canceller=canceller.pointer)
    with running([canceller.pointer]):
        check(lib.kvrun_score_texts(engine.pointer, query.encode("utf-8", "surrogateescape"),
                                    ffi.new("char *[]", kept), len(kept), options.p, from_array(out, "float[]"), NULL))
    return out

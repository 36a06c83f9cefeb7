"""Active answers: callbacks of the library, and batches of answers."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._check import callable_or_none, real, texts, whole
from ._errors import KvrunError
from ._runtime import (NO_TOKEN, Canceller, Handle, Struct, callback, check, encoded, ffi, from_array, last_error, lib,
                       running, status_name)
from ._types import STOP_REASONS, Answer, SamplingOptions

if TYPE_CHECKING:
    from ._runtime import Tokens

@callback("kvrun_token_cb")
def _on_token(token: int, text: Any, length: int, payload: Any) -> int:
    request: Request = ffi.from_handle(payload)
    if token != NO_TOKEN:
        request.tokens.append(token)
    if length:
        request.pieces.append(bytes(ffi.buffer(text, length)).decode("utf-8", "replace"))
    return 0


@callback("kvrun_progress_cb")
def _on_prefill(done: float, seconds_left: float, payload: Any) -> int:
    request: Request = ffi.from_handle(payload)
    report = request.on_progress
    return 0 if report is None else request.guarded(lambda: report(done))


@callback("kvrun_logits_cb")
def _on_logits(logits: Any, vocab: int, payload: Any) -> int:
    import numpy as np

    request: Request = ffi.from_handle(payload)
    array = np.frombuffer(ffi.buffer(logits, vocab * 4), np.float32)
    return request.guarded(lambda: request.on_logits(array))


class Sampling:
    """Options of an answer, checked; those of the library are in `struct`."""

    def __init__(self, options: SamplingOptions) -> None:
        unknown = [name for name in options if name not in SamplingOptions.__annotations__]
        if unknown:
            raise TypeError(f"'{unknown[0]}' is no option of sampling; there are "
                            f"{', '.join(SamplingOptions.__annotations__)}")
        wanted: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self.canceller = Canceller.of(wanted.pop("canceller", None))
        self.logits = callable_or_none(wanted.pop("logits", None), "logits")
        self.progress = callable_or_none(wanted.pop("progress", None), "progress")
        self.grammar = wanted.pop("grammar", None)
        self.json_schema = wanted.pop("json_schema", None)
        for name in ("grammar", "json_schema"):
            given = getattr(self, name)
            if not (given is None or isinstance(given, str) or name == "json_schema" and isinstance(given, Mapping)):
                raise TypeError(f"{name} is {given!r}, expected a text" +
                                (" or a dictionary" if name == "json_schema" else ""))
        stops = texts(wanted.pop("stop", None), "stop")
        breakers = wanted.pop("dry_sequence_breakers", None)
        bias = wanted.pop("logit_bias", None) or {}
        if not isinstance(bias, Mapping):
            raise TypeError(f"logit_bias is {bias!r}, expected a dictionary of tokens and numbers")
        self.seed = whole(wanted.pop("seed", random_seed()), "seed", 64)
        self.struct = Struct("kvrun_generate_options", **wanted, seed=self.seed, on_token=_on_token,
                             on_prefill=_on_prefill, canceller=self.canceller.pointer)
        if stops:
            self.struct.p.stops = self._texts(stops)
            self.struct.p.n_stops = len(stops)
        if breakers is not None:
            breakers = texts(breakers, "dry_sequence_breakers")
            self.struct.p.dry_breakers = self._texts(breakers)
            self.struct.p.n_dry_breakers = len(breakers)
        if bias:
            rows = [(whole(t, "a token of logit_bias"), real(b, f"logit_bias of token {t}")) for t, b in bias.items()]
            self.struct.p.bias = self.struct.keep(ffi.new("kvrun_logit_bias[]", rows))
            self.struct.p.n_bias = len(rows)

    def _texts(self, given: Sequence[str]) -> Any:
        keep = [self.struct.keep(ffi.new("char[]", encoded(t))) for t in given]
        return self.struct.keep(ffi.new("char *[]", keep or 1))


def random_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


class Request:
    """One answer: its prompt, its options, and its text so far."""

    def __init__(self, session: Handle, prompt: Tokens, sampling: Sampling) -> None:
        self.canceller = sampling.canceller
        self.session = session
        self.prompt = prompt
        self.seed = sampling.seed
        self.tokens: list[int] = []
        self.pieces: list[str] = []  # not yet taken
        self.texts: list[str] = []  # all pieces taken
        self.error: BaseException | None = None
        self.answer: Answer | None = None
        self.has_logits = sampling.logits is not None
        self.on_logits: Callable[[Any], object] = sampling.logits
        self.on_progress: Callable[[float], object] | None = sampling.progress
        self.id = 0
        self.form: Handle | None = None  # its grammar
        self._me = ffi.new_handle(self)  # lives as long as the request
        self.options = sampling.struct
        self.options.p.payload = self._me

    def guarded(self, call: Callable[[], object]) -> int:
        """Calls the user's code; an exception ends this answer, and is raised where the answer is awaited."""
        try:
            call()
            return 0
        except BaseException as error:
            self.error = error
            return 1

    @property
    def handle(self) -> Any:
        return self._me

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None

    def take_text(self) -> str:
        if not self.pieces:
            return ""
        pieces, self.pieces = self.pieces, []
        text = "".join(pieces)
        self.texts.append(text)
        return text

    def text(self) -> str:
        return "".join(self.texts) + "".join(self.pieces)

    def end(self, status: int, result: Any) -> None:
        import numpy as np

        error = last_error(status)
        r = result[0]
        self.answer = Answer(self.text(), np.array(self.tokens, np.uint32), STOP_REASONS[r.reason], r.prompt_tokens,
                             r.prefill_seconds, r.decode_seconds, r.drafted, r.drafts_accepted, self.seed)
        name = status_name(status)
        if status and self.error is None and name not in ("KVRUN_ECANCELLED", "KVRUN_EUSER"):
            self.error = error


class Batch:
    """Answers that are generated together, on one thread at a time."""

    def __init__(self, engine: Handle) -> None:
        out = ffi.new("kvrun_batch **")
        check(lib.kvrun_batch_new(out, engine.pointer))
        self._handle = Handle(out[0], lib.kvrun_batch_free, "batch")
        self._active: dict[int, Request] = {}
        self._count = ffi.new("size_t *")

    @property
    def active(self) -> int:
        return len(self._active)

    def add(self, request: Request, of: Request | None = None) -> None:
        """Begins an answer. `of`: an answer whose prompt it shares; the request's session must be a fork of its session."""
        out = ffi.new("uint32_t *")
        if of is None:
            status = lib.kvrun_batch_add(self._handle.pointer, request.session.pointer,
                                         from_array(request.prompt, "uint32_t[]"), len(request.prompt),
                                         request.options.p, out)
        else:
            status = lib.kvrun_batch_add_fork(self._handle.pointer, request.session.pointer, of.id, request.options.p,
                                              out)
        check(status)
        request.id = out[0]
        self._active[request.id] = request
        if request.has_logits:
            check(lib.kvrun_batch_on_logits(self._handle.pointer, request.id, _on_logits, request.handle))

    def step(self) -> list[Request]:
        """Processes a piece of a prompt and a token of every answer; returns the answers that have ended."""
        cancellers = [r.canceller.pointer for r in self._active.values()]
        with running(cancellers):
            check(lib.kvrun_batch_step(self._handle.pointer, self._count))
        pointer = self._handle.pointer
        ended = [r for r in self._active.values() if lib.kvrun_batch_is_done(pointer, r.id)]
        for request in ended:
            self.take(request)
        return ended

    def take(self, request: Request) -> None:
        """Ends an answer, cancelling it if it is active; frees its session."""
        if self._active.pop(request.id, None) is None:
            return
        result = Struct("kvrun_generate_result")
        request.end(lib.kvrun_batch_take(self._handle.pointer, request.id, result.p), result.p)

    def close(self) -> None:
        for request in list(self._active.values()):
            try:
                self.take(request)
            except KvrunError:  # after a fork
                break
        self._handle.free()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending() and hasattr(self, "_active"):
            self.close()


class Loading:
    """Option fields that report progress to a Python function, and its exception."""

    def __init__(self, progress: Callable[[float], object] | None) -> None:
        self.error: BaseException | None = None
        self.fields: dict[str, Any] = {}
        self.progress = callable_or_none(progress, "progress")
        self._me = ffi.new_handle(self)
        self.fields = {"progress": _on_load, "payload": self._me}


@callback("kvrun_progress_cb")
def _on_load(done: float, seconds_left: float, payload: Any) -> int:
    loading: Loading = ffi.from_handle(payload)
    try:
        if loading.progress is not None:
            loading.progress(done)
        return 0
    except BaseException as error:
        loading.error = error
        return 1

"""Active answers: callbacks of the library, and batches of answers."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import KvrunError, error_of
from ._runtime import (NO_TOKEN, Canceller, Handle, Struct, check, encoded, ffi, from_array, lib, running, status_name,
                       text_of)
from ._types import STOP_REASONS, Answer, SamplingOptions

if TYPE_CHECKING:
    from ._runtime import Tokens

_lost = threading.local()  # exception in a callback outside of the user's code, such as KeyboardInterrupt


def _keep_error(kind: type[BaseException], error: BaseException, trace: object) -> None:
    _lost.error = error


def raise_lost() -> None:
    error = getattr(_lost, "error", None)
    if error is not None:
        _lost.error = None
        raise error


def _callback(kind: str) -> Callable[[Callable[..., int]], Any]:
    decorated: Callable[[Callable[..., int]], Any] = ffi.callback(kind, error=1, onerror=_keep_error)
    return decorated


@_callback("kvrun_token_cb")
def _on_token(token: int, text: Any, length: int, payload: Any) -> int:
    request: Request = ffi.from_handle(payload)
    if token != NO_TOKEN:
        request.tokens.append(token)
    if length:
        request.pieces.append(bytes(ffi.buffer(text, length)).decode("utf-8", "replace"))
    return 0


@_callback("kvrun_progress_cb")
def _on_prefill(done: float, seconds_left: float, payload: Any) -> int:
    request: Request = ffi.from_handle(payload)
    return request.guarded(lambda: request.on_progress(done))


@_callback("kvrun_logits_cb")
def _on_logits(logits: Any, vocab: int, payload: Any) -> int:
    import numpy as np

    request: Request = ffi.from_handle(payload)
    array = np.frombuffer(ffi.buffer(logits, vocab * 4), np.float32)
    return request.guarded(lambda: request.on_logits(array))


class Request:
    """One answer: its prompt, its options, and its text so far."""

    def __init__(self, session: Handle, prompt: Tokens, options: SamplingOptions) -> None:
        wanted = dict(options)
        stops = wanted.pop("stop", ())
        breakers: Any = wanted.pop("dry_sequence_breakers", None)
        bias = wanted.pop("logit_bias", None)
        logits = wanted.pop("logits", None)
        progress = wanted.pop("progress", None)
        canceller = wanted.pop("canceller", None)
        self.canceller: Canceller = canceller if isinstance(canceller, Canceller) else Canceller()
        self.session = session
        self.prompt = prompt
        self.tokens: list[int] = []
        self.pieces: list[str] = []  # not yet taken
        self.texts: list[str] = []  # all pieces taken
        self.error: BaseException | None = None
        self.answer: Answer | None = None
        self.has_logits = logits is not None
        self.on_logits: Callable[[Any], object] = logits  # type: ignore[assignment]
        self.on_progress: Callable[[float], object] = progress  # type: ignore[assignment]
        self.id = 0
        self.form: Handle | None = None  # its grammar
        unknown = [name for name in wanted if name not in SamplingOptions.__annotations__]
        if unknown:
            raise TypeError(f"'{unknown[0]}' is no option of sampling; there are "
                            f"{', '.join(SamplingOptions.__annotations__)}")
        wanted = {name: value for name, value in wanted.items() if value is not None}
        self._me = ffi.new_handle(self)  # lives as long as the request
        self.options = Struct("kvrun_generate_options", **wanted, on_token=_on_token, payload=self._me,
                              canceller=self.canceller.pointer)
        if progress is not None:
            self.options.p.on_prefill = _on_prefill
        texts = [stops] if isinstance(stops, str) else list(stops)  # type: ignore[call-overload]
        if texts:
            self.options.p.stops = self.texts_of(texts)
            self.options.p.n_stops = len(texts)
        if breakers is not None:
            self.options.p.dry_breakers = self.texts_of(breakers)
            self.options.p.n_dry_breakers = len(breakers)
        if bias:
            rows = [(t, b) for t, b in bias.items()]  # type: ignore[attr-defined]
            self.options.p.bias = self.options.keep(ffi.new("kvrun_logit_bias[]", rows))
            self.options.p.n_bias = len(rows)

    def texts_of(self, texts: Sequence[str]) -> Any:
        keep = [self.options.keep(ffi.new("char[]", encoded(t))) for t in texts]
        return self.options.keep(ffi.new("char *[]", keep or 1))

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

        message = text_of(lib.kvrun_last_error())
        r = result[0]
        self.answer = Answer(self.text(), np.array(self.tokens, np.uint32), STOP_REASONS[r.reason], r.prompt_tokens,
                             r.prefill_seconds, r.decode_seconds, r.drafted, r.drafts_accepted)
        name = status_name(status)
        if status and self.error is None and name not in ("KVRUN_ECANCELLED", "KVRUN_EUSER"):
            self.error = error_of(status, name, message)


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
        raise_lost()
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
        self.progress = progress
        if progress is not None:
            self._me = ffi.new_handle(self)
            self.fields = {"progress": _on_load, "payload": self._me}


@_callback("kvrun_progress_cb")
def _on_load(done: float, seconds_left: float, payload: Any) -> int:
    loading: Loading = ffi.from_handle(payload)
    try:
        assert loading.progress is not None
        loading.progress(done)
        return 0
    except BaseException as error:
        loading.error = error
        return 1

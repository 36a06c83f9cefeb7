"""The loaded library: calls and their errors, structs, handles; behaviour at fork and at the interpreter's end.

cffi releases the GIL in every call and takes it back in callbacks.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _cffi
from ._check import real, text, whole
from ._errors import InternalError, KvrunError, error_of, in_python, invalid

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tokens = npt.NDArray[np.uint32]
    Floats = npt.NDArray[np.float32]

ffi = _cffi.ffi
NULL = ffi.NULL
NO_TOKEN = _cffi.CONSTANTS["KVRUN_NO_TOKEN"]
EXIT_SECONDS = 10.0  # how long the interpreter's end waits for calls to stop


def native_file(name: str) -> str:
    """A file of this package: the library, the program, the program that probes drivers."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native", name)


def _load() -> Any:
    path = os.environ.get("KVRUN_LIBRARY") or native_file("libkvrun.so.1")
    try:
        lib = ffi.dlopen(path)
    except OSError as error:
        raise ImportError(f"kvrun: cannot load its library: {error}; install the wheel again, or set KVRUN_LIBRARY "
                          "to a libkvrun.so") from None
    built, found = _cffi.CONSTANTS["KVRUN_ABI_VERSION"], lib.kvrun_abi_version()
    if built != found:
        raise ImportError(f"kvrun: {path} has binary interface {found}, this package is made for {built}; use the "
                          "library that belongs to it")
    return lib


lib = _load()

# ---- callbacks

_lost = threading.local()  # exception in a callback outside of the user's code, such as KeyboardInterrupt


def keep_error(kind: type[BaseException], error: BaseException, trace: object) -> None:
    _lost.error = error


def raise_lost(cause: BaseException | None = None) -> None:
    error = getattr(_lost, "error", None)
    if error is not None:
        _lost.error = None
        raise error from cause


def callback(kind: str) -> Callable[[Callable[..., int]], Any]:
    decorated: Callable[[Callable[..., int]], Any] = ffi.callback(kind, error=1, onerror=keep_error)
    return decorated


@callback("kvrun_progress_cb")
def on_piece(done: float, seconds_left: float, payload: Any) -> int:
    """Between pieces of work: the interpreter handles signals here, and their exceptions end the call."""
    for _ in range(2):
        pass
    return 0


LOG_LEVELS = (30, 20, 10)  # logging.WARNING, INFO, DEBUG


@ffi.callback("kvrun_log_cb", onerror=keep_error)  # type: ignore[untyped-decorator]
def _on_log(level: int, line: Any, length: int, payload: Any) -> None:
    import logging

    said = bytes(ffi.buffer(line, length)).decode("utf-8", "replace")
    logging.getLogger("kvrun").log(LOG_LEVELS[min(level, 2)], "%s", in_python(said.removeprefix("warning: ")))


lib.kvrun_set_log(_on_log, 1, NULL)

# ---- fork and the interpreter's end

_generation = 0  # of processes: fork increments it in the child
_closing = False
_lock = threading.Lock()
_idle = threading.Condition(_lock)
_running: dict[int, Sequence[Any]] = {}  # active calls by number, with their cancellers
_next_call = 0
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
_at_exit: list[Callable[[], None]] = []  # stops threads of this package


def _after_fork() -> None:
    global _generation, _lock, _idle
    _generation += 1
    _lock = threading.Lock()
    _idle = threading.Condition(_lock)
    _running.clear()
    _at_exit.clear()


def _end() -> None:
    """Cancels active calls and waits for them: a thread must not return to an interpreter that has ended."""
    global _closing
    lib.kvrun_set_log(NULL, 0, NULL)
    with _lock:
        _closing = True
        for cancellers in _running.values():
            for canceller in cancellers:
                lib.kvrun_cancel(canceller)
    for stop in list(_at_exit):
        stop()
    until = time.monotonic() + EXIT_SECONDS
    with _lock:
        while _running and time.monotonic() < until:
            _idle.wait(0.1)
        if _running:
            return  # a driver hangs: its memory is freed with the process
    for handle in sorted(_handles, key=lambda h: (h.what == "canceller", -h.number)):  # the latest first
        handle.free()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_end)


def at_exit(stop: Callable[[], None]) -> None:
    _at_exit.append(stop)


def not_at_exit(stop: Callable[[], None]) -> None:
    with contextlib.suppress(ValueError):
        _at_exit.remove(stop)


@contextlib.contextmanager
def running(cancellers: Sequence[Any] = ()) -> Iterator[None]:
    """Context manager around calls that may take long. Raises what their callbacks could not."""
    global _next_call
    with _lock:
        if _closing:
            raise KvrunError("the interpreter is ending")
        _next_call += 1
        number = _next_call
        _running[number] = cancellers
    try:
        yield
    except KvrunError as error:
        raise_lost(error)
        raise
    finally:
        with _lock:
            _running.pop(number, None)
            _idle.notify_all()
    raise_lost()


class Handle:
    """A handle of the library; freed with its owner, by close(), or at the interpreter's end."""

    _numbers = 0

    def __init__(self, pointer: Any, free: Callable[[Any], None], what: str) -> None:
        Handle._numbers += 1
        self.number = Handle._numbers
        self._pointer = pointer
        self._free = free
        self.what = what
        self._born = _generation
        _handles.add(self)

    @property
    def pointer(self) -> Any:
        if self._born != _generation:
            raise KvrunError(f"the {self.what} belongs to the process that forked this one; devices do not survive a "
                             "fork: open an engine here, or start processes with multiprocessing's 'spawn'")
        if self._pointer is None:
            raise KvrunError(f"the {self.what} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        return self._pointer is None

    def __reduce__(self) -> Any:
        raise TypeError(f"the {self.what} belongs to this process and cannot be pickled; "
                        "open an engine in each process")

    def free(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer is not None and self._born == _generation:
            self._free(pointer)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # else _end() has freed it, and this module's names may be gone
            with contextlib.suppress(AttributeError):  # the constructor failed
                self.free()


# ---- calls


def text_of(pointer: Any) -> str:
    if pointer == NULL:
        return ""
    value: str = ffi.string(pointer).decode("utf-8", "replace")
    return value


def status_name(status: int) -> str:
    return text_of(lib.kvrun_status_name(status))


def check(status: int) -> None:
    if status:
        raise last_error(status)


def last_error(status: int) -> KvrunError:
    """The error of this thread's last call."""
    return error_of(status, status_name(status), in_python(text_of(lib.kvrun_last_error())))


ARGUMENTS = {"model_path": "model", "kv_budget_bytes": "kv_budget", "no_fit": "fit"}  # by field, if they differ
PATHS = {"model_path", "draft_model", "mmproj", "loras", "offload_dir", "cache_dir", "probe"}  # names of files


def checked(field: Any, value: Any, name: str) -> Any:
    """A value that the field takes. field: its type."""
    if field.kind == "primitive" and field.cname == "double":
        return real(value, name)
    if field.kind in ("primitive", "enum"):
        return whole(value, name, 8 * ffi.sizeof(field), field.cname in ("int", "int32_t", "int64_t"))
    if field.kind == "pointer" and field.item.cname in ("char", "char const") and not isinstance(value, ffi.CData):
        return text(value, name)
    return value


class Struct:
    """A struct with its initial values; it keeps texts and arrays that it points to alive."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.p = ffi.new(name + " *")
        self._keep: list[Any] = []
        self.p.struct_size = ffi.sizeof(name)
        self._types = {field: kind.type for field, kind in ffi.typeof(name).fields}
        given = {field: value for field, value in fields.items() if value is not None}
        for field, value in {**_cffi.INITIAL[name], **given}.items():
            self.set(field, value)

    def set(self, field: str, value: Any) -> None:
        if value is None:
            return  # stays NULL
        if isinstance(value, os.PathLike):
            value = os.fsdecode(value)
        value = checked(self._types[field], value, ARGUMENTS.get(field, field))
        if isinstance(value, str):
            value = self.keep(ffi.new("char[]", encoded_path(value) if field in PATHS else encoded(value)))
        setattr(self.p, field, value)

    def keep(self, value: Any) -> Any:
        self._keep.append(value)
        return value


def encoded(text: str) -> bytes:
    return without_zero(text.encode("utf-8", "surrogateescape"))


def encoded_path(path: str) -> bytes:
    """As Python's own functions name files: in the encoding of the locale."""
    return without_zero(os.fsencode(path))


def without_zero(data: bytes) -> bytes:
    if b"\0" in data:
        raise invalid("a text has a character of code 0, which kvrun's texts cannot have")
    return data


def fields_of(struct: Any) -> dict[str, Any]:
    """All fields of a result struct except its size, as Python values."""
    out: dict[str, Any] = {}
    for name, field in ffi.typeof(struct[0]).fields:
        value = getattr(struct, name)
        if name != "struct_size":
            out[name] = text_of(value) if field.type.kind == "pointer" else value
    return out


def token_array(tokens: Sequence[int] | Tokens) -> Tokens:
    """Tokens in the library's form; an array of uint32 is used without a copy."""
    import numpy as np

    if tokens is None or isinstance(tokens, (str, bytes)) or not hasattr(tokens, "__len__"):
        raise TypeError(f"{tokens!r} is no list of tokens")
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise invalid(f"tokens have shape {array.shape}, expected one dimension")
    if array.dtype != np.uint32:
        if array.size and array.dtype.kind not in "iu":
            wrong = next((t for t in array.tolist() if not isinstance(t, int) or not 0 <= t <= NO_TOKEN), array.dtype)
            raise invalid(f"{wrong!r} is no token; tokens are whole numbers from 0")
        if array.size and (array.min() < 0 or array.max() > NO_TOKEN):
            wrong = array[(array < 0) | (array > NO_TOKEN)][0]
            raise invalid(f"{wrong} is no token; tokens are whole numbers from 0")
        array = array.astype(np.uint32)
    return np.ascontiguousarray(array)


def from_array(array: Any, kind: str) -> Any:
    """The memory of a numpy array, without a copy. The caller must keep the array alive."""
    return ffi.from_buffer(kind, array) if array.size else ffi.new(kind, 1)


def fill_array(dtype: Any, kind: str, guess: int, call: Callable[[Any, int, Any], int]) -> Any:
    """An array filled by the library: call(memory, room, out_count), repeated with the needed size if that is larger."""
    import numpy as np

    count = ffi.new("size_t *")
    room = max(guess, 1)
    while True:
        array = np.empty(room, dtype)
        status = call(ffi.from_buffer(kind, array), room, count)
        if status != _cffi.ENUMS["KVRUN_EBUFFER"]:
            check(status)
            return array[:count[0]]
        room = count[0]


def fill_text(guess: int, call: Callable[[Any, int, Any], int]) -> bytes:
    """A text written by the library, like fill_array()."""
    count = ffi.new("size_t *")
    room = guess + 1
    while True:
        memory = ffi.new("char[]", room)
        status = call(memory, room, count)
        if status != _cffi.ENUMS["KVRUN_EBUFFER"]:
            check(status)
            return bytes(ffi.buffer(memory, count[0]))
        if count[0] + 1 <= room:
            raise InternalError("the library asks for a buffer that it has")
        room = count[0] + 1


# ---- cancelling


class Canceller:
    """Stops calls that received it, from any thread or signal handler. Answers end with the stop_reason "cancelled";
    other calls, as Engine() and Session.prefill(), raise Cancelled."""

    def __init__(self) -> None:
        out = ffi.new("kvrun_canceller **")
        check(lib.kvrun_canceller_new(out))
        self._handle = Handle(out[0], lib.kvrun_canceller_free, "canceller")

    @property
    def pointer(self) -> Any:
        return self._handle.pointer

    @staticmethod
    def of(given: Canceller | None) -> Canceller:
        """The given canceller; None: a new one."""
        if given is None:
            return Canceller()
        if not isinstance(given, Canceller):
            raise TypeError(f"canceller is {given!r}, expected a kvrun.Canceller")
        return given

    def cancel(self) -> None:
        """Stops active calls, and later ones until reset()."""
        lib.kvrun_cancel(self.pointer)

    def reset(self) -> None:
        """Calls that receive it from now on are not cancelled."""
        lib.kvrun_canceller_reset(self.pointer)

    @property
    def is_set(self) -> bool:
        """Whether cancel() was called, and not reset() after it."""
        return bool(lib.kvrun_canceller_is_set(self.pointer))

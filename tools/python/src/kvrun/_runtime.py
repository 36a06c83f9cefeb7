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
from ._errors import InternalError, KvrunError, error_of

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


@contextlib.contextmanager
def running(cancellers: Sequence[Any] = ()) -> Iterator[None]:
    """Context manager around calls that may take long."""
    global _next_call
    with _lock:
        if _closing:
            raise KvrunError("the interpreter is ending")
        _next_call += 1
        number = _next_call
        _running[number] = cancellers
    try:
        yield
    finally:
        with _lock:
            _running.pop(number, None)
            _idle.notify_all()


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
        raise error_of(status, status_name(status), text_of(lib.kvrun_last_error()))


class Struct:
    """A struct with its initial values; it keeps texts and arrays that it points to alive."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.p = ffi.new(name + " *")
        self._keep: list[Any] = []
        self.p.struct_size = ffi.sizeof(name)
        given = {field: value for field, value in fields.items() if value is not None}
        for field, value in {**_cffi.INITIAL[name], **given}.items():
            self.set(field, value)

    def set(self, field: str, value: Any) -> None:
        if value is None:
            return  # stays NULL
        if isinstance(value, (str, os.PathLike)):
            value = self.keep(ffi.new("char[]", encoded(os.fspath(value))))
        elif isinstance(value, bool):
            value = int(value)
        try:
            setattr(self.p, field, value)
        except OverflowError:
            raise error_of(-1, "KVRUN_EINVALID", f"{field} is {value}, which is out of range") from None

    def keep(self, value: Any) -> Any:
        self._keep.append(value)
        return value


def encoded(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise error_of(-1, "KVRUN_EINVALID", "a text has a character of code 0, which kvrun's texts cannot have")
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

    array = np.asarray(tokens)
    if array.ndim != 1:
        raise error_of(-1, "KVRUN_EINVALID", f"tokens have shape {array.shape}, expected one dimension")
    if array.dtype != np.uint32:
        if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() > NO_TOKEN):
            raise error_of(-1, "KVRUN_EINVALID", f"tokens are of type {array.dtype}, expected whole numbers from 0")
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
    """Stops calls that received it, from any thread or signal handler: they raise Cancelled."""

    def __init__(self) -> None:
        out = ffi.new("kvrun_canceller **")
        check(lib.kvrun_canceller_new(out))
        self._handle = Handle(out[0], lib.kvrun_canceller_free, "canceller")

    @property
    def pointer(self) -> Any:
        return self._handle.pointer

    def cancel(self) -> None:
        lib.kvrun_cancel(self.pointer)

    def reset(self) -> None:
        """Calls that receive it from now on are not cancelled."""
        lib.kvrun_canceller_reset(self.pointer)

    @property
    def is_set(self) -> bool:
        return bool(lib.kvrun_canceller_is_set(self.pointer))

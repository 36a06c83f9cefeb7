"""Exceptions: one class per status of kvrun.h."""
from __future__ import annotations


class KvrunError(Exception):
    """A call of libkvrun, or the program kvrun, failed. The text is one line: the fault and what to do.

    status: number of kvrun_status, such as -1; None if the program failed: see exit_code.
    status_name: "KVRUN_EINVALID"; "" if the program failed.
    """

    status: int | None = None
    status_name: str = ""


class InvalidArgument(KvrunError, ValueError):
    """An argument is wrong."""


class NotFound(KvrunError):
    """A named thing, such as a file, does not exist."""


class Unsupported(KvrunError):
    """Well-formed, but not supported by this version."""


class OutOfMemory(KvrunError, MemoryError):
    """Host or device memory, or the cache budget, is exhausted."""


class DeviceError(KvrunError):
    """The device or its driver refused or failed."""


class FileError(KvrunError):
    """Reading or writing a file failed."""


class FormatError(KvrunError):
    """A file's content breaks its format."""


class ContextFull(KvrunError):
    """The tokens do not fit the context."""


class Busy(KvrunError):
    """The session is in use by another call."""


class Cancelled(KvrunError):
    """A canceller stopped the call."""


class InternalError(KvrunError):
    """A defect of kvrun."""


class ProgramError(KvrunError):
    """The program kvrun ended with an exit code other than 0.

    exit_code: as listed by `kvrun --help`; negative: the number of the signal that ended it.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


BY_STATUS: dict[int, type[KvrunError]] = {
    -1: InvalidArgument,
    -2: NotFound,
    -3: Unsupported,
    -4: OutOfMemory,
    -5: DeviceError,
    -6: FileError,
    -7: InternalError,  # a buffer that is too small is enlarged, and the call is repeated
    -8: Cancelled,  # a callback of this package stopped the call; its exception is raised instead
    -9: FormatError,
    -10: ContextFull,
    -11: Busy,
    -12: Cancelled,
    -13: InternalError,
}


def error_of(status: int, name: str, message: str) -> KvrunError:
    error = BY_STATUS.get(status, InternalError)(message or name)
    error.status = status
    error.status_name = name
    return error

"""Exceptions: one class per status of kvrun.h."""
from __future__ import annotations

from typing import Any


class KvrunError(Exception):
    """A call of libkvrun, or the program kvrun, failed. The text is one line: the fault and what to do.

    status: number of kvrun_status, such as -1; None if the program failed: see exit_code.
    status_name: "KVRUN_EINVALID"; "" if the program failed.
    """

    status: int | None = None
    status_name: str = ""


class InvalidArgument(KvrunError, ValueError):
    """An argument is wrong."""


class NotFound(KvrunError, FileNotFoundError):
    """A named thing, such as a file, does not exist."""


class Unsupported(KvrunError):
    """Well-formed, but not supported by this version."""


class OutOfMemory(KvrunError, MemoryError):
    """Host or device memory, or the cache budget, is exhausted."""


class DeviceError(KvrunError):
    """The device or its driver refused or failed."""


class FileError(KvrunError, OSError):
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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.exit_code)


class ProgramInvalid(ProgramError, InvalidArgument):
    """The program found that an argument is wrong."""


class ProgramNotFound(ProgramError, NotFound):
    """The program did not find a file."""


class ProgramFileError(ProgramError, FileError):
    """The program failed to read or write a file."""


class ProgramContextFull(ProgramError, ContextFull):
    """The program's tokens do not fit."""


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


def invalid(message: str) -> KvrunError:
    return error_of(-1, "KVRUN_EINVALID", message)


def program_error(message: str, exit_code: int) -> ProgramError:
    kind = BY_EXIT_CODE.get(exit_code, ProgramError)
    if exit_code == 3 and "no such file" in message:
        kind = ProgramNotFound
    return kind(message, exit_code)


BY_EXIT_CODE: dict[int, type[ProgramError]] = {2: ProgramInvalid, 5: ProgramFileError, 6: ProgramContextFull}

# ---- messages of the library name options of the program; here they are arguments

ARGUMENTS = {  # by option
    "c": "ctx", "ctx-size": "ctx", "chat-template": "chat", "cpu-moe": "cpu_moe_layers", "device": "device",
    "draft": "draft_model", "host-budget": "host_budget", "kv": "kv", "kv-budget": "kv_budget", "lora": "loras",
    "m": "model", "mmproj": "mmproj", "n-cpu-moe": "cpu_moe_layers", "ngl": "gpu_layers", "offload-dir": "offload_dir",
    "split": "split", "ubatch-size": "ubatch", "weights-budget": "weights_budget"}
SAMPLERS = {  # what a message about a value begins with
    "top-p": "top_p", "min-p": "min_p", "repeat penalty": "repeat_penalty", "repeat window (tokens)": "repeat_last_n",
    "presence penalty": "presence_penalty", "frequency penalty": "frequency_penalty", "top-n-sigma": "top_n_sigma",
    "typical-p": "typical_p", "XTC probability": "xtc_probability", "XTC threshold": "xtc_threshold",
    "range of dynamic temperature": "dynatemp_range", "exponent of dynamic temperature": "dynatemp_exponent",
    "DRY multiplier": "dry_multiplier", "DRY base": "dry_base", "Mirostat": "mirostat",
    "target of Mirostat": "mirostat_tau", "rate of Mirostat": "mirostat_eta",
    "target of adaptive-p": "adaptive_target", "decay of adaptive-p": "adaptive_decay"}
PHRASES = (  # first, in this order
    (r"--kv (\S+) would fit", r'kv="\1" would fit'),
    (r"unknown option '--([\w-]+)'", r"unknown option '\1'"), (r"speculation \(--draft\)", "speculation (draft_max=)"),
    (r"--draft lookup", "draft_model=None"), (r"--cpu-moe and --n-cpu-moe", "cpu_moe_layers="),
    (r"KVRUN_CHECK=1", "Engine(check_operations=True)"),
    (r"; 'kvrun plan --help' lists them", "; kvrun.policies() lists policies"))
# An option, not one of a command such as `kvrun devices --retry`, and its value if it is one and no other word.
OPTION = (r"(?P<command>`[^`]*`|'kvrun [^']*')|(?<![\w/.=-])--?(?!help\b)(?P<name>[a-z][a-z-]*)(?![\w=/.-]*\.[a-z])\b"
          r"(?: (?P<value>[A-Z]+\b(?:,[A-Z])*|(?:[a-z][a-z:+-]*)?\d(?:[\w/.,:=-]*\w)?|cpu\b(?:,\w+)*|mtp\b))?")


def in_python(message: str, *, program: bool = False) -> str:
    """A message of the library with arguments in place of options. program: of a command, whose options all are
    arguments of eval(), tune() and replay()."""
    import re

    name_of_value, verb, rest = message.partition(" is ")
    if name_of_value in SAMPLERS:
        return SAMPLERS[name_of_value] + verb + rest
    if "-" not in message and "KVRUN_" not in message:
        return message

    def argument(found: re.Match[str]) -> str:
        if found["command"] is not None:
            device = re.fullmatch(r"`--device (\w+)`", found["command"])
            return f'device="{device[1]}"' if device else found["command"]
        name, value = ARGUMENTS.get(found["name"]), found["value"]
        if name is None and program and found[0].startswith("--"):
            name = found["name"].replace("-", "_")
        if name is None:
            return found[0]
        if value is None:
            return f"{name}="
        return f"{name}={value}" if name == "ctx" or value.isupper() and "," not in value else f'{name}="{value}"'

    for said, meant in PHRASES:
        message = re.sub(said, meant, message)
    return re.sub(OPTION, argument, message)

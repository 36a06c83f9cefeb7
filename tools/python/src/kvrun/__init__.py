"""Large language models on any GPU, with a packed KV cache.

    from kvrun import Engine
    engine = Engine("model.gguf")
    chat = engine.session(kv="turbo3/2", ctx=32768)
    for text in chat.stream("Summarise ...", max_tokens=200, temperature=0.7):
        print(text, end="")

Everything is built on kvrun.h, whose comments have further details; eval, tune and replay run the program.
"""
from ._engine import Engine, devices, plan, policies
from ._errors import (Busy, Cancelled, ContextFull, DeviceError, FileError, FormatError, InternalError, InvalidArgument,
                      KvrunError, NotFound, OutOfMemory, ProgramError, Unsupported)
from ._program import Replay, program, replay, tune
from ._program import evaluate as eval
from ._runtime import Canceller, lib, text_of
from ._session import Session, Stream
from ._types import (Answer, DeviceInfo, EngineInfo, FetchInfo, Plan, Policy, SamplingOptions, SessionInfo)

__version__ = text_of(lib.kvrun_version())
del lib, text_of

__all__ = [
    "Answer", "Busy", "Cancelled", "Canceller", "ContextFull", "DeviceError", "DeviceInfo", "Engine", "EngineInfo",
    "FetchInfo", "FileError", "FormatError", "InternalError", "InvalidArgument", "KvrunError", "NotFound",
    "OutOfMemory", "Plan", "Policy", "ProgramError", "Replay", "SamplingOptions", "Session", "SessionInfo", "Stream",
    "Unsupported", "devices", "eval", "plan", "policies", "program", "replay", "tune"
]

# The generated module: cffi's description of kvrun.h, and its constants.
from typing import Any

ffi: Any
CONSTANTS: dict[str, int]
ENUMS: dict[str, int]
INITIAL: dict[str, dict[str, Any]]
FUNCTIONS: list[str]

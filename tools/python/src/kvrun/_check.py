"""Checks of arguments: an error names the argument and says what is expected."""
from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any

from ._errors import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence


def whole(value: Any, name: str, bits: int = 32, signed: bool = False) -> int:
    """A whole number of so many bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a whole number") from None
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not least <= number <= most:
        raise invalid(f"{name} is {number}, which is out of range: expected {least} to {most}")
    return number


def count_of(value: Any, name: str) -> int:
    """A number of tokens: 4096 or "4k"."""
    if isinstance(value, str):
        word = value.strip().lower()
        power = "km".find(word[-1:]) + 1 if word else 0
        try:
            number = float(word[:-1] if power else word) * 1024**power
            value = int(number)
            if value != number:
                raise ValueError
        except (ValueError, OverflowError):
            raise invalid(f"{name} is {word!r}, expected a number of tokens, such as 4096 or '4k'") from None
    return whole(value, name)


def real(value: Any, name: str) -> float:
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{name} is {value!r}, expected a number")
    return float(value)


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, expected a text")
    return value


def texts(value: Any, name: str) -> Sequence[str]:
    """A text alone, or several; None: none."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value, )
    try:
        found = tuple(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a text or several") from None
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name} contains {one!r}, expected texts")
    return found


def path_of(value: Any, name: str) -> str:
    """A path as text: str, bytes or os.PathLike."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a path") from None


def callable_or_none(value: Any, name: str) -> Any:
    if value is not None and not callable(value):
        raise TypeError(f"{name} is {value!r}, expected a function")
    return value


def bytes_of(amount: int | str | None, name: str = "memory") -> int:
    """Bytes from 8589934592, "8G" or "512M"; K, M, G and T are powers of 1024. None: 0, which means a default."""
    if amount is None:
        return 0
    if not isinstance(amount, str):
        if isinstance(amount, float) or hasattr(amount, "__float__") and not hasattr(amount, "__index__"):
            if amount != int(amount):
                raise invalid(f"{name} is {amount!r}, expected whole bytes, or a text such as '8G' or '512M'")
            amount = int(amount)
        return whole(amount, name, 64)
    word = amount.strip().upper().removesuffix("IB").removesuffix("B")
    power = "KMGT".find(word[-1:]) + 1 if word else 0
    try:
        value = float(word[:-1] if power else word) * 1024**power
        if value < 0 or value > 2**63 or 0 < value < 1:
            raise ValueError
        return int(value)
    except (ValueError, OverflowError):
        raise invalid(f"{name} is {amount!r}, which is no amount of memory, such as 8G or 512M") from None

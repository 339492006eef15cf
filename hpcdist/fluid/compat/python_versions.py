"""``paddle.compat``: what scripts called to run on Python 2 and 3 alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["floor_division", "get_exception_message", "long_type", "round", "to_bytes", "to_text"]

long_type = int


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return bytes as a string, also those in a list or a set, which ``inplace`` changes itself."""
    return _converted(
        obj, inplace, lambda one: one.decode(encoding) if isinstance(one, bytes) else one
    )


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Return a string as bytes, also those in a list or a set, which ``inplace`` changes itself."""
    return _converted(
        obj, inplace, lambda one: one.encode(encoding) if isinstance(one, str) else one
    )


def _converted(obj: Any, inplace: bool, convert: Callable[[Any], Any]) -> Any:
    if not isinstance(obj, (list, set)):
        return convert(obj)
    new = type(obj)(_converted(one, False, convert) for one in obj)
    if not inplace:
        return new
    obj.clear()
    obj.extend(new) if isinstance(obj, list) else obj.update(new)
    return obj


def round(x: float, d: int = 0) -> float:
    """Round halves away from zero, as Python 2 did, to ``d`` decimals."""
    scale = 10**d
    return math.copysign(math.floor(abs(x) * scale + 0.5) / scale, x) if x else 0.0


def floor_division(x: Any, y: Any) -> Any:
    """Return ``x // y``."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """Return the message of an exception."""
    return str(exc)

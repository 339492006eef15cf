"""Integers stay what they are: none goes through a float that cannot hold it.

Unsigned integers of 64 bits are ids where a variable takes int64: it gets the same 64 bits.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

EXACT = 1 << 53  # a float64 holds all integers up to here
_INTEGER = re.compile(r"\s*[-+]?\d{1,400}\s*")
_HEX = re.compile(rb"\s*(?:0[xX])?([0-9a-fA-F]+)\s*")
_HEX_DIGITS = 16  # of 64 bits


def may_round(column: Any) -> bool:
    """Return whether floats that were parsed may stand for integers that they cannot hold."""
    while kinds.is_list(column.type):
        column = pc.list_flatten(column)
    return bool(
        kinds.is_floating(column.type) and pc.any(pc.greater_equal(pc.abs(column), EXACT)).as_py()
    )


def is_rounded(text: str, value: float) -> bool:
    """Return whether a text is an integer, and the float that was made of it another number."""
    return bool(_INTEGER.fullmatch(text)) and int(text) != value


def unsigned(texts: Any) -> bool:
    """Return whether all texts of a column are integers of 64 bits without a sign."""
    try:
        pc.cast(texts, pa.uint64())
    except pa.ArrowInvalid:
        return False
    return True


def rounded_message(text: str, name: str) -> str:
    """Say that an integer is too large for a float, and what to do."""
    return (
        f"the integer {text.strip()!r:.40} does not fit into a float64: for an id declare the "
        f"variable int64, or pass types={{{name!r}: 'uint64'}} (or 'hex', 'string'); "
        "types= 'float64' rounds"
    )


def of_hex(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers that hexadecimal digits are, uint64, and which texts are none."""
    matches = [_HEX.fullmatch(text) for text in texts]
    digits = [match[1].lstrip(b"0") or b"0" if match else b"" for match in matches]
    bad = np.array([not 0 < len(word) <= _HEX_DIGITS for word in digits], bool)
    words = [b"0" if wrong else word for word, wrong in zip(digits, bad)]
    return np.fromiter((int(word, 16) for word in words), np.uint64, len(words)), bad


def cast_exactly(values: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return values as ``dtype``, and a bool for each: it is not the same number there.

    Floats may lose digits; integers above 2**53 may not. Unsigned ids keep their bits in int64.
    """
    if values.dtype == np.uint64 and dtype == np.int64:
        return values.view(np.int64), np.zeros(values.shape, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
    if dtype.kind == "f":
        bad = np.isinf(cast) & np.isfinite(values)
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
            bad |= _exceeds(values)
        return cast, bad
    if np.can_cast(values.dtype, dtype):
        return cast, np.zeros(values.shape, bool)
    return cast, cast != values


def _exceeds(values: np.ndarray) -> np.ndarray:
    """Return which integers a float64 does not hold."""
    large = (values > EXACT) | (values < -EXACT if values.dtype.kind == "i" else False)
    for place in np.argwhere(large):
        number = int(values[tuple(place)])
        large[tuple(place)] = int(float(number)) != number
    return np.asarray(large, bool)

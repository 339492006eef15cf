"""What a table keeps of numbers, in numpy: `packed_kernels` must equal it in bits.

Rounding is written with quotients here, where the kernels shift bits.
"""

from __future__ import annotations

import numpy as np

from hpcdist.ps.row_storage import RowStorage
from tests.support.table_model import MASK, F, bits_of_key, mixed

DIGITS = {"float16": 11, "bfloat16": 8}
MOST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}
LEAST = {"float16": -24, "bfloat16": -133}  # the power of two of the last digit of the least number


def stored(
    storage: RowStorage,
    row: np.ndarray,
    seed: int,
    row_id: int,
    step: int,
    *,
    row_wise: bool = False,
) -> np.ndarray:
    """Return a row [1 + columns of state, dim] as it is read again after ``step``.

    ``row_wise``: state is one number for a row, which stands ``dim`` times.
    """
    dim = row.shape[1]
    key = mixed(mixed(mixed(row_id & MASK) ^ mixed(seed & MASK)) ^ step)
    noise = bits_of_key(key, row.size).reshape(row.shape)
    kept = row.copy()
    kept[0] = _values(storage, row[0], noise[0])
    if storage.halves(1 if row_wise else dim):
        for k in range(1, len(row)):
            kept[k] = _scaled_halves(row[k], noise[k])
    return kept


def _values(storage: RowStorage, values: np.ndarray, noise: np.ndarray) -> np.ndarray:
    if storage.rows == "float32":
        return values
    if storage.rows == "int8":
        return _whole(values, noise, storage.by_chance)
    if storage.by_chance:
        return _by_chance(values, noise, storage.rows)
    return _nearest(values, storage.rows)


def _whole(values: np.ndarray, noise: np.ndarray, by_chance: bool) -> np.ndarray:
    if not np.isfinite(values).all():
        return np.full_like(values, np.nan)
    scale = _up_to_digits(np.abs(values).max() / F(127))
    if scale == 0:
        return np.zeros_like(values)
    part = (noise >> 1) * 2.0**-31 if by_chance else 0.5
    whole = np.floor(values * (1 / np.float64(scale)) + part)
    return np.clip(whole, -127, 127).astype(F) * scale


def _up_to_digits(scale: np.floating) -> np.floating:
    """Return the next number of 12 binary digits; of the greatest the one below."""
    digit = max(int(np.frexp(scale)[1]) - 12, -137)
    up = np.ldexp(np.ceil(np.ldexp(np.float64(scale), -digit)), digit)
    return F(up) if up * 127 < 2.0**128 else F(up - 2.0**digit)


def _last_digit(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the power of two of each number's last digit in float16 or bfloat16."""
    _, exponents = np.frexp(values.astype(np.float64))
    return np.maximum(exponents - DIGITS[kind], LEAST[kind])


def _nearest(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(F)
    digit = _last_digit(values, kind)
    with np.errstate(over="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values.astype(np.float64), -digit)), digit).astype(F)
    return np.where(np.isfinite(values), rounded, values)


def _by_chance(given: np.ndarray, noise: np.ndarray, kind: str) -> np.ndarray:
    values = np.where(np.isfinite(given), given, F(0))
    digit = _last_digit(values, kind)
    size = np.ldexp(np.abs(values).astype(np.float64), -digit)
    whole = np.floor(size)
    _, exponents = np.frexp(values)
    dropped = digit - np.maximum(exponents - 24, -149)  # binary digits of float32 that go
    chance = np.where(dropped <= 31, noise & ((np.uint64(1) << dropped.astype(np.uint64)) - 1), 0)
    up = (size - whole) + np.ldexp(chance.astype(np.float64), -dropped) >= 1
    rounded = np.sign(values) * np.ldexp(whole + up, digit)
    rounded = np.where(np.abs(rounded) > MOST[kind], np.copysign(np.inf, values), rounded)
    return np.where(np.isfinite(given), rounded, given).astype(F)


def _scaled_halves(values: np.ndarray, noise: np.ndarray) -> np.ndarray:
    most = np.abs(values).max()
    exponent = max(int(np.frexp(most)[1]) - 15, -141) if np.isfinite(most) and most > 0 else 0
    parts = np.ldexp(values.astype(np.float64), -exponent).astype(F)
    halves = _by_chance(parts, noise.astype(np.uint64), "float16")
    return np.ldexp(halves.astype(np.float64), exponent).astype(F)

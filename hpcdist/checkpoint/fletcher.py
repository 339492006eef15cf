"""HDF5's Fletcher-32 checksum of a chunk, at the speed of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.jit import jit

LANES = 256  # words that are added side by side
ROWS = 360  # of LANES words: as many as 32 bits hold the sums of, and an even number
MODULUS = np.uint64(65535)


@jit
def copy_and_sum(source: Any, target: Any) -> Any:
    """Copy uint16 words; return their sum, and the sum of its running totals, modulo 65535.

    Lane l adds up words l, l + LANES, ... (``total``) and its running totals (``running``). Word
    r LANES + l of R LANES words stands in R LANES - r LANES - l running totals of all words, so
    the sum of these is LANES running - l total, summed over the lanes.
    """
    n = len(source)
    total = np.zeros(LANES, np.uint32)
    running = np.zeros(LANES, np.uint32)
    first = second = np.uint64(0)
    begin = 0
    while n - begin >= 2 * LANES:
        rows = min(ROWS, (n - begin) // (2 * LANES) * 2)
        total[:] = 0
        running[:] = 0
        for r in range(0, rows, 2):  # two at a time: sums are loaded and stored half as often
            words = source[begin + r * LANES : begin + (r + 2) * LANES]
            copies = target[begin + r * LANES : begin + (r + 2) * LANES]
            for lane in range(LANES):
                upper, lower = words[lane], words[lane + LANES]
                copies[lane], copies[lane + LANES] = upper, lower
                once = total[lane] + np.uint32(upper)
                twice = once + np.uint32(lower)
                total[lane] = twice
                running[lane] += once + twice
        plain = weighted = np.uint64(0)
        for lane in range(LANES):
            plain += np.uint64(total[lane])
            weighted += np.uint64(LANES) * np.uint64(running[lane])
            weighted -= np.uint64(lane) * np.uint64(total[lane])
        second = (second + np.uint64(rows * LANES) % MODULUS * first + weighted) % MODULUS
        first = (first + plain) % MODULUS
        begin += rows * LANES
    for i in range(begin, n):
        target[i] = source[i]
        first = (first + np.uint64(source[i])) % MODULUS
        second = (second + first) % MODULUS
    return first, second


def seal(source: Any, chunk: Any) -> None:
    """Write a chunk as HDF5's fletcher32 filter stores it: the bytes, then 4 of checksum.

    ``source`` is uint8 [n], ``chunk`` uint8 [m + 4] with m >= n; what lies between is zeroed.
    """
    size = len(chunk) - 4
    chunk[len(source) : size] = 0
    words = len(source) & ~1
    if words < len(source):
        chunk[words] = source[words]
    first, second = copy_and_sum(source[:words].view("<u2"), chunk[:words].view("<u2"))
    if words < size:  # padding, and the odd byte that may stand before it
        first, second = _extended(int(first), int(second), chunk[words:size])
    chunk[size:].view("<u4")[0] = _word(int(second)) << 16 | _word(int(first))
    if not (first and second) and not chunk[:size].any():
        chunk[size:] = 0  # of the two values that mean 0, HDF5 takes 0 for zeros alone


def _extended(first: int, second: int, rest: Any) -> tuple[int, int]:
    """Go on with bytes of which at most the first is not 0."""
    words = -(-len(rest) // 2)
    first += int(rest[0])
    return first % 65535, (second + words * first) % 65535


def _word(value: int) -> int:
    """Return a sum of little-endian words as one of big-endian words, which is 256 times it."""
    return value * 256 % 65535 or 65535

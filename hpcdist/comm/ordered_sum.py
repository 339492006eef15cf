"""Sums of rows in a fixed order, in one pass over memory."""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit
from hpcdist.comm.base import Array

CHUNK = 2048  # elements added at once: the partial sum stays in the first-level cache


# Separate loops over slices: so the compiler sees that it may use vector instructions.
@jit
def copy_row(source: Array, target: Array) -> None:
    for i in range(len(target)):
        target[i] = source[i]


@jit
def add_row(row: Array, total: Array) -> None:
    for i in range(len(total)):
        total[i] += row[i]


@jit
def add_rows(rows: Array, local: Array, at: int, out: Array) -> None:
    """Write the sum of len(rows) + 1 vectors into ``out``, ``local`` being number ``at`` of them.

    The others are ``rows`` [n, length], in order. ``out`` may be ``local`` or one of the rows.
    """
    scratch = np.empty(CHUNK, out.dtype)
    for begin in range(0, len(out), CHUNK):
        end = min(begin + CHUNK, len(out))
        total = scratch[: end - begin]
        copy_row(local[begin:end] if at == 0 else rows[0, begin:end], total)
        for k in range(1, at):
            add_row(rows[k, begin:end], total)
        if at > 0:
            add_row(local[begin:end], total)
        for k in range(at, len(rows)):
            add_row(rows[k, begin:end], total)
        copy_row(total, out[begin:end])


@jit
def add_in_all(rows: Array, begin: int, end: int) -> None:
    """Overwrite columns begin..end of every row with their sum over the rows, in row order."""
    for first in range(begin, end, CHUNK):
        last = min(first + CHUNK, end)
        total = rows[0, first:last]
        for k in range(1, len(rows)):
            add_row(rows[k, first:last], total)
        for k in range(1, len(rows)):
            copy_row(total, rows[k, first:last])

"""What a table with a policy keeps of its rows: loops over records.

Behind values and state a record has words, uint32: its place in the list of its part
(`part_kernels`), and the metadata (`row_policy`). ``at`` is the byte of a record at which its words
begin.
"""

from __future__ import annotations

import numpy as np
from numba import float32, int64, uint32, uint64

from hpcdist.base.jit import jit
from hpcdist.base.raw_memory import copy_bytes, float32_at, prefetch, uint32_at
from hpcdist.ps.batch_kernels import owner_of
from hpcdist.ps.part_kernels import (
    AHEAD,
    CLICK,
    COUNT,
    DAY,
    DELTA,
    KEPT,
    SCORE,
    SHOW,
    STEP,
    WIDE,
    score_of,
    set_value,
)
from hpcdist.ps.row_kernels import NARROW, WHOLE, WIDENS
from hpcdist.ps.row_values import mixed

_32 = uint64(32)
MOST = np.uint32(0xFFFFFFFF)


@jit
def merged(firsts, following, values, out):
    """Write to each row of ``out`` the sum of the rows of ``values`` that belong to it.

    firsts, following: of `row_kernels.link_repeats`; values: float32 [places, columns]; out:
    float32 [len(firsts), columns].
    """
    for u in range(len(firsts)):
        i = int64(firsts[u])
        out[u, :] = float32(0)
        while i >= 0:
            for j in range(values.shape[1]):
                out[u, j] += values[i, j]
            i = int64(following[i])


@jit
def chosen(ids, key, below, out):
    """Write whether each id is one of those that have their row by chance."""
    for i in range(len(ids)):
        out[i] = mixed(mixed(ids[i]) ^ key) <= below


@jit
def touch(ids, records, looks, step, day, at, keep, coefficients, parts):
    """Note look-ups: ``looks`` float32 [n, 1 or 3]: how many, and their shows and clicks.

    Of one row, they are the same for all. Where there is no record, nothing is noted. A list has
    the value of a new row, and one that falls.
    """
    for i in range(len(records)):
        if i + AHEAD < len(records):
            prefetch(records[i + AHEAD] + at)
        if records[i] == 0:
            continue
        words = uint32_at(records[i] + at)
        low, before, of = words[COUNT] == 0, float32(0), i if len(looks) > 1 else 0
        if keep == SCORE:
            low |= uint32(step) < words[STEP]
            before = score_of(records[i], at, coefficients)
        words[COUNT] = uint32(min(int64(MOST), int64(words[COUNT]) + int64(looks[of, 0])))
        words[STEP], words[DAY] = uint32(step), uint32(day)
        if looks.shape[1] == 3:
            floats = float32_at(records[i] + at)
            show, click = looks[of, 1], looks[of, 2]
            floats[SHOW] += show
            floats[CLICK] += click
            floats[DELTA] += (show - click) * coefficients[0] + click * coefficients[1]
        if keep == SCORE:
            low |= not score_of(records[i], at, coefficients) >= before
        if low:
            part = owner_of(ids[i], len(parts))
            set_value(part, records[i], at, keep, coefficients, parts)


@jit
def take_turns(records, at, least, coefficients, out):
    """Write how wide rows are in a step, whose looks are noted: `row_kernels.keep_narrow`'s turns.

    Those whose score is at least ``least`` are noted as wide.
    """
    for i in range(len(records)):
        if i + AHEAD < len(records):
            prefetch(records[i + AHEAD] + at)
        words = uint32_at(records[i] + at)
        out[i] = WHOLE if words[WIDE] else NARROW
        if out[i] and score_of(records[i], at, coefficients) >= least:
            out[i], words[WIDE] = WIDENS, uint32(1)


@jit
def decay(part, records, rate, at, keep, coefficients, parts):
    """Multiply the shows and clicks of a part's rows by ``rate``."""
    for i in range(len(records)):
        floats = float32_at(records[i] + at)
        floats[SHOW] *= rate
        floats[CLICK] *= rate
        set_value(part, records[i], at, keep, coefficients, parts)


@jit
def begin_deltas(records, at):
    """Note that rows are saved in a base or a delta."""
    for i in range(len(records)):
        float32_at(records[i] + at)[DELTA] = float32(0)


@jit
def read_metadata(records, at, out):
    """Copy metadata uint32 [n, columns] out; zeros where there is no record."""
    for i in range(len(records)):
        target = int64(out.ctypes.data) + 4 * out.shape[1] * i
        if records[i]:
            copy_bytes(target, records[i] + at + 4 * KEPT, 4 * out.shape[1])
        else:
            out[i, :] = uint32(0)


@jit
def write_metadata(ids, records, values, at, keep, coefficients, parts):
    """Copy metadata uint32 [n, columns] in."""
    for i in range(len(records)):
        source = int64(values.ctypes.data) + 4 * values.shape[1] * i
        copy_bytes(records[i] + at + 4 * KEPT, source, 4 * values.shape[1])
        part = owner_of(ids[i], len(parts))
        set_value(part, records[i], at, keep, coefficients, parts)


@jit
def read_or_zeros(records, out):
    """Copy the rows float32 [n, dim] of records out; zeros where there is no record."""
    for i in range(len(records)):
        if records[i]:
            nbytes = 4 * out.shape[1]
            copy_bytes(int64(out.ctypes.data) + nbytes * i, records[i] + 4, nbytes)
        else:
            out[i, :] = float32(0)


@jit
def count_in_sketch(ids, times, records, depth, most, out):
    """Add ``times`` to the counts of ids in sketches; write the new counts, not above ``most``.

    records: those of each id's part; a sketch is ``depth`` rows of counts, float32.
    """
    width = depth[1]
    for i in range(len(ids)):
        counts = float32_at(records[i] + 4)
        h = mixed(ids[i])
        least = most
        for row in range(depth[0]):
            h = mixed(int64(h))
            place = row * width + int64(((h >> _32) * uint64(width)) >> _32)
            counts[place] = min(most, counts[place] + times[i])
            least = min(least, counts[place])
        out[i] = least

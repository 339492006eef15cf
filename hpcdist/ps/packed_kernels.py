"""Rows that are not kept in float32: loops that read, make and write them.

A record has the low half of its id, the values, the state (`row_storage`), each in whole words, and
what a policy keeps. ``facts`` are (kind of values, width, whether values are rounded by chance,
columns of state, their width, whether these are in float16, bytes of a record before its state, and
with it).
Chance is a function of the table's seed, the id, the table's step and the element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int8, int16, int64, uint32, uint64

from hpcdist.base.jit import inlined, jit
from hpcdist.base.raw_memory import (
    bits_of,
    copy_bytes,
    float32_at,
    float_of,
    int8_at,
    int16_at,
    uint16_at,
)
from hpcdist.ps.packed_lanes import (
    LANES,
    bfloat_by_chance,
    bfloat_nearest,
    half_by_chance,
    half_nearest,
    largest_size,
    whole_by_chance,
    whole_nearest,
)
from hpcdist.ps.row_kernels import ask_for, bound_records, keep_narrow, shrink_records
from hpcdist.ps.row_values import mixed, write_initial

FLOAT32, FLOAT16, BFLOAT16, INT8 = range(4)
BLOCK_BYTES = 16384  # of records in float32 at a time
AHEAD = 8  # records asked for before they are needed
_16, _32 = uint32(16), uint64(32)
_SIGN, _REST = uint32(0x8000), uint32(0x7FFFFFFF)
_ONE = uint32(1)
_MOST = float32(127)


@inlined
def _of_half(half):
    """Return the float32 of a float16's bits. No branches."""
    size = uint32(half) & uint32(0x7FFF)
    bits = size << uint32(13)
    finite = bits_of(float_of(bits) * float32(2.0**112))
    number = bits | uint32(0x7F800000) if size >= uint32(0x7C00) else finite
    return float_of(number | ((uint32(half) & _SIGN) << _16))


@inlined
def _power_of(exponent):
    """Return a power of two, float32."""
    return float_of(uint32(exponent + 127) << uint32(23))


@inlined
def _largest(source, width):
    """Return the bits of the largest absolute value of a row."""
    most = uint32(0)
    for j in range(0, width, LANES):
        most = max(most, largest_size(source + 4 * j, min(LANES, width - j)))
    return most


@inlined
def _write_halves(kind, by_chance, source, place, width, low, high, number, first, second, spare):
    for j in range(0, width, LANES):
        left, value, part = width - j, source + 4 * j, number + uint32(j)
        target = place + 2 * j if left >= LANES else spare
        if kind == FLOAT16 and by_chance:
            half_by_chance(value, target, low, high, part, first, second)
        elif kind == FLOAT16:
            half_nearest(value, target, low, high, part, first, second)
        elif by_chance:
            bfloat_by_chance(value, target, low, high, part, first, second)
        else:
            bfloat_nearest(value, target, low, high, part, first, second)
        if left < LANES:
            copy_bytes(place + 2 * j, spare, 2 * left)


@inlined
def _write_whole(source, place, width, by_chance, low, high, spare):
    """Write a row as a scale and whole numbers; a row that is not finite becomes NaN."""
    most = _largest(source, width)
    scale = float_of(most) / _MOST
    if most >= uint32(0x7F800000):
        scale = float32(np.nan)
    float32_at(place)[0] = scale
    whole = int8_at(place + 4)
    if scale > float32(0):
        factor = 1.0 / float64(scale)
        for j in range(0, width, LANES):
            left = width - j
            target = place + 4 + j if left >= LANES else spare
            if by_chance:
                whole_by_chance(source + 4 * j, target, low, high, uint32(j), factor)
            else:
                whole_nearest(source + 4 * j, target, low, high, uint32(j), factor)
            if left < LANES:
                copy_bytes(place + 4 + j, spare, left)
    else:
        for j in range(width):
            whole[j] = int8(0)


@inlined
def _write_values(source, place, facts, key, spare):
    """Round ``width`` float32 to what is kept; ``key``: the chance of the row in this step.

    LANES float32 can be read from each of them on; ``spare``: the address of as many.
    """
    kind, width, by_chance = facts[0], facts[1], facts[2] != 0
    low, high, one = uint32(key), uint32(key >> _32), float32(1)
    if kind == FLOAT32:
        copy_bytes(place, source, 4 * width)
    elif kind == INT8:
        _write_whole(source, place, width, by_chance, low, high, spare)
    else:
        _write_halves(kind, by_chance, source, place, width, low, high, uint32(0), one, one, spare)


@inlined
def _read_values(place, target, facts):
    kind, width = facts[0], facts[1]
    out = float32_at(target)
    if kind == FLOAT32:
        copy_bytes(target, place, 4 * width)
    elif kind == FLOAT16:
        for j in range(width):
            out[j] = _of_half(uint16_at(place)[j])
    elif kind == BFLOAT16:
        for j in range(width):
            out[j] = float_of(uint32(uint16_at(place)[j]) << _16)
    else:
        scale = float32_at(place)[0]
        for j in range(width):
            out[j] = scale * float32(int8_at(place + 4)[j])


@inlined
def _write_state(source, place, facts, key, spare):
    """Write the state of a row; see `_write_values`."""
    columns, width = facts[3], facts[4]
    if not facts[5]:
        copy_bytes(place, source, 4 * columns * width)
        return
    low, high = uint32(key), uint32(key >> _32)
    for column in range(columns):
        values = source + 4 * column * width
        most = _largest(values, width)
        # The largest becomes 2^14 to 2^15.
        exponent = int64(most >> uint32(23)) - 141
        if most == uint32(0) or most >= uint32(0x7F800000):
            exponent = int64(0)
        begin = place + column * (2 + 2 * width)
        int16_at(begin)[0] = int16(exponent)
        # By two factors, float32 has all of them. What that rounds is too small for a digit.
        first, second = _power_of(-(exponent >> 1)), _power_of((exponent >> 1) - exponent)
        number = uint32(facts[1] + column * width)
        _write_halves(
            FLOAT16, True, values, begin + 2, width, low, high, number, first, second, spare
        )


@inlined
def _read_state(place, target, facts):
    columns, width = facts[3], facts[4]
    for column in range(columns):
        begin = place + column * (2 + 2 * width)
        exponent = int64(int16_at(begin)[0])
        first, second = _power_of(exponent >> 1), _power_of(exponent - (exponent >> 1))
        halves, out = uint16_at(begin + 2), float32_at(target + 4 * column * width)
        for j in range(width):
            out[j] = _of_half(halves[j]) * first * second


@inlined
def _key(h, seed_key, step):
    """Return the bits that decide the chance of the row with mixed id ``h`` in a step."""
    return mixed(mixed(h ^ seed_key) ^ uint64(step))


@inlined
def _ask_ahead(records, i, end):
    """Ask for what a later record has up to byte ``end``."""
    if i + AHEAD < len(records):
        ask_for(records[i + AHEAD] + 4, end - 4)


@jit
def read(ids, records, zeros, out, facts, seed_key, kind, initial):
    """Write rows float32 [n, width]; where there is no record what a new one begins with, or zeros.

    kind, initial: as `index_kernels.locate` takes them.
    """
    width = facts[1]
    scratch = np.empty(2 * width + 2 + 2 * LANES, np.float32)
    values = int64(scratch.ctypes.data)
    spare = values + 4 * width
    kept = spare + 4 * LANES
    for i in range(len(records)):
        _ask_ahead(records, i, facts[6])
        target = int64(out.ctypes.data) + 4 * width * i
        if records[i]:
            _read_values(records[i] + 4, target, facts)
        elif zeros:
            out[i, :] = float32(0)
        else:
            h = mixed(ids[i])
            write_initial(values, width, h, seed_key, kind, initial)
            _write_values(values, kept, facts, _key(h, seed_key, 0), spare)
            _read_values(kept, target, facts)


@jit
def begin(ids, records, facts, seed_key, kind, initial):
    """Write the first values and the first state of new records."""
    width, floats = facts[1], facts[3] * facts[4]
    scratch = np.empty(width + floats + LANES, np.float32)
    scratch[width:] = float32(initial[2])
    values = int64(scratch.ctypes.data)
    spare = values + 4 * (width + floats)
    for i in range(len(records)):
        h = mixed(ids[i])
        write_initial(values, width, h, seed_key, kind, initial)
        key = _key(h, seed_key, 0)
        _write_values(values, records[i] + 4, facts, key, spare)
        _write_state(values + 4 * width, records[i] + facts[6], facts, key, spare)


@jit
def unpack(records, out, facts):
    """Write values to rows of ``out``, float32 [n, 1 + floats of both], and state in float16."""
    for i in range(len(records)):
        _ask_ahead(records, i, facts[7])
        target = int64(out.ctypes.data) + 4 * (out.shape[1] * i + 1)
        _read_values(records[i] + 4, target, facts)
        if facts[5]:
            _read_state(records[i] + facts[6], target + 4 * facts[1], facts)


@jit
def pack(ids, records, source, step, facts, seed_key, moved):
    """Round values and state in rows of ``source`` into records; state in float32 unless moved.

    Behind ``source`` is memory for LANES more.
    """
    room = np.empty(LANES, np.float32)
    spare = int64(room.ctypes.data)
    for i in range(len(records)):
        begin = int64(source.ctypes.data) + 4 * (source.shape[1] * i + 1)
        key = _key(mixed(ids[i]), seed_key, step)
        _write_values(begin, records[i] + 4, facts, key, spare)
        if facts[5] or not moved:
            _write_state(begin + 4 * facts[1], records[i] + facts[6], facts, key, spare)


def moving_pass(move: Any) -> Any:
    """Return the pass of `row_kernels` that moves packed records, rounded once.

    State in float32 moves where it is.
    """

    def moved(
        ids, records, grads, firsts, following, scale, rate, hyper, facts, seed_key, step, more
    ):
        # Some at a time, so that what is between stays in the cache.
        floats = 1 + facts[1] + facts[3] * facts[4]
        block = max(8, min(len(records), BLOCK_BYTES // (4 * floats)))
        memory = np.empty(block * floats + LANES, np.float32)
        moving = memory[: block * floats].reshape(block, floats)
        places = int64(moving.ctypes.data) + 4 * floats * np.arange(block)
        shrinks, part, bounds, low, high, turns, kind, initial = more
        for begin in range(0, len(records), block):
            kept = records[begin : begin + block]
            there = places[: len(kept)]
            unpack(kept, moving, facts)
            if shrinks:
                shrink_records(there, facts[1], part)
            states = there + 4 + 4 * facts[1] if facts[5] else kept + facts[6]
            move(there, states, grads, firsts[begin:], following, scale, rate, hyper)
            if bounds:
                bound_records(there, facts[1], low, high)
            narrow, width, floats = turns[begin : begin + block], facts[1], facts[3] * facts[4]
            keep_narrow(ids[begin:], there, states, narrow, width, floats, seed_key, kind, initial)
            pack(ids[begin:], kept, moving, step, facts, seed_key, True)

    return jit(moved)


@jit
def copy_out(records, at, out):
    """Copy bytes from byte ``at`` of each record to the rows of ``out``, uint8 [n, bytes]."""
    nbytes = out.shape[1]
    for i in range(len(records)):
        copy_bytes(int64(out.ctypes.data) + nbytes * i, records[i] + at, nbytes)


@jit
def copy_in(records, at, source):
    """Copy the rows of ``source``, uint8 [n, bytes], to byte ``at`` of each record."""
    nbytes = source.shape[1]
    for i in range(len(records)):
        copy_bytes(records[i] + at, int64(source.ctypes.data) + nbytes * i, nbytes)

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
from numba import float32, float64, int16, int64, uint32, uint64

from hpcdist.base.jit import inlined, jit
from hpcdist.base.raw_memory import bits_of, copy_bytes, float32_at, float_of, int16_at
from hpcdist.ps.packed_lanes import (
    LANES,
    bfloat_by_chance,
    bfloat_nearest,
    half_by_chance,
    half_nearest,
    largest_size,
    read_bfloats,
    read_floats,
    read_halves,
    read_whole,
    whole_by_chance,
    whole_nearest,
    write_floats,
)
from hpcdist.ps.row_kernels import ask_for, bound_records, keep_narrow, shrink_records
from hpcdist.ps.row_values import mixed, write_initial

FLOAT32, FLOAT16, BFLOAT16, INT8 = range(4)
BLOCK_BYTES = 65536  # of records in float32 at a time
AHEAD = 8  # records asked for before they are needed
_32 = uint64(32)
_MOST, _ONE, _ZERO = float32(127), float32(1), float32(0)
# A scale has twelve digits, the greatest one that a row can have: the others would be random bytes.
_DROPPED, _DIGITS, _GREATEST = uint32(0xFFF), uint32(0xFFFFF000), uint32(0x7C010000)


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


# How numbers are kept: what stands before them, from which their two factors follow.


@jit
def _nothing(place):
    return _ONE, _ONE


@jit
def _scale_at(place):
    return float32_at(place)[0], _ONE


@jit
def _exponent_at(place):
    exponent = int64(int16_at(place)[0])
    return _power_of(exponent >> 1), _power_of(exponent - (exponent >> 1))


@jit
def _write_nothing(source, width, place):
    return _ONE, _ONE


@jit
def _write_scale(source, width, place):
    """Write what whole numbers are multiplied by, NaN for a row that is not finite."""
    most = _largest(source, width)
    up = bits_of(float_of(most) / _MOST) + _DROPPED  # no number is above 127 times it
    scale = float_of(uint32(min(up & _DIGITS, _GREATEST)))
    if most >= uint32(0x7F800000):
        scale = float32(np.nan)
    float32_at(place)[0] = scale
    if scale > _ZERO:
        return 1.0 / float64(scale), 1.0
    for j in range(width):  # the numbers may be none: they are not to be read
        float32_at(source)[j] = _ZERO
    return 0.0, 0.0


@jit
def _write_exponent(source, width, place):
    """Write by which power of two numbers are multiplied: the largest becomes 2^14 to 2^15."""
    most = _largest(source, width)
    exponent = int64(most >> uint32(23)) - 141
    if most == uint32(0) or most >= uint32(0x7F800000):
        exponent = int64(0)
    int16_at(place)[0] = int16(exponent)
    # By two factors, float32 has all of them. What that rounds is too small for a digit.
    return _power_of(-(exponent >> 1)), _power_of((exponent >> 1) - exponent)


def _reading(lanes, factors_at, size, head):
    """Make a loop that reads numbers of ``size`` bytes, ``head`` bytes behind byte ``at``."""

    def read(records, at, end, width, target, stride):
        room = np.empty(2 * LANES, np.float32)
        for i in range(len(records)):
            if i + AHEAD < len(records):
                ask_for(records[i + AHEAD] + 4, end - 4)
            if records[i]:
                first, second = factors_at(records[i] + at)
                place = records[i] + at + head
                for j in range(0, width - LANES + 1, LANES):
                    lanes(place + size * j, target + 4 * j, first, second)
                left = width % LANES
                if left:
                    spare = int64(room.ctypes.data)  # here: what is used no more is freed
                    copy_bytes(spare, place + size * (width - left), size * left)
                    lanes(spare, spare + 4 * LANES, first, second)
                    copy_bytes(target + 4 * (width - left), spare + 4 * LANES, 4 * left)
            target += stride

    return jit(read)


def _writing(lanes, write_factors, size, head):
    """Make a loop that rounds rows; LANES float32 can be read from each number on."""
    found = int(write_factors is not _write_nothing)

    def write(records, at, width, source, stride, keys, number):
        room = np.empty(LANES, np.float32)
        factors, others = np.empty(len(records) * found), np.empty(len(records) * found)
        # Before all else: each is a long chain, of which many are under way at once.
        for i in range(len(factors)):
            row = source + stride * i
            factors[i], others[i] = write_factors(row, width, records[i] + at)
        for i in range(len(records)):
            first, second = (factors[i], others[i]) if found else (1.0, 1.0)
            place = records[i] + at + head
            for j in range(0, width - LANES + 1, LANES):
                lanes(source + 4 * j, place + size * j, keys[i], uint32(number + j), first, second)
            left = width % LANES
            if left:
                spare, j = int64(room.ctypes.data), width - left
                lanes(source + 4 * j, spare, keys[i], uint32(number + j), first, second)
                copy_bytes(place + size * j, spare, size * left)
            source += stride

    return jit(write)


_read_floats = _reading(read_floats, _nothing, 4, 0)
_read_halves = _reading(read_halves, _nothing, 2, 0)
_read_bfloats = _reading(read_bfloats, _nothing, 2, 0)
_read_whole = _reading(read_whole, _scale_at, 1, 4)
_read_column = _reading(read_halves, _exponent_at, 2, 2)
_write_floats = _writing(write_floats, _write_nothing, 4, 0)
_write_halves = _writing(half_nearest, _write_nothing, 2, 0)
_chance_halves = _writing(half_by_chance, _write_nothing, 2, 0)
_write_bfloats = _writing(bfloat_nearest, _write_nothing, 2, 0)
_chance_bfloats = _writing(bfloat_by_chance, _write_nothing, 2, 0)
_write_whole = _writing(whole_nearest, _write_scale, 1, 4)
_chance_whole = _writing(whole_by_chance, _write_scale, 1, 4)
_chance_column = _writing(half_by_chance, _write_exponent, 2, 2)


@jit
def _read_values(records, target, stride, end, facts):
    """Write the values of records to the address ``target``; none where there is no record.

    stride: bytes from row to row; end: up to which byte records are asked for.
    """
    kind, width = facts[0], facts[1]
    if kind == FLOAT32:
        _read_floats(records, 4, end, width, target, stride)
    elif kind == FLOAT16:
        _read_halves(records, 4, end, width, target, stride)
    elif kind == BFLOAT16:
        _read_bfloats(records, 4, end, width, target, stride)
    else:
        _read_whole(records, 4, end, width, target, stride)


@jit
def _write_values(records, source, stride, keys, facts):
    """Round values into records."""
    kind, width, chance = facts[0], facts[1], facts[2]
    if kind == FLOAT32:
        _write_floats(records, 4, width, source, stride, keys, 0)
    elif kind == FLOAT16 and chance:
        _chance_halves(records, 4, width, source, stride, keys, 0)
    elif kind == FLOAT16:
        _write_halves(records, 4, width, source, stride, keys, 0)
    elif kind == BFLOAT16 and chance:
        _chance_bfloats(records, 4, width, source, stride, keys, 0)
    elif kind == BFLOAT16:
        _write_bfloats(records, 4, width, source, stride, keys, 0)
    elif chance:
        _chance_whole(records, 4, width, source, stride, keys, 0)
    else:
        _write_whole(records, 4, width, source, stride, keys, 0)


@jit
def _read_state(records, target, stride, facts):
    """Write state in float16 to the address ``target``."""
    width = facts[4]
    for column in range(facts[3]):
        begin = facts[6] + column * (2 + 2 * width)
        _read_column(records, begin, facts[7], width, target + 4 * column * width, stride)


@jit
def _write_state(records, source, stride, keys, facts):
    """Round state into records, or copy it if it is kept in float32."""
    columns, width = facts[3], facts[4]
    if not facts[5]:
        for i in range(len(records)):
            copy_bytes(records[i] + facts[6], source + stride * i, 4 * columns * width)
        return
    for column in range(columns):
        begin, number = facts[6] + column * (2 + 2 * width), facts[1] + column * width
        values = source + 4 * column * width
        _chance_column(records, begin, width, values, stride, keys, number)


@jit
def _write_keys(ids, seed_key, step, keys):
    """Write the bits that decide the chance of rows in a step."""
    for i in range(len(keys)):
        keys[i] = mixed(mixed(mixed(ids[i]) ^ seed_key) ^ uint64(step))


@jit
def read(ids, records, zeros, out, facts, seed_key, kind, initial):
    """Write rows float32 [n, width]; where there is no record what a new one begins with, or zeros.

    kind, initial: as `index_kernels.locate` takes them.
    """
    nbytes, target = 4 * facts[1], int64(out.ctypes.data)
    _read_values(records, target, nbytes, facts[6], facts)
    kept, one = np.empty(facts[7] // 4 + 1, np.float32), np.empty(1, np.int64)
    for i in range(len(records)):
        if records[i]:
            continue
        if zeros:
            out[i, :] = _ZERO
        else:
            one[0] = int64(kept.ctypes.data)
            begin(ids[i : i + 1], one, facts, seed_key, kind, initial)
            _read_values(one, target + nbytes * i, nbytes, facts[6], facts)


@jit
def begin(ids, records, facts, seed_key, kind, initial):
    """Write the first values and the first state of new records."""
    width, floats = facts[1], facts[3] * facts[4]
    scratch = np.empty(width + floats + LANES, np.float32)
    source, key = int64(scratch.ctypes.data), np.empty(1, np.uint64)
    for i in range(len(records)):
        write_initial(source, width, mixed(ids[i]), seed_key, kind, initial)
        scratch[width:] = float32(initial[2])
        _write_keys(ids[i : i + 1], seed_key, 0, key)
        _write_values(records[i : i + 1], source, 0, key, facts)
        _write_state(records[i : i + 1], source + 4 * width, 0, key, facts)


@jit
def unpack(records, out, facts):
    """Write values to rows of ``out``, float32 [n, 1 + floats of both], and state in float16."""
    target, stride = int64(out.ctypes.data) + 4, 4 * out.shape[1]
    _read_values(records, target, stride, facts[7], facts)
    if facts[5]:
        _read_state(records, target + 4 * facts[1], stride, facts)


@jit
def pack(ids, records, source, step, facts, seed_key, moved):
    """Round values and state in rows of ``source`` into records; state in float32 unless moved.

    Behind ``source`` is memory for LANES more.
    """
    begin, stride = int64(source.ctypes.data) + 4, 4 * source.shape[1]
    keys = np.empty(len(records), np.uint64)
    if facts[2] or facts[5]:
        _write_keys(ids, seed_key, step, keys)
    _write_values(records, begin, stride, keys, facts)
    if facts[5] or not moved:
        _write_state(records, begin + 4 * facts[1], stride, keys, facts)


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

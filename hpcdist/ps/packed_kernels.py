"""Rows that are not kept in float32: loops that read, make and write them.

A record has the low half of its id, the values, the state (`row_storage`), each in whole words, and
what a policy keeps. ``facts`` are (kind of values, width, whether values are rounded by chance,
columns of state, their width, whether these are in float16, byte of the state in a record).
Chance is a function of the table's seed, the id, the table's step and the element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int8, int16, int32, int64, uint16, uint32, uint64

from hpcdist.base.jit import inlined, jit
from hpcdist.base.raw_memory import (
    bits_of,
    copy_bytes,
    float32_at,
    float_of,
    int8_at,
    int16_at,
    prefetch,
    uint16_at,
)
from hpcdist.ps.row_kernels import bound_records, keep_narrow, shrink_records
from hpcdist.ps.row_values import mixed, random_bits, write_initial

FLOAT32, FLOAT16, BFLOAT16, INT8 = range(4)
BLOCK_BYTES = 16384  # of records in float32 at a time
AHEAD = 8  # records asked for before they are needed
_16, _32 = uint32(16), uint64(32)
_SIGN, _REST = uint32(0x8000), uint32(0x7FFFFFFF)
_ONE = uint32(1)
_MOST = float32(127)


@inlined
def _rounded(number, bits, noise, by_chance):
    """Return a uint32 without its lowest ``bits``, rounded: to even, or by ``noise``."""
    mask = (_ONE << bits) - _ONE
    even = (mask >> _ONE) + ((number >> bits) & _ONE)
    return uint32(number + (noise & mask if by_chance else even)) >> bits


@inlined
def _half_of(value, noise, by_chance):
    """Return the bits of a float32 rounded to float16: uint16. No branches: lanes do it at once."""
    bits = bits_of(value)
    size = bits & _REST
    exponent = size >> uint32(23)
    # Less than 2^-14 has fewer digits, less than 2^-32 none.
    small = size < uint32(0x38800000)
    shift = min(uint32(126) - exponent, uint32(31)) if small else uint32(13)
    digits = (size & uint32(0x7FFFFF)) | uint32(0x800000)
    digits = digits if exponent > uint32(94) else uint32(0)
    number = digits if small else size - uint32(0x38000000)
    half = min(_rounded(number, shift, noise, by_chance), uint32(0x7C00))
    half = uint32(0x7E00) if size > uint32(0x7F800000) else half
    half = uint32(0x7C00) if size == uint32(0x7F800000) else half
    return uint16(half | ((bits >> _16) & _SIGN))


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
def _bfloat_of(value, noise, by_chance):
    """Return the bits of a float32 rounded to bfloat16: uint16."""
    bits = bits_of(value)
    size = bits & _REST
    rounded = min(_rounded(size, _16, noise, by_chance), uint32(0x7F80))
    rounded = uint32(0x7FC0) if size > uint32(0x7F800000) else rounded
    return uint16(rounded | ((bits >> _16) & _SIGN))


@jit
def _to_int8(source, place, width, by_chance, low, high):
    """Write a row as a scale and whole numbers; a row that is not finite becomes NaN."""
    values, most = float32_at(source), uint32(0)
    for j in range(width):
        most = max(most, bits_of(values[j]) & _REST)
    scale = float_of(most) / _MOST
    if most >= uint32(0x7F800000):
        scale = float32(np.nan)
    float32_at(place)[0] = scale
    whole = int8_at(place + 4)
    if not scale > float32(0):
        for j in range(width):
            whole[j] = int8(0)
        return
    factor, part = 1.0 / float64(scale), 0.5
    for j in range(width):
        if by_chance:
            part = float64(int32(random_bits(low, high, j) >> _ONE)) * 2.0**-31
        quotient = np.floor(float64(values[j]) * factor + part)
        whole[j] = int8(int32(min(127.0, max(-127.0, quotient))))


@inlined
def _write_values(source, place, facts, key):
    """Round ``width`` float32 to what is kept; ``key``: the chance of the row in this step."""
    kind, width, by_chance = facts[0], facts[1], facts[2] != 0
    low, high = uint32(key), uint32(key >> _32)
    if kind == FLOAT32:
        copy_bytes(place, source, 4 * width)
    elif kind == INT8:
        _to_int8(source, place, width, by_chance, low, high)
    else:
        values, halves = float32_at(source), uint16_at(place)
        if kind == FLOAT16 and by_chance:
            for j in range(width):
                halves[j] = _half_of(values[j], random_bits(low, high, uint32(j)), True)
        elif kind == FLOAT16:
            for j in range(width):
                halves[j] = _half_of(values[j], uint32(0), False)
        elif by_chance:
            for j in range(width):
                halves[j] = _bfloat_of(values[j], random_bits(low, high, uint32(j)), True)
        else:
            for j in range(width):
                halves[j] = _bfloat_of(values[j], uint32(0), False)


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
def _write_state(source, place, facts, key):
    columns, width = facts[3], facts[4]
    if not facts[5]:
        copy_bytes(place, source, 4 * columns * width)
        return
    low, high = uint32(key), uint32(key >> _32)
    for column in range(columns):
        values, most = float32_at(source + 4 * column * width), uint32(0)
        for j in range(width):
            most = max(most, bits_of(values[j]) & _REST)
        # The largest becomes 2^14 to 2^15.
        exponent = int64(most >> uint32(23)) - 141
        if most == uint32(0) or most >= uint32(0x7F800000):
            exponent = int64(0)
        begin = place + column * (2 + 2 * width)
        int16_at(begin)[0] = int16(exponent)
        # By two factors, float32 has all of them. What that rounds is too small for a digit.
        first, second = _power_of(-(exponent // 2)), _power_of(exponent // 2 - exponent)
        halves, number = uint16_at(begin + 2), uint32(facts[1] + column * width)
        for j in range(width):
            noise = random_bits(low, high, number + uint32(j))
            halves[j] = _half_of(values[j] * first * second, noise, True)


@inlined
def _read_state(place, target, facts):
    columns, width = facts[3], facts[4]
    for column in range(columns):
        begin = place + column * (2 + 2 * width)
        exponent = int64(int16_at(begin)[0])
        first, second = _power_of(exponent // 2), _power_of(exponent - exponent // 2)
        halves, out = uint16_at(begin + 2), float32_at(target + 4 * column * width)
        for j in range(width):
            out[j] = _of_half(halves[j]) * first * second


@inlined
def _key(h, seed_key, step):
    """Return the bits that decide the chance of the row with mixed id ``h`` in a step."""
    return mixed(mixed(h ^ seed_key) ^ uint64(step))


@inlined
def _ask_ahead(records, i, state_at):
    if i + AHEAD < len(records):
        prefetch(records[i + AHEAD])
        prefetch(records[i + AHEAD] + state_at)


@jit
def read(ids, records, zeros, out, facts, seed_key, kind, initial):
    """Write rows float32 [n, width]; where there is no record what a new one begins with, or zeros.

    kind, initial: as `index_kernels.locate` takes them.
    """
    width = facts[1]
    scratch = np.empty(2 * width + 2, np.float32)
    values = int64(scratch.ctypes.data)
    kept = values + 4 * width
    for i in range(len(records)):
        _ask_ahead(records, i, 0)
        target = int64(out.ctypes.data) + 4 * width * i
        if records[i]:
            _read_values(records[i] + 4, target, facts)
        elif zeros:
            out[i, :] = float32(0)
        else:
            h = mixed(ids[i])
            write_initial(values, width, h, seed_key, kind, initial)
            _write_values(values, kept, facts, _key(h, seed_key, 0))
            _read_values(kept, target, facts)


@jit
def begin(ids, records, facts, seed_key, kind, initial):
    """Write the first values and the first state of new records."""
    width, floats = facts[1], facts[3] * facts[4]
    scratch = np.empty(width + floats, np.float32)
    scratch[width:] = float32(initial[2])
    values = int64(scratch.ctypes.data)
    for i in range(len(records)):
        h = mixed(ids[i])
        write_initial(values, width, h, seed_key, kind, initial)
        key = _key(h, seed_key, 0)
        _write_values(values, records[i] + 4, facts, key)
        _write_state(values + 4 * width, records[i] + facts[6], facts, key)


@jit
def unpack(records, out, facts):
    """Write values to rows of ``out``, float32 [n, 1 + floats of both], and state in float16."""
    for i in range(len(records)):
        _ask_ahead(records, i, facts[6])
        target = int64(out.ctypes.data) + 4 * (out.shape[1] * i + 1)
        _read_values(records[i] + 4, target, facts)
        if facts[5]:
            _read_state(records[i] + facts[6], target + 4 * facts[1], facts)


@jit
def pack(ids, records, source, step, facts, seed_key, moved):
    """Round values and state in rows of ``source`` into records; state in float32 unless moved."""
    for i in range(len(records)):
        begin = int64(source.ctypes.data) + 4 * (source.shape[1] * i + 1)
        key = _key(mixed(ids[i]), seed_key, step)
        _write_values(begin, records[i] + 4, facts, key)
        if facts[5] or not moved:
            _write_state(begin + 4 * facts[1], records[i] + facts[6], facts, key)


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
        moving = np.empty((block, floats), np.float32)
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

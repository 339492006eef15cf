"""The loops behind `hpcdist.ops.random.counter`, compiled.

Blocks of four words are made ``LANES`` at a time, side by side in vector registers. ``pieces``
says where pieces of an array begin, and its end: piece p counts its elements from ``first``, and
has ``sequence`` + p as the second word of its counters (a block's number has 64 bits in all).
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import inlined, jit
from hpcdist.ops.random.philox import MULTIPLIERS, PER_BLOCK, ROUNDS, WEYL

LANES = 16
WORDS = LANES * PER_BLOCK
M0, M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
W0, W1 = WEYL
HALF = np.uint64(32)


@inlined
def _round(a, b, c, d, first, second):
    """Mix a counter once; all are uint32."""
    left, right = np.uint64(a) * M0, np.uint64(c) * M1
    return (
        np.uint32(np.uint32(right >> HALF) ^ b ^ first),
        np.uint32(right),
        np.uint32(np.uint32(left >> HALF) ^ d ^ second),
        np.uint32(left),
    )


@jit
def _keys(key0, key1):
    """Return the keys of all rounds."""
    keys = np.empty((ROUNDS, 2), np.uint32)
    for i in range(ROUNDS):
        keys[i, 0] = np.uint32(key0 + i * W0)
        keys[i, 1] = np.uint32(key1 + i * W1)
    return keys


@inlined
def _blocks(block, sequence, low, high, keys, out):
    """Write the words of LANES blocks, from number ``block`` of a sequence on."""
    for lane in range(LANES):
        number = np.uint64(block + lane)
        a, b = np.uint32(number), np.uint32((number >> HALF) + np.uint64(sequence))
        c, d = np.uint32(low), np.uint32(high)
        # Written out ten times, so that lanes go side by side through vector registers.
        a, b, c, d = _round(a, b, c, d, keys[0, 0], keys[0, 1])
        a, b, c, d = _round(a, b, c, d, keys[1, 0], keys[1, 1])
        a, b, c, d = _round(a, b, c, d, keys[2, 0], keys[2, 1])
        a, b, c, d = _round(a, b, c, d, keys[3, 0], keys[3, 1])
        a, b, c, d = _round(a, b, c, d, keys[4, 0], keys[4, 1])
        a, b, c, d = _round(a, b, c, d, keys[5, 0], keys[5, 1])
        a, b, c, d = _round(a, b, c, d, keys[6, 0], keys[6, 1])
        a, b, c, d = _round(a, b, c, d, keys[7, 0], keys[7, 1])
        a, b, c, d = _round(a, b, c, d, keys[8, 0], keys[8, 1])
        a, b, c, d = _round(a, b, c, d, keys[9, 0], keys[9, 1])
        out[0, lane], out[1, lane], out[2, lane], out[3, lane] = a, b, c, d


@jit
def words(first, sequence, low, high, key0, key1, pieces, out):
    """Fill ``out`` with one word for each element."""
    drawn, keys = np.empty((PER_BLOCK, LANES), np.uint32), _keys(key0, key1)
    for p in range(len(pieces) - 1):
        begin, end = pieces[p], pieces[p + 1]
        skip = first % PER_BLOCK
        block = first // PER_BLOCK
        at = begin
        while at < end:
            _blocks(block, sequence + p, low, high, keys, drawn)
            count = min(WORDS - skip, end - at)
            for i in range(count):
                out[at + i] = drawn[(skip + i) % PER_BLOCK, (skip + i) // PER_BLOCK]
            at += count
            block += LANES
            skip = 0


@jit
def drop(first, sequence, low, high, key0, key1, pieces, limit, x, scale, mask, out):
    """Write which words reach ``limit``, and x times that times ``scale``."""
    drawn, keys = np.empty((PER_BLOCK, LANES), np.uint32), _keys(key0, key1)
    for p in range(len(pieces) - 1):
        begin, end = pieces[p], pieces[p + 1]
        skip = first % PER_BLOCK
        block = first // PER_BLOCK
        at = begin
        while at < end:
            _blocks(block, sequence + p, low, high, keys, drawn)
            count = min(WORDS - skip, end - at)
            for i in range(count):
                keep = np.uint8(drawn[(skip + i) % PER_BLOCK, (skip + i) // PER_BLOCK] >= limit)
                mask[at + i] = keep
                out[at + i] = x[at + i] * x.dtype.type(keep) * scale
            at += count
            block += LANES
            skip = 0

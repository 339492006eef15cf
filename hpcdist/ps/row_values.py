"""The mix of an id, and the initial values of its row.

Values are a function of (seed, id, element), so they depend neither on order nor on the number of
servers. Only +, -, *, / and square roots are used, which give the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, int64, uint32, uint64

from hpcdist.base.jit import jit
from hpcdist.base.raw_memory import float32_at

CONSTANT, UNIFORM, NORMAL, TRUNCATED_NORMAL = range(4)
KINDS = {
    "constant": CONSTANT,
    "uniform": UNIFORM,
    "normal": NORMAL,
    "truncated_normal": TRUNCATED_NORMAL,
}

_STEP = uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_STEP32 = uint32(0x9E3779B9)
_A, _B = uint64(0xFF51AFD7ED558CCD), uint64(0xC4CEB9FE1A85EC53)
_UNDO_A, _UNDO_B = uint64(0x4F74430C22A54005), uint64(0x9CB4B2F8129337DB)
_33 = uint64(33)
# The normal distribution within two deviations: probability below -2, and in between.
_BELOW, _WITHIN = 0.02275013194817921, 0.9544997361036416


@jit
def mixed(row_id):
    """Return 64 well-mixed bits, a different number for each id (MurmurHash3's finalizer)."""
    h = uint64(row_id) + _STEP
    h = (h ^ (h >> _33)) * _A
    h = (h ^ (h >> _33)) * _B
    return h ^ (h >> _33)


@jit
def unmixed(h):
    """Return the id that `mixed` made ``h`` of."""
    h = (h ^ (h >> _33)) * _UNDO_B
    h = (h ^ (h >> _33)) * _UNDO_A
    return int64((h ^ (h >> _33)) - _STEP)


@jit
def _scrambled(x):
    """Return 32 mixed bits (Wellons' lowbias32)."""
    x = uint32((x ^ (x >> uint32(16))) * uint32(0x7FEB352D))
    x = uint32((x ^ (x >> uint32(15))) * uint32(0x846CA68B))
    return uint32(x ^ (x >> uint32(16)))


@jit
def random_bits(low, high, j):
    """Return the 32 random bits of element ``j`` of the row whose key has these two halves."""
    return _scrambled(uint32(_scrambled(uint32(low + uint32(uint32(j) * _STEP32))) ^ high))


@jit
def _logarithm(x):
    """Return the natural logarithm of 0 < x < 1, to 1e-15, without a library's own roundings."""
    doublings = 0
    while x < 0.7071067811865476:
        x *= 2.0
        doublings += 1
    t = (x - 1.0) / (x + 1.0)
    square = t * t
    total = 0.0
    for k in range(23, 0, -2):
        total = total * square + 1.0 / k
    return 2.0 * t * total - doublings * 0.6931471805599453


@jit
def normal_quantile(p):
    """Return the standard normal's quantile, to 1e-7 (Wichura 1988, AS 241, PPND7)."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
        below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0
        return q * above / below
    r = np.sqrt(-_logarithm(p if q < 0.0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
        below = (0.12021132975 * r + 0.73700164250) * r + 1.0
    else:
        r -= 5.0
        above = ((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150
        below = (0.012258202635 * r + 0.24197894225) * r + 1.0
    return -above / below if q < 0.0 else above / below


@jit
def write_initial(address, dim, h, seed_key, kind, initial):
    """Write the initial values of the row whose mixed id is ``h``.

    ``initial`` are a and b of a RowInitializer, a number for others, and how many elements are
    drawn, 0: all; the others are 0.
    """
    values = float32_at(address)
    key = mixed(h ^ seed_key)
    low, high = uint32(key), uint32(key >> uint64(32))
    a, b, drawn = initial[0], initial[1], int64(initial[3])
    if 0 < drawn < dim:
        for j in range(drawn, dim):
            values[j] = float32(0)
        dim = drawn
    if kind == CONSTANT:
        for j in range(dim):
            values[j] = float32(a)
    elif kind == UNIFORM:
        begin, span = float32(a), float32(b - a)
        for j in range(dim):
            # 24 bits: the float between 0 and 1 is exact.
            part = int32(random_bits(low, high, j) >> uint32(8))
            values[j] = begin + float32(part) * float32(2.0**-24) * span
    else:
        for j in range(dim):
            p = (float64(random_bits(low, high, j)) + 0.5) * 2.0**-32
            if kind == TRUNCATED_NORMAL:
                p = _BELOW + p * _WITHIN
            values[j] = float32(a + b * normal_quantile(p))

"""The loops behind `hpcdist.ops.random.samplers`, compiled."""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit

STATE, MIDDLE = 312, 156  # words of the state, and how far apart those are that are combined
UPPER, LOWER = np.uint64(0xFFFFFFFF80000000), np.uint64(0x7FFFFFFF)
MATRIX, SPREAD = np.uint64(0xB5026F5AA96619E9), np.uint64(6364136223846793005)
MASKS = np.array(
    [0x5555555555555555, 0x71D67FFFEDA60000, 0xFFF7EEE000000000], np.uint64
)  # of the tempering
ONE = np.uint64(1)


@jit
def words(seed, out):
    """Fill a uint64 array with the first numbers of ``std::mt19937_64`` (Nishimura, 2000)."""
    state = np.empty(STATE, np.uint64)
    state[0] = seed
    for i in range(1, STATE):
        last = state[i - 1]
        state[i] = SPREAD * (last ^ (last >> np.uint64(62))) + np.uint64(i)
    for k in range(len(out)):
        i = k % STATE
        x = (state[i] & UPPER) | (state[(i + 1) % STATE] & LOWER)
        mixed = state[(i + MIDDLE) % STATE] ^ (x >> ONE)
        if x & ONE:
            mixed = mixed ^ MATRIX
        state[i] = mixed
        y = mixed
        y ^= (y >> np.uint64(29)) & MASKS[0]
        y ^= (y << np.uint64(17)) & MASKS[1]
        y ^= (y << np.uint64(37)) & MASKS[2]
        out[k] = y ^ (y >> np.uint64(43))


@jit
def pairs(words, count, places, asides):
    """Fill with a number below ``count`` and one from 0 to 1 for each, of three words or more.

    Returns how many of them the uint32 ``words`` suffice for.
    """
    scale = np.int64(2**32 - 1) // count
    k = 0
    for i in range(len(places)):
        while k < len(words) and np.int64(words[k]) >= scale * count:  # is not used
            k += 1
        if k + 2 >= len(words):
            return i
        places[i] = np.int64(words[k]) // scale
        asides[i] = (words[k + 1] + words[k + 2] * 2.0**32) * 2.0**-64
        k += 3
    return len(places)

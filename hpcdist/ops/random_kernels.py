"""The loops behind `hpcdist.ops.random`, compiled."""

from __future__ import annotations

import numpy as np

from hpcdist.ops.optimize_kernels import jit

MULTIPLIER, MODULUS = np.int64(48271), np.int64(2147483647)
ONE, TWO = np.float32(1), np.float32(2)
RANGE = np.float32(2147483646)


@jit
def uniform(state, low, high, out):
    """Fill with u (high - low) + low."""
    for i in range(len(out)):
        state = state * MULTIPLIER % MODULUS
        u = np.float32(state - 1) / RANGE
        out[i] = u * (high - low) + low


@jit
def normal(state, skip, mean, std, out):
    """Fill by Marsaglia's polar method: pairs, the second value saved for the next call."""
    for i in range(0, skip + len(out), 2):
        r2 = np.float32(0)
        x = y = r2
        while r2 > ONE or r2 == 0:
            state = state * MULTIPLIER % MODULUS
            x = TWO * (np.float32(state - 1) / RANGE) - ONE
            state = state * MULTIPLIER % MODULUS
            y = TWO * (np.float32(state - 1) / RANGE) - ONE
            r2 = x * x + y * y
        k = np.float32(np.sqrt(np.float32(-2) * np.float32(np.log(r2)) / r2))
        if i >= skip:
            out[i - skip] = y * k * std + mean
        if skip <= i + 1 < skip + len(out):
            out[i + 1 - skip] = x * k * std + mean

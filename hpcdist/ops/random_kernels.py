"""The loops behind `hpcdist.ops.random`, compiled."""

from __future__ import annotations

import math

import numpy as np

from hpcdist.jit import jit

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
def uniform_of(words, low, high):
    """Return u (high - low) + low for u from the upper 24 bits of each word, so below 1."""
    out = np.empty(len(words), np.float32)
    for i in range(len(words)):
        out[i] = np.float32(words[i] >> 8) * np.float32(2.0**-24) * (high - low) + low
    return out


@jit
def normal_of(words, others, mean, std, bound):
    """Return normal values of two words each (Box and Muller, 1958), or within +-bound of one."""
    out = np.empty(len(words), np.float32)
    for i in range(len(words)):
        if bound < np.inf:  # u within the distribution's values at the bounds
            low = 0.5 * (1 + math.erf(-bound / math.sqrt(2.0)))
            u = low + (1 - 2 * low) * (words[i] + 0.5) * 2.0**-32
            value = math.sqrt(2.0) * float(inverse_erf(np.float32(2 * u - 1)))
        else:
            radius = math.sqrt(-2 * math.log((words[i] + 1.0) * 2.0**-32))
            value = radius * math.cos(2 * math.pi * others[i] * 2.0**-32)
        out[i] = value * std + mean
    return out


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


# Wichura's rational approximation of the inverse error function (AS 241, 1988), highest power
# first. It is meant for |x| < 0.85; Fluid uses it up to 0.9545, where it is good to 5e-6.
TOP = np.array(
    [8.8709406962545514830200e2, 1.1819493347062294404278e4, 2.3782041382114385731252e4,
     1.6235862515167575384252e4, 4.8548868893843886794648e3, 6.9706266534389598238465e2,
     4.7072688112383978012285e1, 1.1975323115670912564578e0], np.float32)  # fmt: skip
BOTTOM = np.array(
    [5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
     2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
     4.2313330701600911252e1, 1.0], np.float32)  # fmt: skip
LOW = np.float32((1 + math.erf(-2 / math.sqrt(2))) / 2)  # the normal distribution below -2
HIGH = np.float32((1 + math.erf(2 / math.sqrt(2))) / 2)
TINY = np.float32(np.finfo(np.float32).tiny)


@jit
def inverse_erf(x):
    """Return erf^-1 of a single-precision x."""
    r = np.float32(0.180625 - 0.25 * np.float64(x) * np.float64(x))
    top, bottom = TOP[0], BOTTOM[0]
    for k in range(1, len(TOP)):
        top = top * r + TOP[k]
        bottom = bottom * r + BOTTOM[k]
    return x * top / bottom


@jit
def truncated_normal(state, mean, std, out):
    """Fill by the inverse of the distribution, cut off at two standard deviations."""
    for i in range(len(out)):
        state = state * MULTIPLIER % MODULUS
        u = np.float32(state - 1) / RANGE * (ONE - TINY) + TINY
        p = LOW + (HIGH - LOW) * u
        within = inverse_erf(TWO * p - ONE)
        out[i] = math.sqrt(2.0) * np.float64(within) * np.float64(std) + np.float64(mean)

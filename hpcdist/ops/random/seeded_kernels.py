"""The loops behind `hpcdist.ops.random.seeded`, compiled."""

from __future__ import annotations

import math

import numpy as np

from hpcdist.base.jit import jit

MULTIPLIER, MODULUS = np.int64(48271), np.int64(2147483647)
ONE, TWO = np.float32(1), np.float32(2)
RANGE = np.float32(2147483646)
BLOCK = 1024  # numbers that stay in the cache from one loop to the next
LN_2 = math.log(2.0)
MANTISSA = np.int64(2**52 - 1)  # the bits of a float64 below its exponent
SQRT_HALF = np.float64(math.sqrt(0.5)).view(np.int64)


@jit
def uniform(state, low, high, out):
    """Fill with u (high - low) + low."""
    for i in range(len(out)):
        state = state * MULTIPLIER % MODULUS
        u = np.float32(state - 1) / RANGE
        out[i] = u * (high - low) + low


@jit
def integers(state, span, out):
    """Fill with numbers below ``span``, as libstdc++ makes them: those left over are not used."""
    scale = max((MODULUS - 2) // span, 1)
    for i in range(len(out)):
        state = state * MULTIPLIER % MODULUS
        while state - 1 >= span * scale:
            state = state * MULTIPLIER % MODULUS
        out[i] = (state - 1) // scale


@jit
def uniform_of(words, low, high):
    """Return u (high - low) + low for u from the upper 24 bits of each word, so below 1."""
    out = np.empty(len(words), np.float32)
    for i in range(len(words)):
        out[i] = np.float32(words[i] >> 8) * np.float32(2.0**-24) * (high - low) + low
    return out


@jit
def normal_of(words, second_words, mean, std, bound):
    """Return normal values of two words each (Box and Muller, 1958), or within +-bound of one."""
    out = np.empty(len(words), np.float32)
    if bound < np.inf:  # u within the distribution's values at the bounds
        low = 0.5 * (1 + math.erf(-bound / math.sqrt(2.0)))
        for i in range(len(words)):
            u = low + (1 - 2 * low) * (words[i] + 0.5) * 2.0**-32
            out[i] = math.sqrt(2.0) * float(inverse_erf(np.float32(2 * u - 1))) * std + mean
        return out
    block = np.empty(BLOCK)
    for begin in range(0, len(words), BLOCK):
        part = slice(begin, min(begin + BLOCK, len(words)))
        logs = block[: part.stop - begin]
        _logs_of(words[part], logs)
        _normal_of_logs(logs, second_words[part], mean, std, out[part])
    return out


@jit
def _logs_of(words, logs):
    """Write the natural logarithms of u = (word + 1) / 2^32."""
    # u = 2^e m with m from sqrt(1/2) to sqrt(2), s = (m - 1) / (m + 1):
    # ln u = e ln 2 + 2 (s + s^3/3 + s^5/5 + ... + s^15/15), the rest below 1e-14
    for i in range(len(words)):
        logs[i] = (np.float64(words[i]) + 1.0) * 2.0**-32
    bits = logs.view(np.int64)
    for i in range(len(words)):
        shift = bits[i] - SQRT_HALF
        exponent = np.float64(shift >> 52)
        bits[i] = (shift & MANTISSA) + SQRT_HALF
        s = (logs[i] - 1.0) / (logs[i] + 1.0)
        s2 = s * s
        series = 1 / 9 + s2 * (1 / 11 + s2 * (1 / 13 + s2 * (1 / 15)))
        series = s * (1 + s2 * (1 / 3 + s2 * (1 / 5 + s2 * (1 / 7 + s2 * series))))
        logs[i] = exponent * LN_2 + 2 * series


@jit
def _normal_of_logs(logs, second_words, mean, std, out):
    """Write std sqrt(-2 ln u) cos(2 pi v) + mean, for v = word / 2^32."""
    # cos(2 pi v) = -sin(x) with x = 2 pi (1/4 - |v - 1/2|), from -pi/2 to pi/2:
    # sin(x) = x - x^3/3! + x^5/5! - ... + x^17/17!, the rest below 1e-13
    for i in range(len(logs)):
        x = 2 * math.pi * (0.25 - abs(np.float64(second_words[i]) * 2.0**-32 - 0.5))
        x2 = x * x
        series = 1 - x2 / 156 * (1 - x2 / 210 * (1 - x2 / 272))
        series = 1 - x2 / 42 * (1 - x2 / 72 * (1 - x2 / 110 * series))
        sine = x * (1 - x2 / 6 * (1 - x2 / 20 * series))
        out[i] = -math.sqrt(-2 * logs[i]) * sine * std + mean


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

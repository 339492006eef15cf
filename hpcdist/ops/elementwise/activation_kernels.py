"""Activations of single numbers and of rows, for loops that numba compiles.

The exponential of a float32 is a polynomial that the compiler computes eight at a time; the
system's own is called once for each number, and takes most of a recurrent layer's time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from hpcdist.base.jit import jit
from hpcdist.ops.recurrent.time_steps import RELU, SIGMOID, TANH

# Fluid bounds what goes into the exponential of an activation within a recurrent layer.
_SIGMOID_MIN, _SIGMOID_MAX, _EXP_MAX = -40.0, 13.0, 40.0


# -- the exponential -------------------------------------------------------------------------------
_ROUND = np.float32(1.5 * 2**23)  # added, it leaves a whole number in the lowest bits
_LOG2_E = np.float32(1 / math.log(2))
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOWEST, _HIGHEST = np.float32(-87.3), np.float32(88.3)
_ONE, _HALF = np.float32(1), np.float32(0.5)
# exp(r) = 1 + r + r^2 P(r) for |r| < ln(2) / 2, to the last bit but one (Cephes, expf).
_P5, _P4, _P3, _P2, _P1 = (
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)
)


@intrinsic
def _power_of_two(typing, shifted) -> Any:
    """Return 2^n for the float32 n + _ROUND: n moves from the lowest bits to the exponent."""

    def generate(context, builder, signature, args) -> Any:
        word = ir.IntType(32)
        bits = builder.add(builder.bitcast(args[0], word), ir.Constant(word, 127))
        return builder.bitcast(builder.shl(bits, ir.Constant(word, 23)), ir.FloatType())

    return types.float32(types.float32), generate


def exp(x) -> Any:
    """Return e^x; in compiled code only."""
    raise NotImplementedError


@overload(exp)
def _exp(x) -> Any:
    def of_others(x) -> Any:
        return math.exp(x)

    def of_float32(x) -> Any:
        x = min(max(x, _LOWEST), _HIGHEST)
        shifted = x * _LOG2_E + _ROUND
        n = shifted - _ROUND
        r = x - n * _LN2_HIGH
        r = r - n * _LN2_LOW
        p = (((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _HALF) * (r * r) + r + _ONE
        return p * _power_of_two(shifted)  # type: ignore[call-arg]

    return of_float32 if x == types.float32 else of_others


# -- rows ------------------------------------------------------------------------------------------
@jit
def activate(kind: int, x) -> None:
    """Apply an activation to a row, in place."""
    one, two = x.dtype.type(1), x.dtype.type(2)
    if kind == SIGMOID:
        low, high = x.dtype.type(_SIGMOID_MIN), x.dtype.type(_SIGMOID_MAX)
        for k in range(len(x)):
            x[k] = one / (one + exp(-min(max(x[k], low), high)))
    elif kind == TANH:
        most = x.dtype.type(_EXP_MAX)
        for k in range(len(x)):
            x[k] = two / (one + exp(min(-two * x[k], most))) - one
    elif kind == RELU:
        for k in range(len(x)):
            x[k] = max(x[k], x.dtype.type(0))


@jit
def through(kind: int, out, grad) -> None:
    """Multiply a row of gradients by the slope of an activation that gave ``out``, in place."""
    one = out.dtype.type(1)
    if kind == SIGMOID:
        for k in range(len(out)):
            grad[k] *= out[k] * (one - out[k])
    elif kind == TANH:
        for k in range(len(out)):
            grad[k] *= one - out[k] * out[k]
    elif kind == RELU:
        for k in range(len(out)):
            if out[k] <= 0:
                grad[k] = 0

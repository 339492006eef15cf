"""Rounding of float32 to what 16 bits can hold, on the bits of numbers: numpy takes far longer.

To the nearest value, of two that are equally near to the even one; NaN stays what it is.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.jit import jit

SIGN, INFINITY = np.uint32(0x80000000), np.uint32(0x7F800000)
TOO_LARGE = np.uint32(0x47800000)  # 2^16
NORMAL = np.uint32(0x38800000)  # 2^-14: below, float16 has fewer bits, down to 2^-24
ONE, EXPONENT, HIDDEN = np.uint32(1), np.uint32(23), np.uint32(0x800000)
DROPPED, BELOW_HALF = np.uint32(13), np.uint32(0xFFF)
UPPER = np.uint32(16)


@jit
def round_to_float16_bits(x, out):
    """Keep 11 significant bits, fewer below 2^-14."""
    for i in range(len(x)):
        sign, a = x[i] & SIGN, x[i] & ~SIGN
        if a >= NORMAL:
            r = ((a + BELOW_HALF + ((a >> DROPPED) & ONE)) >> DROPPED) << DROPPED
            if a > INFINITY:
                r = a
            elif r >= TOO_LARGE:
                r = INFINITY
        else:
            # As a multiple of 2^-24, rounded; then as a float32 again.
            shift = np.uint32(126) - (a >> EXPONENT)
            r = np.uint32(0)
            if shift < np.uint32(32):
                digits = (a & (HIDDEN - ONE)) | HIDDEN
                half = (ONE << (shift - ONE)) - ONE
                count = (digits + half + ((digits >> shift) & ONE)) >> shift
                if count:
                    top = np.uint32(0)
                    while (count >> top) > ONE:
                        top += ONE
                    r = ((top + np.uint32(103)) << EXPONENT) | (
                        (count << (EXPONENT - top)) & (HIDDEN - ONE)
                    )
        out[i] = sign | np.uint32(r)


@jit
def round_to_bfloat16_bits(x, out):
    """Keep the upper half: 8 significant bits."""
    for i in range(len(x)):
        r = ((x[i] + np.uint32(0x7FFF) + ((x[i] >> UPPER) & ONE)) >> UPPER) << UPPER
        out[i] = x[i] if (x[i] & ~SIGN) > INFINITY else r

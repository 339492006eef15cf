"""``paddle.regularizer``: penalties on parameters."""

from __future__ import annotations

from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import Unsigned
from hpcdist.fluid.regularizer import L1DecayRegularizer, L2DecayRegularizer

_make = declare.composed("paddle.regularizer")


@_make
def L1Decay(coeff: Unsigned = 0.0) -> L1DecayRegularizer:
    """Return ``coeff`` times the sum of absolute values."""
    return L1DecayRegularizer(coeff)


@_make
def L2Decay(coeff: Unsigned = 0.0) -> L2DecayRegularizer:
    """Return ``coeff`` / 2 times the sum of squares."""
    return L2DecayRegularizer(coeff)


__all__ = ["L1Decay", "L2Decay"]

"""Functions of Paddle 2 that say something of a value."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare, reductions
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import append
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.variable import Variable
from hpcdist.ops.common import fits


def isnan(x: Variable, name: str | None = None) -> Variable:
    """Return element-wise whether a value is not a number."""
    return append("not_equal", {"X": x, "Y": x}, name, axis=-1)


def isinf(x: Variable, name: str | None = None) -> Variable:
    """Return element-wise whether a value is infinite."""
    return layers.abs(x) >= math.inf


def isfinite(x: Variable, name: str | None = None) -> Variable:
    """Return element-wise whether a value is finite."""
    return layers.abs(x) < math.inf


def equal_all(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return whether shapes are the same, and all elements equal."""
    if not fits(x.shape, y.shape):
        return scalar(layers.fill_constant([1], "bool", False))
    return reductions.all(append("equal", {"X": x, "Y": y}, name, axis=-1))  # type: ignore[attr-defined]


def is_tensor(x: Any) -> bool:
    """Return whether it is a Variable."""
    return isinstance(x, Variable)


def rank(input: Variable) -> Variable:
    """Return the number of dimensions, as a Variable."""
    return scalar(layers.rank(input))


def is_floating_point(x: Variable) -> bool:
    """Return whether the elements are floats."""
    return is_float(x.dtype)


__all__ = declare.offered("paddle", globals(), unchecked=["is_tensor"])

"""Functions of Paddle 2 that are short formulas of others: of numbers, places and shapes."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import creation, declare, reductions
from hpcdist.fluid.compat.paddle2.composed.arithmetic import cast, clip, matmul
from hpcdist.fluid.compat.paddle2.composed.questions import isinf, isnan
from hpcdist.fluid.compat.paddle2.composed.selection import where
from hpcdist.fluid.compat.paddle2.composed.shapes import expand
from hpcdist.fluid.compat.paddle2.declare import Ints, Variables, axis_of
from hpcdist.fluid.layers.helper import append
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.variable import Variable


# -- of one number ---------------------------------------------------------------------------------
def trunc(input: Variable, name: str | None = None) -> Variable:
    """Return the whole part, towards zero; its gradient is 0."""
    if not is_float(input.dtype):
        return layers.assign(input)
    return layers.sign(input) * layers.floor(layers.abs(input))


def round(x: Variable, name: str | None = None) -> Variable:
    """Return the nearest whole number; of two, as Paddle 2 does, the one farther from 0."""
    whole = trunc(x)
    return whole + trunc((x - whole) * 2.0)


def frac(x: Variable, name: str | None = None) -> Variable:
    """Return the part behind the point, which `trunc` drops."""
    return x - trunc(x)


def deg2rad(x: Variable, name: str | None = None) -> Variable:
    """Return radians of degrees."""
    return (x if is_float(x.dtype) else cast(x, "float32")) * (math.pi / 180.0)


def rad2deg(x: Variable, name: str | None = None) -> Variable:
    """Return degrees of radians."""
    return (x if is_float(x.dtype) else cast(x, "float32")) * (180.0 / math.pi)


def logit(x: Variable, eps: float | None = None, name: str | None = None) -> Variable:
    """Return log(x / (1 - x)); ``eps``: of x within eps and 1 - eps."""
    declare.floats("paddle.logit: x", x)
    inside = x if eps is None else clip(x, eps, 1.0 - eps)
    return layers.log(inside) - layers.log(1.0 - inside)


def bitwise_not(x: Variable, out: Any = None, name: str | None = None) -> Variable:
    """Return the integers with all bits turned, the booleans with the other value."""
    return layers.logical_not(x) if x.dtype == "bool" else layers.scale(x, -1.0, -1.0)


# -- where values are missing ----------------------------------------------------------------------
def nan_to_num(
    x: Variable, nan: float = 0.0, posinf: Any = None, neginf: Any = None, name: str | None = None
) -> Variable:
    """Return the values with numbers for NaN and infinity: by default 0 and the greatest ones."""
    greatest = float(np.finfo(x.dtype).max)
    found = where(isnan(x), creation.full([1], nan, x.dtype), x)
    high, low = (greatest if posinf is None else posinf), (-greatest if neginf is None else neginf)
    for sign, value in ((1.0, high), (-1.0, low)):
        of_sign = layers.logical_and(isinf(x), x * sign > 0.0)
        found = where(of_sign, creation.full([1], float(value), x.dtype), found)
    return found


def nansum(
    x: Variable,
    axis: Ints | None = None,
    dtype: Any = None,
    keepdim: bool = False,
    name: str | None = None,
) -> Variable:
    """Return sums over ``axis`` of the elements that are numbers."""
    numbers = where(isnan(x), layers.zeros_like(x), x)
    return reductions.sum(numbers, axis, dtype, keepdim)  # type: ignore[attr-defined]


def nanmean(
    x: Variable, axis: Ints | None = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """Return means over ``axis`` of the elements that are numbers."""
    present = cast(layers.logical_not(isnan(x)), x.dtype)
    counts = reductions.sum(present, axis, None, keepdim)  # type: ignore[attr-defined]
    return nansum(x, axis, None, keepdim) / counts


# -- of two numbers --------------------------------------------------------------------------------
def hypot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the root of x^2 + y^2."""
    return layers.sqrt(x * x + y * y)


def logaddexp(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return log(exp(x) + exp(y)), which does not overflow."""
    top = append("elementwise_max", {"X": x, "Y": y}, axis=-1)
    top.stop_gradient = True
    return layers.log(layers.exp(x - top) + layers.exp(y - top)) + top


def isclose(
    x: Variable,
    y: Variable,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    name: str | None = None,
) -> Variable:
    """Return element-wise whether |x - y| <= atol + rtol |y|; equal_nan: two NaNs are close."""
    near = layers.abs(x - y) <= layers.abs(y) * rtol + atol
    near = layers.logical_or(near, x == y)  # infinities
    return layers.logical_or(near, layers.logical_and(isnan(x), isnan(y))) if equal_nan else near


# -- along an axis ---------------------------------------------------------------------------------
def count_nonzero(
    x: Variable, axis: Ints | None = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """Return how many elements over ``axis`` are not zero, as int64."""
    present = cast(cast(x, "bool"), "int64")
    return reductions.sum(present, axis, None, keepdim)  # type: ignore[attr-defined]


def diff(
    x: Variable,
    n: int = 1,
    axis: int = -1,
    prepend: Any = None,
    append: Any = None,
    name: str | None = None,
) -> Variable:
    """Return the differences of neighbours along ``axis``, ``n`` times."""
    along = axis_of("paddle.diff", axis, len(x.shape))
    ends = [part for part in (prepend, x, append) if part is not None]
    found = layers.concat(ends, along) if len(ends) > 1 else x
    for _ in range(n):
        behind = layers.slice(found, [along], [1], [1 << 30])
        before = layers.slice(found, [along], [0], [-1])
        found = behind - before
    return found


def repeat_interleave(
    x: Variable, repeats: int, axis: int | None = None, name: str | None = None
) -> Variable:
    """Repeat each element ``repeats`` times along ``axis`` (None: of all, as one row)."""
    if axis is None:
        x, axis = layers.reshape(x, [-1]), 0
    along, rank = axis_of("paddle.repeat_interleave", axis, len(x.shape)), len(x.shape)
    copies = layers.stack([x] * repeats, along + 1)
    extent = x.shape[along]
    if sum(d < 0 for d in x.shape) > (extent < 0):
        shape = [0] * along + [extent * repeats if extent >= 0 else -1]
        if along + 1 < rank and any(d < 0 for d in x.shape[along + 1 :]):
            raise GraphError(f"paddle.repeat_interleave: {x.shape}: extents behind the axis")
        return layers.reshape(copies, [*shape, *x.shape[along + 1 :]])
    shape = [d if d >= 0 else -1 for d in x.shape]
    shape[along] = extent * repeats if extent >= 0 else -1
    return layers.reshape(copies, shape)


def searchsorted(
    sorted_sequence: Variable,
    values: Variable,
    out_int32: bool = False,
    right: bool = False,
    name: str | None = None,
) -> Variable:
    """Return how many elements of each ascending row are less than each value (right: or equal)."""
    row = layers.unsqueeze(sorted_sequence, [len(sorted_sequence.shape) - 1])
    value = layers.unsqueeze(values, [len(values.shape)])
    before = row <= value if right else row < value
    kind = "int32" if out_int32 else "int64"
    return cast(reductions.sum(cast(before, "int64"), -1), kind)  # type: ignore[attr-defined]


def bucketize(
    x: Variable,
    sorted_sequence: Variable,
    out_int32: bool = False,
    right: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the buckets of values between ascending borders."""
    return searchsorted(sorted_sequence, x, out_int32, right)


def tensordot(x: Variable, y: Variable, axes: Any = 2, name: str | None = None) -> Variable:
    """Return sums of products over axes of both: how many, or a list of them for each."""
    count = axes if isinstance(axes, int) else None
    of_x, of_y = (
        ([*range(len(x.shape) - count, len(x.shape))], [*range(count)])
        if count is not None
        else (axes if isinstance(axes[0], (list, tuple)) else (axes, axes))
    )
    if len(of_x) != len(of_y):
        raise GraphError(f"paddle.tensordot: axes: expected as many of x as of y, got {axes}")
    where_x, where_y = (
        [axis_of("paddle.tensordot", a, len(v.shape)) for a in of]
        for v, of in ((x, of_x), (y, of_y))
    )
    free_x, free_y = (
        [d for d in range(len(v.shape)) if d not in used]
        for v, used in ((x, where_x), (y, where_y))
    )
    size = math.prod(y.shape[d] for d in where_y)
    left = layers.reshape(layers.transpose(x, [*free_x, *where_x]), [-1, size])
    right = layers.reshape(layers.transpose(y, [*where_y, *free_y]), [size, -1])
    product, shape = matmul(left, right), [*(x.shape[d] for d in free_x)]
    return layers.reshape(product, [*shape, *(y.shape[d] for d in free_y)] or [1])


# -- shapes ----------------------------------------------------------------------------------------
def broadcast_tensors(input: Variables, name: str | None = None) -> list[Variable]:
    """Repeat Variables to the shape that all of them broadcast to."""
    if any(-1 in v.shape for v in input):  # sums of zeros have the shape that a step knows
        zeros = [append("fill_any_like", {"X": v}, value=0.0, dtype=v.dtype) for v in input]
        whole = functools.reduce(_sum, zeros)
        return [_sum(v, whole) for v in input]
    shape = functools.reduce(broadcast_shape, [list(v.shape) for v in input])
    return [expand(v, shape) for v in input]


def _sum(x: Variable, y: Variable) -> Variable:
    return append("elementwise_add", {"X": x, "Y": y}, axis=-1)


def broadcast_shape(x_shape: Ints, y_shape: Ints) -> list[int]:
    """Return the shape of what two values of these shapes broadcast to."""
    try:
        return [*np.broadcast_shapes(tuple(x_shape), tuple(y_shape))]
    except ValueError:
        raise GraphError(f"shapes {x_shape} and {y_shape} do not broadcast") from None


def empty_like(x: Variable, dtype: Any = None, name: str | None = None) -> Variable:
    """Return zeros of the shape of ``x``."""
    return append("fill_any_like", {"X": x}, name, value=0.0, dtype=dtype or x.dtype)


def unflatten(x: Variable, axis: int, shape: Ints, name: str | None = None) -> Variable:
    """Give one dimension several extents; one of them may be -1."""
    along = axis_of("paddle.unflatten", axis, len(x.shape))
    return layers.reshape(x, [*(0 for _ in range(along)), *shape, *x.shape[along + 1 :]])


def is_integer(x: Variable) -> bool:
    """Return whether the elements are integers."""
    return x.dtype in ("int8", "int16", "int32", "int64", "uint8")


def is_complex(x: Variable) -> bool:
    """Return False: no Variable here is complex."""
    return False


__all__ = declare.offered("paddle", globals())

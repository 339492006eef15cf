"""Functions of Paddle 2 that compute: of values, of matrices, of an axis."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare, reductions
from hpcdist.fluid.compat.paddle2.declare import Ints
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.graph.dtypes import canonical, is_float
from hpcdist.graph.variable import Variable


def cast(x: Variable, dtype: Any) -> Variable:
    """Return the value in another element type."""
    facts = {"in_dtype": x.dtype, "out_dtype": canonical(dtype)}
    return LayerHelper("cast").apply("cast", {"X": x}, facts, dtype=dtype)


def pow(x: Variable, y: Any, name: str | None = None) -> Variable:
    """Return x to the power of a number, or of a Variable, element by element."""
    if isinstance(y, Variable):
        return append("elementwise_pow", {"X": x, "Y": y}, name, axis=-1)
    return append("pow", {"X": x}, name, factor=declare.KINDS["float"]("paddle.pow: y", y))


def scale(
    x: Variable,
    scale: Any = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return scale x + bias, or scale (x + bias), through the activation ``act``."""
    return layers.scale(x, scale, bias, bias_after_scale, act, name)


def clip(x: Variable, min: Any = None, max: Any = None, name: str | None = None) -> Variable:
    """Return x within min and max; None: no bound."""
    low = -3.4028234e38 if min is None else min
    high = 3.4028234e38 if max is None else max
    if isinstance(low, Variable) or isinstance(high, Variable):
        raise GraphError("paddle.clip: bounds are numbers here; use paddle.maximum and minimum")
    return append("clip", {"X": x}, name, min=float(low), max=float(high))


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the product of matrices, of batches of them broadcast by numpy's rules."""
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": 1.0}
    out = LayerHelper("matmul_v2", name).apply("matmul", {"X": x, "Y": y}, attrs, dtype=x.dtype)
    return scalar(out) if len(x.shape) == len(y.shape) == 1 else out


def mod(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the rest of x / y, of the sign of y."""
    rest = append("elementwise_mod", {"X": x, "Y": y}, axis=-1)
    above = append("elementwise_add", {"X": rest, "Y": y}, axis=-1)
    return append("elementwise_mod", {"X": above, "Y": y}, name, axis=-1)


remainder = floor_mod = mod


def floor_divide(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return x / y rounded down; Fluid's operator rounds towards 0."""
    if is_float(x.dtype):
        out = layers.floor(append("elementwise_div", {"X": x, "Y": y}, axis=-1))
        out.stop_gradient = True
        return out
    whole = append("elementwise_sub", {"X": x, "Y": mod(x, y)}, axis=-1)
    return append("elementwise_floordiv", {"X": whole, "Y": y}, name, axis=-1)


def increment(x: Variable, value: float = 1.0, name: str | None = None) -> Variable:
    """Add ``value`` to a Variable of one element, in place; return it."""
    return layers.increment(x, value, in_place=True)


def trace(
    x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None
) -> Variable:
    """Return the sums of the diagonals of the matrices in two dimensions."""
    sums = append("trace", {"Input": x}, name, offset=offset, dim1=axis1, dim2=axis2)
    return scalar(sums) if len(x.shape) == 2 else sums


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the sum of products along the last dimension."""
    return reductions.sum(layers.elementwise_mul(x, y), -1)  # type: ignore[attr-defined]


def cross(x: Variable, y: Variable, axis: int = 9, name: str | None = None) -> Variable:
    """Return cross products along ``axis``, by default the first of extent 3."""
    along = x.shape.index(3) if axis == 9 and 3 in x.shape else axis
    return append("cross", {"X": x, "Y": y}, name, dim=along)


def einsum(equation: str, *operands: Any) -> Variable:
    """Return sums of products by Einstein's convention, such as ``"bij,bjk->bik"``."""
    from hpcdist.fluid.compat.paddle2 import einstein

    return einstein.summed(equation, declare.operands("paddle.einsum: operands", list(operands)))


def mv(x: Variable, vec: Variable, name: str | None = None) -> Variable:
    """Return the product of a matrix and a vector."""
    return matmul(x, vec, name=name)


def inner(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return sums of products over the last dimensions, of all rows of both."""
    if max(len(x.shape), len(y.shape)) < 3:
        return matmul(x, y, transpose_y=len(y.shape) > 1, name=name)
    extents = [*x.shape[:-1], *y.shape[:-1]]
    if extents.count(-1) > 1:
        raise GraphError(f"paddle.inner: at most one extent may be open, got {x.shape}, {y.shape}")
    rows, columns = (layers.reshape(v, [-1, v.shape[-1]]) for v in (x, y))
    return layers.reshape(matmul(rows, columns, transpose_y=True), extents)


def outer(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the products of every element of ``x`` with every one of ``y``."""
    return layers.reshape(x, [-1, 1]) * layers.reshape(y, [1, -1])


def t(input: Variable, name: str | None = None) -> Variable:
    """Return the transpose of a matrix; a vector as it is."""
    return layers.t(input, name)


def cumsum(
    x: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return sums of the elements so far along ``axis``; None: of all, as one row."""
    if dtype is not None and canonical(dtype) != x.dtype:
        x = cast(x, dtype)
    if axis is None:
        return append("cumsum", {"X": layers.reshape(x, [-1])}, name, axis=-1)
    along = declare.axis_of("paddle.cumsum", axis, len(x.shape))
    return append("cumsum", {"X": x}, name, axis=along)


def logsumexp(
    x: Variable, axis: Ints | None = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """Return log(sum(exp(x))) over ``axis``, by way of the maximum, which does not overflow."""
    top = reductions.max(x, axis, True)  # type: ignore[attr-defined]
    top.stop_gradient = True
    summed = reductions.sum(layers.exp(x - top), axis, None, True)  # type: ignore[attr-defined]
    result = layers.log(summed) + top
    return result if keepdim else reductions.sum(result, axis)  # type: ignore[attr-defined]


def var(
    x: Variable,
    axis: Ints | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the variance over ``axis``; unbiased: n - 1 in place of n."""
    apart = x - reductions.mean(x, axis, True)  # type: ignore[attr-defined]
    squares = layers.square(apart)
    if not unbiased:
        return reductions.mean(squares, axis, keepdim, name)  # type: ignore[attr-defined]
    dims = [] if axis is None else declare.KINDS["ints"]("paddle.var: axis", axis)
    counts = [x.shape[d] for d in dims or range(len(x.shape))] if x.shape else []
    if any(count < 0 for count in counts):
        raise GraphError(f"paddle.var: unbiased needs known extents, got {x.shape}")
    total = reductions.sum(squares, axis, None, keepdim, name)  # type: ignore[attr-defined]
    return total / max(math.prod(counts) - 1, 1)


def std(
    x: Variable,
    axis: Ints | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the standard deviation over ``axis``."""
    return layers.sqrt(var(x, axis, unbiased, keepdim))


def norm(
    x: Variable, p: Any = "fro", axis: Ints | None = None, keepdim: bool = False, name: Any = None
) -> Variable:
    """Return the p-norm over ``axis`` (None: over all): 'fro' and 2, 1, inf, -inf, any number."""
    if p in ("fro", 2):
        squares = reductions.sum(layers.square(x), axis, None, keepdim)  # type: ignore[attr-defined]
        return layers.sqrt(squares)
    size = layers.abs(x)
    if p == math.inf:
        return reductions.max(size, axis, keepdim)  # type: ignore[attr-defined]
    if p == -math.inf:
        return reductions.min(size, axis, keepdim)  # type: ignore[attr-defined]
    number = declare.KINDS["float"]("paddle.norm: p", p)
    if number == 0:
        present = cast(size > 0.0, x.dtype)
        return reductions.sum(present, axis, None, keepdim)  # type: ignore[attr-defined]
    powers = reductions.sum(pow(size, number), axis, None, keepdim)  # type: ignore[attr-defined]
    return pow(powers, 1.0 / number)


def lerp(x: Variable, y: Variable, weight: Any, name: str | None = None) -> Variable:
    """Return x + weight (y - x)."""
    return x + (y - x) * weight


_SHAPES = {"dot": "x: ...; y: ..."}
__all__ = declare.offered("paddle", globals(), unchecked=["einsum"], shapes=_SHAPES)

"""Traces, norms and distances; sums along one dimension that are kept; truth over dimensions."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import (
    Applied,
    How,
    by_row,
    not_on_rows,
    of_each_row,
    off_rows,
    reduces,
)
from hpcdist.ops.algebra.reduce import infer_reduction, reduced_axes
from hpcdist.ops.common import define_with_grad, resolve_axis, same
from hpcdist.ops.types import ArrayModule, DeviceArray


# -- sums ------------------------------------------------------------------------------------------
def _trace_infer(x: Meta, offset: int, dim1: int, dim2: int) -> Meta:
    axes = {resolve_axis(d, len(x.shape)) for d in (dim1, dim2)}
    if len(axes) < 2:
        raise GraphError(f"a trace needs two dimensions, got {dim1} twice")
    return Meta(tuple(d for i, d in enumerate(x.shape) if i not in axes) or (1,), x.dtype)


def _trace(xp: ArrayModule, x, out, offset: int, dim1: int, dim2: int) -> None:
    first, second = sorted((dim1 % x.ndim, dim2 % x.ndim))  # whatever their order, as Fluid
    out[...] = xp.trace(x, offset, first, second).reshape(out.shape)


def _trace_grad(xp: ArrayModule, x, dout, dx, offset: int, dim1: int, dim2: int) -> None:
    dx.fill(0)
    matrices = xp.moveaxis(dx, sorted((dim1 % x.ndim, dim2 % x.ndim)), (-2, -1))
    rows, columns = matrices.shape[-2:]
    places = xp.arange(max(min(rows + min(offset, 0), columns - max(offset, 0)), 0))
    target = (..., places + max(-offset, 0), places + max(offset, 0))
    matrices[target] = dout.reshape((*matrices.shape[:-2], 1))


def _trace_apart(op: Applied) -> bool:
    return all(op.attrs[d] % op.rank for d in ("dim1", "dim2"))


define_with_grad(
    "trace",
    "Input -> Out",
    "Input, Out@GRAD -> Input@GRAD",
    rows=by_row(apart=_trace_apart),
    attrs={"offset": 0, "dim1": 0, "dim2": 1},
    infer=_trace_infer,
    kernel=_trace,
    grad_kernel=_trace_grad,
)


def _cumulated(xp: ArrayModule, x, axis: int, exclusive: bool, reverse: bool) -> DeviceArray:
    ordered = xp.flip(x, axis) if reverse else x
    summed = xp.cumsum(ordered, axis=axis, dtype=x.dtype)
    if exclusive:
        summed = summed - ordered
    return xp.flip(summed, axis) if reverse else summed


def _cumsum(xp: ArrayModule, x, out, axis: int, exclusive: bool, reverse: bool) -> None:
    out[...] = _cumulated(xp, x, axis, exclusive, reverse)


def _cumsum_grad(xp: ArrayModule, dout, dx, axis: int, exclusive: bool, reverse: bool) -> None:
    dx[...] = _cumulated(xp, dout, axis, exclusive, not reverse)


define_with_grad(
    "cumsum",
    "X -> Out",
    "Out@GRAD -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"axis": -1, "exclusive": False, "reverse": False},
    infer=same,
    kernel=_cumsum,
    grad_kernel=_cumsum_grad,
)


def _lengths(xp: ArrayModule, x, y, p: float) -> DeviceArray:
    gap = xp.absolute(x - y)
    if p == 0:
        return (gap != 0).sum()
    if math.isinf(p):
        return gap.max() if p > 0 else gap.min()
    return (gap**p).sum() ** (1 / p)


def _dist(xp: ArrayModule, x, y, out, p: float) -> None:
    """The p-norm of x - y, either of which is repeated where it has one element."""
    out[...] = _lengths(xp, x, y, p)


def _dist_grad(xp: ArrayModule, x, y, out, dout, dx, dy, p: float) -> None:
    gap = x - y
    if p == 0:
        slope = xp.zeros_like(gap)
    elif math.isinf(p):
        slope = xp.sign(gap) * (xp.absolute(gap) == out)
    else:
        size = xp.absolute(gap)
        slope = xp.sign(gap) * xp.where(size > 0, size, 1) ** (p - 1) * out ** (1 - p)
        slope = xp.where((size > 0) & (out > 0), slope, 0)
    for grad, sign in ((dx, 1), (dy, -1)):
        if grad is not None:
            grad[...] = summed_to(sign * dout * slope, grad.shape)


def summed_to(value, shape: tuple[int, ...]) -> DeviceArray:
    """Sum over the dimensions in which a smaller value was repeated."""
    value = value.sum(tuple(range(value.ndim - len(shape))))
    axes = tuple(i for i, d in enumerate(shape) if d == 1 != value.shape[i])
    return value.sum(axes, keepdims=True) if axes else value


define_with_grad(
    "dist",
    "X, Y -> Out",
    "X, Y, Out, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_row(apart=lambda op: False),
    attrs={"p": 2.0},
    infer=lambda x, y, p: Meta((1,), x.dtype),
    kernel=_dist,
    grad_kernel=_dist_grad,
)


# -- truth over dimensions -------------------------------------------------------------------------
def _reduce_infer(x: Meta, **options) -> Meta:
    return Meta(infer_reduction(x, **options).shape, "bool")


def _truth(name: str) -> Any:
    def kernel(xp: ArrayModule, x, out, dim, keep_dim: bool, reduce_all: bool) -> None:
        axes = reduced_axes(x.ndim, dim, reduce_all)
        out[...] = getattr(xp, name)(x, axis=axes).reshape(out.shape)

    return kernel


for _type, _name, _how in (("reduce_all", "all", How.MIN), ("reduce_any", "any", How.MAX)):
    define(
        _type,
        "X -> Out",
        rows=reduces(_how, along=of_each_row),
        attrs={"dim": (0,), "keep_dim": False, "reduce_all": False},
        infer=_reduce_infer,
        kernel=_truth(_name),
    )


def _allclose(xp: ArrayModule, x, y, out, rtol: float, atol: float, equal_nan: bool) -> None:
    out[...] = xp.allclose(x, y, rtol, atol, equal_nan)


define(
    "allclose",
    "Input, Other -> Out",
    rows=not_on_rows,
    attrs={"rtol": 1e-5, "atol": 1e-8, "equal_nan": False},
    infer=lambda x, y, **_: Meta((1,), "bool"),
    kernel=_allclose,
)

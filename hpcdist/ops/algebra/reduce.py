"""Reductions over some or all dimensions; a reduction over all gives shape (1,)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import How, by_row, of_each_row, off_rows, reduces
from hpcdist.ops.algebra import second_derivatives
from hpcdist.ops.common import define_with_grad, in_sequence, resolve_axis
from hpcdist.ops.types import ArrayModule, Bind, Call

# -- mean of everything: the usual loss ----------------------------------------------------------
_ONE_DOT = 4096  # elements; sums of more are exacter in pairs


def _mean_bind(xp: ArrayModule, x, out) -> Call:
    flat, scalar = x.reshape(-1), out.reshape(())
    if flat.size <= _ONE_DOT:
        # A loss per row of a batch: one call instead of two, and it costs a third.
        shares = xp.full(flat.size, 1 / flat.size, flat.dtype)
        return partial(xp.dot, flat, shares, scalar)
    return in_sequence(
        partial(xp.add.reduce, flat, 0, None, scalar),
        partial(xp.multiply, out, 1 / flat.size, out=out),
    )


def _mean_grad_bind(xp: ArrayModule, x, dout, dx) -> Call:
    """dx = dout / the number of elements."""
    share = xp.full((), 1 / x.size, x.dtype)
    return partial(xp.multiply, dout.reshape(()), share, dx.reshape(-1))


def _infer_mean(x: Meta) -> Meta:
    if x.size == 0:
        raise GraphError(f"no mean of a value of shape {x.shape}: expected at least one row, got 0")
    return Meta((1,), x.dtype)


define_with_grad(
    "mean",
    "X -> Out",
    "X, Out@GRAD -> X@GRAD",
    rows=reduces(How.MEAN),
    infer=_infer_mean,
    bind=_mean_bind,
    grad_bind=_mean_grad_bind,
    grad_grad=second_derivatives.linear("mean"),
    grad_shape_only=("X",),
)


# -- reduce_* ------------------------------------------------------------------------------------
_ATTRS = {"dim": (0,), "keep_dim": False, "reduce_all": False}


def reduced_axes(rank: int, dim: Sequence[int] | int, reduce_all: bool) -> tuple[int, ...]:
    """Return the dimensions to reduce, ascending."""
    dims = [dim] if isinstance(dim, int) else dim
    axes = {resolve_axis(d, rank, "dim") for d in dims}
    if len(axes) < len(dims):
        raise GraphError(f"expected different dimensions, got dim {list(dims)} of {rank}")
    return tuple(range(rank)) if reduce_all else tuple(sorted(axes))


def infer_reduction(x: Meta, dim: Sequence[int], keep_dim: bool, reduce_all: bool) -> Meta:
    """Return x without its reduced dimensions, or with 1 in their place; never less than [1]."""
    axes = reduced_axes(len(x.shape), dim, reduce_all)
    remaining = [(i, d) for i, d in enumerate(x.shape) if keep_dim or i not in axes]
    shape = tuple(1 if i in axes else d for i, d in remaining)
    return Meta(shape or (1,), x.dtype)


def keepdim_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the result as if reduced dimensions were kept."""
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


def _bind(method: str) -> Bind:
    def bind(xp: ArrayModule, x, out, dim: Sequence[int], keep_dim: bool, reduce_all: bool) -> Call:
        axes = reduced_axes(x.ndim, dim, reduce_all)
        target = out.reshape(keepdim_shape(x.shape, axes))
        reduce = partial(getattr(x, method), axis=axes, keepdims=True)
        if xp is not np and method in ("min", "max"):  # CuPy 14.2 takes their out for a dtype
            return lambda: xp.copyto(target, reduce())
        return partial(reduce, out=target)

    return bind


def _with_keepdim(bind_kept: Bind) -> Bind:
    """Give the gradient of a reduction its operands with the reduced dimensions kept."""

    def bind(
        xp: ArrayModule, x, *operands, dim: Sequence[int], keep_dim: bool, reduce_all: bool
    ) -> Call:
        keep_shape = keepdim_shape(x.shape, reduced_axes(x.ndim, dim, reduce_all))
        *inputs, dx = operands
        return bind_kept(xp, x, *(array.reshape(keep_shape) for array in inputs), dx)

    return bind


@_with_keepdim
def _sum_grad_bind(xp: ArrayModule, x, dout, dx) -> Call:
    """dx = dout, for every element that was added."""
    return partial(xp.copyto, dx, dout)


@_with_keepdim
def _mean_of_dims_grad_bind(xp: ArrayModule, x, dout, dx) -> Call:
    """dx = dout / how many elements a mean is of."""
    return partial(xp.multiply, dout, dout.size / x.size, out=dx)


@_with_keepdim
def _chosen_grad_bind(xp: ArrayModule, x, out, dout, dx) -> Call:
    """Every element equal to the maximum (minimum) gets the gradient, as in Fluid."""
    chosen = xp.empty(x.shape, bool)
    return in_sequence(
        partial(xp.equal, x, out, out=chosen), partial(xp.multiply, dout, chosen, out=dx)
    )


@_with_keepdim
def _prod_grad_bind(xp: ArrayModule, x, out, dout, dx) -> Call:
    """dx = dout times the product of the other elements."""
    return in_sequence(
        partial(xp.multiply, dout, out, out=dx), partial(xp.true_divide, dx, x, out=dx)
    )


_BY_SHAPE = "X, Out@GRAD -> X@GRAD"
_BY_VALUE = "X, Out, Out@GRAD -> X@GRAD"
for _type, _method, _slots, _grad_bind, _how in (
    ("reduce_sum", "sum", _BY_SHAPE, _sum_grad_bind, How.SUM),
    ("reduce_mean", "mean", _BY_SHAPE, _mean_of_dims_grad_bind, How.MEAN),
    ("reduce_max", "max", _BY_VALUE, _chosen_grad_bind, How.MAX),
    ("reduce_min", "min", _BY_VALUE, _chosen_grad_bind, How.MIN),
    ("reduce_prod", "prod", _BY_VALUE, _prod_grad_bind, None),
):
    define_with_grad(
        _type,
        "X -> Out",
        _slots,
        rows=reduces(_how, along=of_each_row),
        attrs=_ATTRS,
        infer=infer_reduction,
        bind=_bind(_method),
        grad_bind=_grad_bind,
        grad_grad=second_derivatives.linear(_type) if _slots == _BY_SHAPE else None,
        grad_shape_only=("X",) if _slots == _BY_SHAPE else (),
    )


# -- arg_max, arg_min ------------------------------------------------------------------------------
def _arg_infer(x: Meta, axis: int, keepdims: bool, dtype: str) -> Meta:
    return Meta(infer_reduction(x, [axis], keepdims, False).shape, dtype)


def _arg_bind(method: str) -> Bind:
    def bind(xp: ArrayModule, x, out, axis: int, keepdims: bool, dtype: str) -> Call:
        axis = resolve_axis(axis, x.ndim)
        target = out.reshape(x.shape[:axis] + x.shape[axis + 1 :])

        def run() -> None:
            target[...] = getattr(x, method)(axis)

        return run

    return bind


for _type, _method in (("arg_max", "argmax"), ("arg_min", "argmin")):
    define(
        _type,
        "X -> Out",
        rows=by_row(apart=off_rows("axis")),
        attrs={"axis": 0, "keepdims": False, "dtype": "int64"},
        infer=_arg_infer,
        bind=_arg_bind(_method),
    )

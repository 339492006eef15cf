"""p_norm and frobenius_norm: norms along dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row, of_each_row, off_rows, reduces
from hpcdist.ops.algebra.reduce import infer_reduction, keepdim_shape, reduced_axes
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.types import ArrayModule


def _p_norm_infer(x: Meta, porder: float, axis: int, epsilon: float, keepdim: bool) -> Meta:
    return infer_reduction(x, [axis], keepdim, False)


def _p_norm(
    xp: ArrayModule, x, out, porder: float, axis: int, epsilon: float, keepdim: bool
) -> None:
    """(sum |x|^p)^(1/p); the greatest or least |x| of an infinite p, how many are not 0 of 0."""
    size = xp.absolute(x)
    if porder == 0:
        norm = (size != 0).sum(axis, keepdims=keepdim)
    elif math.isinf(porder):
        norm = (size.max if porder > 0 else size.min)(axis, keepdims=keepdim)
    else:
        norm = (size**porder).sum(axis, keepdims=keepdim) ** (1 / porder)
    out[...] = norm.reshape(out.shape)


def _p_norm_grad(
    xp: ArrayModule, x, out, dout, dx, porder: float, axis: int, epsilon: float, keepdim: bool
) -> None:
    kept = keepdim_shape(x.shape, (axis % x.ndim,))
    size, norm, slope = xp.absolute(x), out.reshape(kept), dout.reshape(kept)
    if porder == 0:
        dx.fill(0)
    elif math.isinf(porder):
        dx[...] = xp.sign(x) * (size == norm) * slope
    else:
        below = xp.where(norm > 0, norm, 1) ** (porder - 1) + epsilon
        power = xp.where(size > 0, xp.where(size > 0, size, 1) ** (porder - 1), 0)
        dx[...] = xp.sign(x) * power / below * slope


define_with_grad(
    "p_norm",
    "X -> Out",
    "X, Out, Out@GRAD -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"porder": 2.0, "axis": -1, "epsilon": 1e-12, "keepdim": False},
    infer=_p_norm_infer,
    kernel=_p_norm,
    grad_kernel=_p_norm_grad,
)


def _frobenius(xp: ArrayModule, x, out, dim: Sequence[int], keep_dim: bool, reduce_all: bool):
    axes = reduced_axes(x.ndim, dim, reduce_all)
    out[...] = xp.sqrt((x * x).sum(axes)).reshape(out.shape)


def _frobenius_grad(
    xp: ArrayModule, x, out, dout, dx, dim: Sequence[int], keep_dim: bool, reduce_all: bool
) -> None:
    kept = keepdim_shape(x.shape, reduced_axes(x.ndim, dim, reduce_all))
    norm, slope = out.reshape(kept), dout.reshape(kept)
    dx[...] = x / xp.where(norm > 0, norm, 1) * slope


define_with_grad(
    "frobenius_norm",
    "X -> Out",
    "X, Out, Out@GRAD -> X@GRAD",
    rows=reduces(None, along=of_each_row),
    attrs={"dim": (0,), "keep_dim": False, "reduce_all": False},
    infer=infer_reduction,
    kernel=_frobenius,
    grad_kernel=_frobenius_grad,
)

"""Mixed precision: values rounded to half precision, and scaled gradients that must be finite."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import by_element, not_on_rows
from hpcdist.ops.common import Wanted, same
from hpcdist.ops.types import Array, ArrayModule, Operands

# Operators that round to 16 bits, and the type whose values they give; kept in float32.
ROUNDINGS = {"round_to_float16": "float16", "round_to_bfloat16": "bfloat16"}


# -- values ----------------------------------------------------------------------------------------
def _round_to_float16(xp: ArrayModule, x, out) -> None:
    """What float16 can hold: 11 significant bits, infinity from 65520 on."""
    if xp is np and x.dtype == np.float32 and x.flags.c_contiguous and out.flags.c_contiguous:
        from hpcdist.ops.optimize import mixed_precision_kernels as kernels  # numba takes long

        bits, rounded = x.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint32)
        kernels.round_to_float16_bits(bits, rounded)
        return
    with np.errstate(over="ignore"):
        out[...] = x.astype(xp.float16)


def _round_to_bfloat16(xp: ArrayModule, x, out) -> None:
    """What bfloat16 can hold: 8 significant bits, and the exponents of float32."""
    from hpcdist.ops.optimize import mixed_precision_kernels as kernels  # numba takes long

    round_bits = kernels.round_to_bfloat16_bits if xp is np else bfloat16_kernel(xp)
    round_bits(x.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint32))


@functools.cache
def bfloat16_kernel(xp: Any) -> Any:
    """Return `round_to_bfloat16_bits` as a kernel of a GPU."""
    from hpcdist.ops.optimize.mixed_precision_kernels import INFINITY

    sign, below_half, one, dropped = map(np.uint32, (0x80000000, 0x7FFF, 1, 16))

    def round_bits(x, out) -> None:
        rounded = ((x + below_half + ((x >> dropped) & one)) >> dropped) << dropped
        out[...] = xp.where((x & ~sign) > INFINITY, x, rounded)

    return xp.fuse(round_bits)


def _single(x: Meta) -> Meta:
    """Round float32 only: what has more digits would be rounded twice."""
    if x.dtype != "float32":
        raise GraphError(f"X: expected float32, got {x.dtype}; cast it to float32")
    return same(x)


def _round_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    """The gradient of a value in half precision is in half precision, too."""
    (x,), (out,) = op.input("X"), op.output("Out")
    slots = {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}
    return [GradOp(op.type, *slots, {})]


def _define_rounding(
    type: str, infer: Callable[[Meta], Meta], kernel: Callable[[Array, Array, Array], None]
) -> None:
    define(
        type,
        "X -> Out",
        rows=by_element(),
        infer=infer,
        kernel=kernel,
        grad=_round_grad,
        inplace={"Out": "X"},
    )


_define_rounding("round_to_float16", same, _round_to_float16)
_define_rounding("round_to_bfloat16", _single, _round_to_bfloat16)


# -- gradients -------------------------------------------------------------------------------------
def _unscale(xp: ArrayModule, xs: Operands, scale, outs: Operands, infinite, zeroes: bool) -> None:
    factor = 1 / scale[0]
    for x, out in zip(xs, outs):
        xp.multiply(x, factor, out=out)
    if not zeroes:
        infinite[...] = False
        return
    if xp is not np:
        _zero_on_device(xp, outs, infinite)
        return
    infinite[0] = not all(bool(xp.isfinite(out).all()) for out in outs)
    if infinite[0]:
        for out in outs:
            out.fill(0)


def _zero_on_device(xp: ArrayModule, outs: Operands, infinite) -> None:
    """Do the same without waiting: the host does not know what is found."""
    infinite.fill(False)
    for out in outs:
        xp.logical_or(infinite, xp.logical_not(xp.isfinite(out).all()), out=infinite)
    for out in outs:
        xp.copyto(out, out.dtype.type(0), where=infinite)


define(
    "check_finite_and_unscale",
    "X*, Scale -> Out*, FoundInfinite",
    rows=not_on_rows,
    attrs={"zeroes": True},
    infer=lambda xs, scale, zeroes: (list(xs), Meta((1,), "bool")),
    kernel=_unscale,
)


def _update(
    xp: ArrayModule,
    infinite,
    scale,
    good,
    bad,
    new_scale,
    new_good,
    new_bad,
    incr_every_n_steps: int,
    decr_every_n_nan_or_inf: int,
    incr_ratio: float,
    decr_ratio: float,
) -> None:
    """Count steps; as Fluid does, change the scale in the step after the last one counted."""
    if xp is not np:
        ratios = map(scale.dtype.type, (incr_ratio, decr_ratio))
        numbers = (*map(good.dtype.type, (incr_every_n_steps, decr_every_n_nan_or_inf)), *ratios)
        loss_scaling_kernel(xp)(infinite, scale, good, bad, new_scale, new_good, new_bad, *numbers)
        return
    value, goods, bads = scale[0], int(good[0]), int(bad[0])
    if infinite[0]:
        goods, bads = 0, bads + 1
        if bads > decr_every_n_nan_or_inf:
            value, bads = max(value * scale.dtype.type(decr_ratio), scale.dtype.type(1)), 0
    else:
        goods, bads = goods + 1, 0
        if goods > incr_every_n_steps:
            with np.errstate(over="ignore"):
                larger = value * scale.dtype.type(incr_ratio)
            value, goods = larger if xp.isfinite(larger) else value, 0
    new_scale[0], new_good[0], new_bad[0] = value, goods, bads


@functools.cache
def loss_scaling_kernel(xp) -> Any:
    """Return `_update` as a kernel of a GPU, which the host does not wait for."""

    def update(
        infinite, scale, good, bad, new_scale, new_good, new_bad, good_limit, bad_limit, up, down
    ) -> None:
        one, none = good_limit.dtype.type(1), good_limit.dtype.type(0)
        lowers = infinite & (bad + one > bad_limit)
        raises = xp.logical_not(infinite) & (good + one > good_limit)
        larger, smaller = scale * up, xp.maximum(scale * down, up.dtype.type(1))
        larger = xp.where(xp.isfinite(larger), larger, scale)
        scale = xp.where(lowers, smaller, xp.where(raises, larger, scale))
        goods = xp.where(infinite | raises, none, good + one)
        bads = xp.where(infinite & xp.logical_not(lowers), bad + one, none)
        new_scale[...], new_good[...], new_bad[...] = scale, goods, bads

    return xp.fuse(update)


define(
    "update_loss_scaling",
    "FoundInfinite, PrevLossScaling, InGoodSteps, InBadSteps -> "
    "LossScaling, OutGoodSteps, OutBadSteps",
    rows=not_on_rows,
    attrs={
        "incr_every_n_steps": 1000,
        "decr_every_n_nan_or_inf": 2,
        "incr_ratio": 2.0,
        "decr_ratio": 0.8,
    },
    infer=lambda infinite, scale, good, bad, **_: (scale, good, bad),
    kernel=_update,
)

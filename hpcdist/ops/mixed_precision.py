"""Mixed precision: values rounded to half precision, and scaled gradients that must be finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.graph.names import grad_name
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import by_element, not_on_rows
from hpcdist.ops.common import Wanted, same
from hpcdist.ops.mixed_precision_kernels import round_bits


# -- values ----------------------------------------------------------------------------------------
def _round(xp: Any, x: Any, out: Any) -> None:
    """What float16 can hold: 11 significant bits, infinity from 65520 on."""
    if xp is np and x.dtype == np.float32 and x.flags.c_contiguous and out.flags.c_contiguous:
        round_bits(x.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint32))
        return
    with np.errstate(over="ignore"):
        out[...] = x.astype(xp.float16)


def _round_grad(op: Any, wanted: Wanted) -> list[GradOp]:
    """The gradient of a value in half precision is in half precision, too."""
    (x,), (out,) = op.input("X"), op.output("Out")
    slots = {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}
    return [GradOp("round_to_float16", *slots, {})]


define(
    "round_to_float16",
    "X -> Out",
    rows=by_element(),
    infer=same,
    kernel=_round,
    grad=_round_grad,
    inplace={"Out": "X"},
)


# -- gradients -------------------------------------------------------------------------------------
def _unscale(
    xp: Any, xs: Sequence[Any], scale: Any, outs: Sequence[Any], found: Any, zeroes: bool
) -> None:
    factor = 1 / scale[0]
    for x, out in zip(xs, outs):
        xp.multiply(x, factor, out=out)
    if not zeroes:
        found[0] = False
        return
    found[0] = not all(bool(xp.isfinite(out).all()) for out in outs)
    if found[0]:
        for out in outs:
            out.fill(0)


define(
    "check_finite_and_unscale",
    "X*, Scale -> Out*, FoundInfinite",
    rows=not_on_rows,
    attrs={"zeroes": True},
    infer=lambda xs, scale, zeroes: (list(xs), Meta((1,), "bool")),
    kernel=_unscale,
)


def _update(
    xp: Any,
    found: Any,
    scale: Any,
    good: Any,
    bad: Any,
    new_scale: Any,
    new_good: Any,
    new_bad: Any,
    incr_every_n_steps: int,
    decr_every_n_nan_or_inf: int,
    incr_ratio: float,
    decr_ratio: float,
) -> None:
    """Count steps; as Fluid does, change the scale in the step behind the last one counted."""
    value, goods, bads = scale[0], int(good[0]), int(bad[0])
    if found[0]:
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
    infer=lambda found, scale, good, bad, **_: (scale, good, bad),
    kernel=_update,
)

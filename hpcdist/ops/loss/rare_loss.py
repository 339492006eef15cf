"""Losses for which Fluid has operators, but no layers: hinge, modified Huber, distances, nll_loss.

Models that other programs have built use them.
"""

from __future__ import annotations

import math

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import (
    Applied,
    How,
    MixesRows,
    OfRows,
    Result,
    broadcast,
    by_element,
    each_row,
    linear,
    reduces,
)
from hpcdist.ops.common import define_with_grad, fits, put_along, same
from hpcdist.ops.formulas import define_by_formulas
from hpcdist.ops.types import Array, ArrayModule, Metas


def _alike(x: Meta, y: Meta) -> Meta:
    if not fits(x.shape, y.shape):
        raise GraphError(f"operands of shapes {x.shape} and {y.shape}, expected the same")
    return same(x)


define_by_formulas(
    "minus",
    "X, Y -> Out",
    "Out@GRAD -> X@GRAD?, Y@GRAD?",
    lambda xp, x, y: x - y,
    lambda xp, dout: (dout, -dout),
    rows=by_element(totals=linear),
    infer=_alike,
    grad_infer=lambda dout: (same(dout), same(dout)),
)


# -- of a score and a label, 0 or 1 ----------------------------------------------------------------
def _hinge_loss_grad(xp: ArrayModule, logits, labels, dloss) -> Array:
    sign = 2 * labels - 1
    return xp.where(sign * logits < 1, -sign * dloss, xp.zeros_like(dloss))


define_by_formulas(
    "hinge_loss",
    "Logits, Labels -> Loss",
    "Logits, Labels, Loss@GRAD -> Logits@GRAD",
    lambda xp, logits, labels: xp.clip(1 - (2 * labels - 1) * logits, 0, None),
    _hinge_loss_grad,
    rows=by_element(),
    infer=_alike,
)


def _modified_huber_loss(xp: ArrayModule, x, y) -> tuple[Array, Array]:
    """z = x (2 y - 1); out = -4 z below -1, (1 - z)^2 up to 1, 0 above (Zhang, 2004)."""
    z = x * (2 * y - 1)
    square = xp.clip(1 - z, 0, None) ** 2
    return z, xp.where(z < -1, -4 * z, square)


def _modified_huber_loss_grad(xp: ArrayModule, y, z, dout) -> Array:
    slope = -2 * xp.clip(1 - z, 0, 2)
    return slope * (2 * y - 1) * dout


define_by_formulas(
    "modified_huber_loss",
    "X, Y -> IntermediateVal, Out",
    "Y, IntermediateVal, Out@GRAD -> X@GRAD",
    _modified_huber_loss,
    _modified_huber_loss_grad,
    rows=by_element(),
    infer=lambda x, y: (_alike(x, y), same(x)),
)


# -- distances -------------------------------------------------------------------------------------
def _squared_distance_infer(x: Meta, y: Meta) -> Metas:
    if not (fits(x.shape[1:], y.shape[1:]) and y.shape[:1] in (x.shape[:1], (1,), (-1,))):
        raise GraphError(
            f"rows of {x.shape} and {y.shape}: expected as many, or one in the second, of one shape"
        )
    width = -1 if -1 in x.shape[1:] else math.prod(x.shape[1:])
    return Meta((x.shape[0], width), x.dtype), Meta((x.shape[0], 1), x.dtype)


def _squared_distance(xp: ArrayModule, x, y) -> tuple[Array, Array]:
    """Square of the distance of each row of X from that of Y, or from its only one."""
    gap = (x - y).reshape(x.shape[0], -1)
    return gap, (gap * gap).sum(1, keepdims=True)


def _squared_distance_grad(xp: ArrayModule, x, y, gap, dout) -> tuple[Array, Array]:
    slope = (2 * gap * dout).reshape(x.shape)
    of_y = slope if y.shape[0] == x.shape[0] else slope.sum(0, keepdims=True)
    return slope, -of_y


define_by_formulas(
    "squared_l2_distance",
    "X, Y -> sub_result, Out",
    "X, Y, sub_result, Out@GRAD -> X@GRAD?, Y@GRAD?",
    _squared_distance,
    _squared_distance_grad,
    rows=broadcast(),
    infer=_squared_distance_infer,
)
define_by_formulas(
    "l1_norm",
    "X -> Out",
    "X, Out@GRAD -> X@GRAD",
    lambda xp, x: xp.abs(x).sum().reshape(1),
    lambda xp, x, dout: xp.sign(x) * dout,
    rows=reduces(How.SUM),
    infer=lambda x: Meta((1,), x.dtype),
)


# -- nll_loss: minus the logarithm that is given for the label's class -----------------------------
def _nll_infer(x: Meta, label: Meta, weight: Meta | None, reduction: str, **_) -> Metas:
    if len(x.shape) not in (2, 4) or not fits((x.shape[0], *x.shape[2:]), label.shape):
        raise GraphError(f"nll_loss: {x.shape} needs labels of {(x.shape[0], *x.shape[2:])}")
    if weight is not None and not fits(weight.shape, x.shape[1:2]):
        raise GraphError(f"nll_loss: {x.shape[1]} classes need as many weights: {weight.shape}")
    if reduction not in ("mean", "sum", "none"):
        raise GraphError(f"nll_loss: reduction {reduction!r}, expected 'mean', 'sum' or 'none'")
    shape = label.shape if reduction == "none" else (1,)
    return Meta(shape, x.dtype), Meta((1,), x.dtype)


def _weights(xp: ArrayModule, x, label, weight, ignore_index: int) -> tuple[Array, Array]:
    """Return the labels as places among the classes, and the weight of each; 0 of those ignored."""
    counted = label != ignore_index
    place = xp.where(counted, label, 0)
    of_each = xp.ones(label.shape, x.dtype) if weight is None else weight[place]
    return xp.expand_dims(place, 1), xp.where(counted, of_each, 0)


def _nll_loss(
    xp: ArrayModule, x, label, weight, out, total, reduction: str, ignore_index: int
) -> None:
    place, of_each = _weights(xp, x, label, weight, ignore_index)
    if ((place < 0) | (place >= x.shape[1])).any():
        raise GraphError(f"nll_loss: labels outside the {x.shape[1]} classes")
    losses = -xp.take_along_axis(x, place, 1)[:, 0] * of_each
    if total is not None:
        total[...] = 0 if reduction == "none" else of_each.sum()
    if reduction == "none":
        out[...] = losses
    else:
        out[...] = losses.sum() / (of_each.sum() if reduction == "mean" else 1)


def _nll_loss_grad(
    xp: ArrayModule, x, label, weight, total, dout, dx, reduction: str, ignore_index: int
) -> None:
    place, of_each = _weights(xp, x, label, weight, ignore_index)
    slope = -of_each * dout / (total if reduction == "mean" else 1)
    dx.fill(0)
    put_along(xp, dx, place, xp.expand_dims(slope, 1), 1)


def _nll_rows(op: Applied) -> Result:
    of = each_row(op, "X", "Label")
    if op.attrs["reduction"] == "none":
        return {"Out": of}
    if op.attrs["reduction"] == "sum":
        return {"Out": OfRows(How.SUM), "Total_weight": OfRows(How.SUM)}
    raise MixesRows("it is a mean over the labels that count")


define_with_grad(
    "nll_loss",
    "X, Label, Weight? -> Out, Total_weight?",
    "X, Label, Weight?, Total_weight, Out@GRAD -> X@GRAD",
    rows=_nll_rows,
    attrs={"reduction": "mean", "ignore_index": -100},
    infer=_nll_infer,
    kernel=_nll_loss,
    grad_kernel=_nll_loss_grad,
)

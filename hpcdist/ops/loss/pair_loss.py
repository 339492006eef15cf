"""Losses of pairs, ranks, centers and clicks; and the divergence of two distributions."""

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
    by_element,
    by_row,
    common_rows,
    each_row,
)
from hpcdist.ops.common import define_with_grad, put_along, same
from hpcdist.ops.embedding.run_kernels import add_at
from hpcdist.ops.formulas import define_by_formulas, sigmoid, softplus
from hpcdist.ops.loss.labels import range_check
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, DeviceArray, Operands


def _column(x: Meta) -> Meta:
    return Meta((*x.shape[:-1], 1), x.dtype)


# -- of the scores of a row ------------------------------------------------------------------------
def _margins(xp: ArrayModule, x, label) -> DeviceArray:
    range_check(xp, label, x.shape[1], "bpr_loss", "classes")()
    return x - xp.take_along_axis(x, label.reshape(-1, 1), 1)


def _bpr_loss(xp: ArrayModule, x, label, y) -> None:
    """Mean over the other classes of log(1 + exp(x_j - x_label)) (Hidasi et al., 2016)."""
    terms = softplus(xp, _margins(xp, x, label))
    put_along(xp, terms, label.reshape(-1, 1), 0, 1)
    y[...] = (terms.sum(1) / (x.shape[1] - 1)).reshape(y.shape)


def _bpr_loss_grad(xp: ArrayModule, x, label, dy, dx) -> None:
    slope = sigmoid(xp, _margins(xp, x, label))
    labels = label.reshape(-1, 1)
    put_along(xp, slope, labels, 0, 1)
    put_along(xp, slope, labels, -slope.sum(1, keepdims=True), 1)
    dx[...] = slope * dy.reshape(-1, 1) / (x.shape[1] - 1)


def _bpr_infer(x: Meta, label: Meta) -> Meta:
    if len(x.shape) != 2 or (label.size not in (x.shape[0], -1) and x.shape[0] >= 0):
        raise GraphError(f"scores {x.shape} need one label for each row, got {label.shape}")
    return _column(x)


define_with_grad(
    "bpr_loss",
    "X, Label -> Y",
    "X, Label, Y@GRAD -> X@GRAD",
    rows=by_row(),
    infer=_bpr_infer,
    kernel=_bpr_loss,
    grad_kernel=_bpr_loss_grad,
)


# -- of two scores ---------------------------------------------------------------------------------
def _rank_loss(xp: ArrayModule, label, left, right) -> Array:
    """out = log(1 + exp(left - right)) - label (left - right) (RankNet, Burges et al., 2005)."""
    return softplus(xp, left - right) - label * (left - right)


def _rank_loss_grad(xp: ArrayModule, label, left, right, dout) -> tuple[Array, Array]:
    slope = dout * (sigmoid(xp, left - right) - label)
    return slope, -slope


define_by_formulas(
    "rank_loss",
    "Label, Left, Right -> Out",
    "Label, Left, Right, Out@GRAD -> Left@GRAD?, Right@GRAD?",
    _rank_loss,
    _rank_loss_grad,
    rows=by_element(),
    infer=shaped("Label: ...; Left: ...; Right: ...", lambda label, left, right: same(left)),
)


def _margin_rank_loss(xp: ArrayModule, x1, x2, label, margin: float) -> tuple[Array, Array]:
    """out = max(0, margin - label (x1 - x2))."""
    raw = margin - label * (x1 - x2)
    return xp.where(raw > 0, 1.0, xp.zeros_like(raw)), xp.clip(raw, 0, None)


def _margin_rank_loss_grad(
    xp: ArrayModule, label, activated, dout, margin: float
) -> tuple[Array, Array]:
    slope = dout * activated * label
    return -slope, slope


define_by_formulas(
    "margin_rank_loss",
    "X1, X2, Label -> Activated, Out",
    "Label, Activated, Out@GRAD -> X1@GRAD?, X2@GRAD?",
    _margin_rank_loss,
    _margin_rank_loss_grad,
    rows=by_element(),
    attrs={"margin": 0.0},
    infer=shaped(
        "X1: ...; X2: ...; Label: ...", lambda x1, x2, label, margin: (same(x1), same(x1))
    ),
    grad_infer=lambda label, activated, dout, margin: (same(dout), same(dout)),
)


# -- center_loss: distances from learned centers of classes ----------------------------------------
def _center_loss(
    xp: ArrayModule,
    x,
    label,
    centers,
    rate,
    centers_out,
    difference,
    loss,
    cluster_num: int,
    need_update: bool,
) -> None:
    """loss = |x - its center|^2 / 2; centers move towards their rows (Wen et al., 2016)."""
    range_check(xp, label, len(centers), "center_loss", "centers")()
    classes = label.reshape(-1)
    difference[...] = x - centers[classes]
    loss[...] = 0.5 * (difference**2).sum(1, keepdims=True)
    if centers_out is None:
        return
    if centers_out is not centers:
        centers_out[...] = centers
    if need_update:
        moves = xp.zeros_like(centers)
        counts = xp.ones((len(centers), 1), centers.dtype)
        add_at(xp, moves, (classes,), difference)
        xp.add.at(counts, classes, 1)  # integers: in any order
        centers_out += rate.reshape(()) * moves / counts


def _center_loss_grad(
    xp: ArrayModule, difference, dloss, dx, cluster_num: int, need_update: bool
) -> None:
    xp.multiply(difference, dloss, out=dx)


def _center_rows(op: Applied) -> dict[str, OfRows]:
    if op.attrs["need_update"]:
        raise MixesRows("the centers move towards the rows of the whole batch")
    of = each_row(op, "X", "Label")
    return {"SampleCenterDiff": of, "Loss": of}


define_with_grad(
    "center_loss",
    "X, Label, Centers, CenterUpdateRate -> CentersOut, SampleCenterDiff, Loss",
    "SampleCenterDiff, Loss@GRAD -> X@GRAD",
    rows=_center_rows,
    attrs={"cluster_num": 1, "need_update": True},
    infer=shaped(
        "X: n d; Label: n 1; Centers: c d; CenterUpdateRate: 1",
        lambda x, label, centers, rate, **_: (same(centers), same(x), _column(x)),
    ),
    kernel=_center_loss,
    grad_kernel=_center_loss_grad,
    grad_infer=lambda difference, dloss, **_: same(difference),
)


# -- clicks and what a teacher says of them --------------------------------------------------------
def _teacher_student(xp: ArrayModule, x, label, **_: float) -> Array:
    """The cross entropy with the click, plus that with the teacher's value z if there is one.

    label: -2 no click, -1 click, both without a teacher; z no click, 1 + z click.
    """
    # softplus(x) in two parts: x - x of a click is 0 without rounding what is far smaller.
    above, rest = xp.clip(x, 0, None), xp.log1p(xp.exp(-xp.abs(x)))
    click = ((label >= -1) & (label < 0)) | (label >= 1)
    value = xp.where(label < 1, label, label - 1)
    return above - x * click + rest + xp.where(label >= 0, above - x * value + rest, 0)


def _teacher_student_grad(
    xp: ArrayModule, x, label, dy, soft_max_up_bound: float, soft_max_lower_bound: float
) -> Array:
    chance = sigmoid(xp, xp.clip(x, soft_max_lower_bound, soft_max_up_bound))
    untaught = xp.where(label < -1, -chance, 1 - chance)
    slope = xp.where(label < 0, untaught, label - 2 * chance)
    inside = (x > soft_max_lower_bound) & (x < soft_max_up_bound)
    return -slope * inside * dy


define_by_formulas(
    "teacher_student_sigmoid_loss",
    "X, Label -> Y",
    "X, Label, Y@GRAD -> X@GRAD",
    _teacher_student,
    _teacher_student_grad,
    rows=by_element(),
    attrs={"soft_max_up_bound": 15.0, "soft_max_lower_bound": -15.0},
    infer=shaped("X: n 1; Label: n 1", lambda x, *_, **__: same(x)),
)


def with_click_rate(xp: ArrayModule, x, cvm, y, use_cvm: bool) -> None:
    """Shows and clicks, the first two columns, become log(shows + 1) and log of the click rate."""
    if not use_cvm:
        y[...] = x[:, 2:]
        return
    y[...] = x
    y[:, 0] = xp.log(x[:, 0] + 1)
    y[:, 1] = xp.log(x[:, 1] + 1) - y[:, 0]


def _cvm_grad(xp: ArrayModule, x, cvm, dy, dx, use_cvm: bool) -> None:
    """Shows and clicks themselves go back, as Fluid has it: tables count with them."""
    dx[:, :2] = cvm
    dx[:, 2:] = dy[:, 2:] if use_cvm else dy


define_with_grad(
    "cvm",
    "X, CVM -> Y",
    "X, CVM, Y@GRAD -> X@GRAD",
    rows=by_row(),
    attrs={"use_cvm": True},
    infer=shaped(
        "X: n d; CVM: n 2",
        lambda x, cvm, use_cvm: Meta((x.shape[0], x.shape[1] - (not use_cvm) * 2), x.dtype),
    ),
    kernel=with_click_rate,
    grad_kernel=_cvm_grad,
)


# -- kldiv_loss ------------------------------------------------------------------------------------
_REDUCTIONS = ("none", "mean", "sum", "batchmean")


def _kldiv_infer(x: Meta, target: Meta, reduction: str) -> Meta:
    if reduction not in _REDUCTIONS:
        raise GraphError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
    return same(x) if reduction == "none" else Meta((1,), x.dtype)


def _shares(x, reduction: str) -> int:
    """Return by what the sum of all elements is divided."""
    return {"mean": math.prod(x.shape), "batchmean": len(x)}.get(reduction, 1)


def _kldiv(xp: ArrayModule, x, target, reduction: str) -> Array:
    """target (log(target) - x), where x is the logarithm of what is to be like the target."""
    positive = target > 0
    each = xp.where(positive, target * (xp.log(xp.where(positive, target, 1)) - x), 0)
    return each if reduction == "none" else (each.sum() / _shares(x, reduction)).reshape(1)


def _kldiv_grad(xp: ArrayModule, x, target, dloss, reduction: str) -> Array:
    return -xp.clip(target, 0, None) * dloss / _shares(x, reduction)


def _kldiv_rows(op: Applied) -> Result:
    of = by_element()(op)
    if op.attrs["reduction"] == "none":
        return of
    if op.attrs["reduction"] == "sum":
        return OfRows(How.SUM)
    of = common_rows(op, op.operands, {How.ROWS, How.RAGGED})
    op.align(of.sequences, of.sequences)
    return OfRows(How.MEAN, of.sequences)


define_by_formulas(
    "kldiv_loss",
    "X, Target -> Loss",
    "X, Target, Loss@GRAD -> X@GRAD",
    _kldiv,
    _kldiv_grad,
    rows=_kldiv_rows,
    attrs={"reduction": "mean"},
    infer=shaped("X: ...; Target: ...", _kldiv_infer),
)


# -- sigmoid_focal_loss: cross entropy of each class that counts hard examples more ----------------
def _focal_parts(xp: ArrayModule, x, label, count, gamma: float, alpha: float) -> Operands:
    """Return the probability, its falling logarithm, and weights of both kinds of classes."""
    classes = xp.arange(1, x.shape[1] + 1)
    foreground = xp.maximum(count.reshape(()), 1)
    hit = (label.reshape(-1, 1) == classes) * (alpha / foreground)
    misses = (label.reshape(-1, 1) != -1) & (label.reshape(-1, 1) != classes)
    return sigmoid(xp, x), -softplus(xp, x), hit, misses * ((1 - alpha) / foreground)


def _focal(xp: ArrayModule, x, label, count, out, gamma: float, alpha: float) -> None:
    """Lin et al., 2017; label 0 is the background, -1 does not count."""
    p, log_miss, hit, miss = _focal_parts(xp, x, label, count, gamma, alpha)
    log_hit = -softplus(xp, -x)
    out[...] = -(hit * (1 - p) ** gamma * log_hit + miss * p**gamma * log_miss)


def _focal_grad(xp: ArrayModule, x, label, count, dout, dx, gamma: float, alpha: float) -> None:
    p, log_miss, hit, miss = _focal_parts(xp, x, label, count, gamma, alpha)
    log_hit = -softplus(xp, -x)
    up = hit * (1 - p) ** gamma * (1 - p - gamma * p * log_hit)
    down = miss * p**gamma * (gamma * (1 - p) * log_miss - p)
    dx[...] = -(up + down) * dout


define_with_grad(
    "sigmoid_focal_loss",
    "X, Label, FgNum -> Out",
    "X, Label, FgNum, Out@GRAD -> X@GRAD",
    rows=by_row("X", "Label"),
    attrs={"gamma": 2.0, "alpha": 0.25},
    infer=shaped("X: n classes; Label: n 1; FgNum: 1", lambda x, *_, **__: same(x)),
    kernel=_focal,
    grad_kernel=_focal_grad,
)

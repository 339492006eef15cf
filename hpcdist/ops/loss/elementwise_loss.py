"""Losses per element: binary, robust regression; and the smoothing of labels."""

from __future__ import annotations

import math
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_element, by_row, of_matrices
from hpcdist.ops.common import define_with_grad, fits, in_sequence, same
from hpcdist.ops.formulas import define_by_formulas
from hpcdist.ops.loss.labels import put_where
from hpcdist.ops.types import Array, ArrayModule, Call, Metas


def _elementwise_infer(x: Meta, y: Meta, **_) -> Meta:
    """Shape rule of losses per element: both operands of one shape."""
    if not fits(x.shape, y.shape):
        raise GraphError(f"predictions of shape {x.shape} do not fit labels of shape {y.shape}")
    return same(x)


def _counted(
    xp: ArrayModule, label, ignore_index: int, normalize: bool
) -> tuple[Array, Array, list[Call]]:
    """Return the mask of ignored labels, the number of others, and the calls that fill both.

    The number is only counted if it is to ``normalize``.
    """
    ignored = xp.empty(label.shape, bool)
    count = xp.empty((), label.dtype)
    calls: list[Call] = [partial(xp.equal, label, ignore_index, ignored)]
    if normalize:
        calls += [
            partial(ignored.sum, dtype=label.dtype, out=count),
            partial(xp.subtract, label.size, count, count),
            partial(xp.maximum, count, 1e-5, out=count),
        ]
    return ignored, count, calls


def _sigmoid_ce_bind(xp: ArrayModule, x, label, out, ignore_index: int, normalize: bool) -> Call:
    """Write max(x, 0) - x label + log(1 + exp(-|x|)), which does not overflow."""
    ignored, count, calls = _counted(xp, label, ignore_index, normalize)
    part, product = (xp.empty(x.shape, x.dtype) for _ in range(2))
    calls += [
        partial(xp.abs, x, out),
        partial(xp.negative, out, out),
        partial(xp.exp, out, out),
        partial(xp.log1p, out, out),
        partial(xp.multiply, x, label, product),
        partial(xp.maximum, x, 0, out=part),
        partial(xp.subtract, part, product, part),  # exact for labels 0 and 1
        partial(xp.add, out, part, out),
        put_where(xp, out, 0, ignored),
    ]
    if normalize:
        calls.append(partial(xp.divide, out, count, out))
    return in_sequence(*calls)


def _sigmoid_ce_grad_bind(
    xp: ArrayModule, x, label, dout, dx, ignore_index: int, normalize: bool
) -> Call:
    """Write (sigmoid(x) - label) dout."""
    ignored, count, calls = _counted(xp, label, ignore_index, normalize)
    calls += [
        partial(xp.negative, x, dx),
        partial(xp.minimum, dx, 80, out=dx),  # exp of more overflows
        partial(xp.exp, dx, dx),
        partial(xp.add, dx, 1, dx),
        partial(xp.divide, 1, dx, dx),
        partial(xp.subtract, dx, label, dx),
        partial(xp.multiply, dx, dout, dx),
        put_where(xp, dx, 0, ignored),
    ]
    if normalize:
        calls.append(partial(xp.divide, dx, count, dx))
    return in_sequence(*calls)


_SCE_ATTRS = {"ignore_index": -100, "normalize": False}
define_with_grad(
    "sigmoid_cross_entropy_with_logits",
    "X, Label -> Out",
    "X, Label, Out@GRAD -> X@GRAD",
    rows=by_row(apart=lambda op: not op.attrs["normalize"]),
    attrs=_SCE_ATTRS,
    infer=_elementwise_infer,
    bind=_sigmoid_ce_bind,
    grad_infer=same,
    grad_bind=_sigmoid_ce_grad_bind,
)


def _log_loss(xp: ArrayModule, p, label, epsilon: float) -> Array:
    """Return -label log(p + epsilon) - (1 - label) log(1 - p + epsilon)."""
    return xp.log(1 + epsilon - p) * (label - 1) - xp.log(p + epsilon) * label


def _log_loss_grad(xp: ArrayModule, p, label, dloss, epsilon: float) -> Array:
    return ((1 - label) / (1 + epsilon - p) - label / (p + epsilon)) * dloss


define_by_formulas(
    "log_loss",
    "Predicted, Labels -> Loss",
    "Predicted, Labels, Loss@GRAD -> Predicted@GRAD",
    _log_loss,
    _log_loss_grad,
    by_element=True,
    rows=by_element(),
    attrs={"epsilon": 1e-4},
    infer=_elementwise_infer,
    grad_infer=same,
)


# -- cross entropy of probabilities, as Paddle 2 bounds it -----------------------------------------
_LEAST_LOG = -100.0
_LEAST_CHANCE = 1e-45  # whose logarithm is below that
_LEAST_VARIANCE = 1e-12


def _bce_kernel(xp: ArrayModule, p, label, out) -> None:
    """Write -label log(p) - (1 - label) log(1 - p), logarithms not below -100."""
    hit, miss = (
        xp.maximum(xp.log(xp.maximum(chance, _LEAST_CHANCE)), _LEAST_LOG) for chance in (p, 1 - p)
    )
    xp.subtract((label - 1) * miss, label * hit, out=out)


def _bce_grad_kernel(xp: ArrayModule, p, label, dout, dp) -> None:
    """Write dout (p - label) / max(p (1 - p), 1e-12)."""
    xp.divide(dout * (p - label), xp.maximum(p * (1 - p), _LEAST_VARIANCE), out=dp)


define_with_grad(
    "bce_loss",
    "X, Label -> Out",
    "X, Label, Out@GRAD -> X@GRAD",
    rows=by_element(),
    infer=_elementwise_infer,
    kernel=_bce_kernel,
    grad_infer=same,
    grad_kernel=_bce_grad_kernel,
)

# -- robust regression ---------------------------------------------------------------------------


def _huber(xp: ArrayModule, x, y, residual, out, delta: float) -> None:
    """Write r^2 / 2 where |r| <= delta, else delta (|r| - delta / 2), for r = y - x.

    That is c (|r| - c / 2) with c = min(|r|, delta).
    """
    xp.subtract(y, x, out=residual)
    size = xp.abs(residual)
    near = xp.minimum(size, delta)
    xp.multiply(near, -0.5, out=out)
    xp.add(out, size, out=out)
    xp.multiply(out, near, out=out)


def _huber_grad(xp: ArrayModule, residual, dout, dx, dy, delta: float) -> None:
    """dy = clip(r, -delta, delta) dout;  dx = -dy."""
    first = dx if dx is not None else dy
    xp.clip(residual, -delta, delta, out=first)
    xp.multiply(first, dout, out=first)
    if dx is not None:
        if dy is not None:
            xp.copyto(dy, dx)
        xp.negative(dx, out=dx)


define_with_grad(
    "huber_loss",
    "X, Y -> Residual, Out",
    "Residual, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_element(),
    attrs={"delta": 1.0},
    infer=lambda x, y, **_: (_elementwise_infer(x, y), same(x)),
    kernel=_huber,
    grad_infer=lambda residual, dout, **_: (same(residual), same(residual)),
    grad_kernel=_huber_grad,
)


def _smooth_l1_infer(x: Meta, y: Meta, inside, outside, sigma: float) -> Metas:
    _elementwise_infer(x, y)
    for weight in (inside, outside):
        if weight is not None:
            _elementwise_infer(x, weight)
    return same(x), Meta((x.shape[0], 1), x.dtype)


def _smooth_l1(xp: ArrayModule, x, y, inside, outside, diff, out, sigma: float) -> None:
    """Sum per row: (sigma d)^2 / 2 where |d| < 1 / sigma^2, else |d| - 1 / (2 sigma^2)."""
    xp.subtract(x, y, out=diff)
    if inside is not None:
        xp.multiply(diff, inside, out=diff)
    size = xp.abs(diff)
    near = xp.minimum(size, 1 / sigma**2)
    error = (size - near / 2) * near * sigma**2
    if outside is not None:
        error *= outside
    error.reshape(len(error), math.prod(error.shape[1:])).sum(1, None, out, True)


def _smooth_l1_grad(xp: ArrayModule, inside, outside, diff, dout, dx, dy, sigma: float) -> None:
    """dx = inside outside clip(sigma^2 diff, -1, 1) dout;  dy = -dx."""
    slope = xp.clip(diff * sigma**2, -1, 1)
    for weight in (inside, outside):
        if weight is not None:
            slope *= weight
    slope *= dout.reshape(-1, *[1] * (slope.ndim - 1))
    if dx is not None:
        xp.copyto(dx, slope)
    if dy is not None:
        xp.negative(slope, out=dy)


define_with_grad(
    "smooth_l1_loss",
    "X, Y, InsideWeight?, OutsideWeight? -> Diff, Out",
    "InsideWeight?, OutsideWeight?, Diff, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_row(),
    attrs={"sigma": 1.0},
    infer=_smooth_l1_infer,
    kernel=_smooth_l1,
    grad_infer=lambda inside, outside, diff, dout, **_: (same(diff), same(diff)),
    grad_kernel=_smooth_l1_grad,
)

# -- label_smooth --------------------------------------------------------------------------------


def _label_smooth_infer(x: Meta, prior: Meta | None, epsilon: float) -> Meta:
    if prior is not None and not fits((prior.size,), x.shape[-1:]):
        raise GraphError(f"PriorDist: expected {x.shape[-1]} numbers, got {list(prior.shape)}")
    return same(x)


def _label_smooth(xp: ArrayModule, x, prior, out, epsilon: float) -> None:
    """out = (1 - epsilon) x + epsilon prior; without a prior 1 / classes."""
    xp.multiply(x, 1 - epsilon, out=out)
    xp.add(out, epsilon / x.shape[-1] if prior is None else epsilon * prior, out=out)


define_with_grad(
    "label_smooth",
    "X, PriorDist? -> Out",
    "Out@GRAD -> X@GRAD",
    rows=by_row("X", apart=of_matrices),
    attrs={"epsilon": 0.0},
    infer=_label_smooth_infer,
    kernel=_label_smooth,
    grad_infer=same,
    grad_kernel=lambda xp, dout, dx, epsilon: xp.multiply(dout, 1 - epsilon, out=dx),
)

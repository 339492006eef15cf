"""Softmax, alone and joined with the cross entropy."""

from __future__ import annotations

from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row, off_rows
from hpcdist.ops.common import define_with_grad, fits, in_sequence, resolve_axis, same
from hpcdist.ops.loss.labels import HardLabels, put_where, take
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Metas

# Exponents below this count as this, as in Fluid: no probability is 0, so its log is finite.
FLOOR = -64.0


def _keepdims(xp: ArrayModule, x, axis: int) -> DeviceArray:
    shape = list(x.shape)
    shape[axis] = 1
    return xp.empty(tuple(shape), x.dtype)


def softmax_calls(xp: ArrayModule, x, out, axis: int) -> list[Call]:
    """Return the calls that write the softmax of ``x`` into ``out``, which may be ``x``."""
    per_row = _keepdims(xp, x, axis)
    return [
        partial(x.max, axis, per_row, True),
        partial(xp.subtract, x, per_row, out),
        partial(xp.maximum, out, FLOOR, out=out),
        partial(xp.exp, out, out),
        partial(out.sum, axis, None, per_row, True),
        partial(xp.divide, out, per_row, out),
    ]


def negative_log(xp: ArrayModule, x, out) -> list[Call]:
    """Return the calls that write -log(x), 1e20 where x is 0, into ``out``."""
    zero = xp.empty(x.shape, bool)
    return [
        partial(xp.equal, x, 0, zero),
        partial(xp.maximum, x, xp.finfo(x.dtype).smallest_subnormal, out=out),
        partial(xp.log, out, out),
        partial(xp.negative, out, out),
        put_where(xp, out, 1e20, zero),
    ]


def _softmax_infer(x: Meta, axis: int) -> Meta:
    resolve_axis(axis, len(x.shape))
    return same(x)


def _softmax_bind(xp: ArrayModule, x, out, axis: int) -> Call:
    return in_sequence(*softmax_calls(xp, x, out, axis))


def _softmax_grad_bind(xp: ArrayModule, out, dout, dx, axis: int) -> Call:
    """dx = out (dout - sum(out dout))."""
    per_row = _keepdims(xp, out, axis)
    return in_sequence(
        partial(xp.multiply, out, dout, dx),
        partial(dx.sum, axis, None, per_row, True),
        partial(xp.subtract, dout, per_row, dx),
        partial(xp.multiply, dx, out, dx),
    )


define_with_grad(
    "softmax",
    "X -> Out",
    "Out, Out@GRAD -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"axis": -1},
    infer=_softmax_infer,
    bind=_softmax_bind,
    inplace={"Out": "X"},
    grad_infer=same,
    grad_bind=_softmax_grad_bind,
)


def check_labels(x: Meta, label: Meta, soft_label: bool, axis: int = -1) -> None:
    """Raise GraphError unless labels fit scores: like them (soft), or 1 class index in ``axis``."""
    axis = resolve_axis(axis, len(x.shape))
    want = list(x.shape)
    if not soft_label:
        want[axis] = 1
    if not fits(label.shape, want):
        kind = "soft" if soft_label else "hard"
        raise GraphError(
            f"scores of shape {x.shape} need {kind} labels "
            f"of shape {tuple(want)}, got {label.shape}"
        )
    if label.dtype.startswith("float") != soft_label:
        kind = "soft labels of a float dtype" if soft_label else "hard labels of an integer dtype"
        raise GraphError(f"scores need {kind}, got {label.dtype}")


def loss_shape(x: Meta, axis: int) -> tuple[int, ...]:
    """Return the scores' shape with 1 in place of the classes."""
    axis = resolve_axis(axis, len(x.shape))
    return (*x.shape[:axis], 1, *x.shape[axis + 1 :])


def _swce_infer(logits: Meta, label: Meta, soft_label: bool, axis: int, **_) -> Metas:
    check_labels(logits, label, soft_label, axis)
    return same(logits), Meta(loss_shape(logits, axis), logits.dtype)


def _swce_bind(
    xp: ArrayModule,
    logits,
    label,
    softmax,
    loss,
    soft_label: bool,
    ignore_index: int,
    axis: int,
    **_,
) -> Call:
    """softmax = exp(x - max) / sum(exp(x - max));  loss = -log(softmax at the label)."""
    calls = softmax_calls(xp, logits, softmax, axis)
    if soft_label:
        logs = xp.empty_like(softmax)
        return in_sequence(
            *calls,
            *negative_log(xp, softmax, logs),
            partial(xp.multiply, logs, label, logs),
            partial(logs.sum, axis, None, loss, True),
        )
    labels = HardLabels(xp, label, logits.shape, axis, ignore_index, "softmax_with_cross_entropy")
    flat_loss = loss.reshape(-1)
    return in_sequence(
        *labels.refresh,
        *calls,
        take(xp, softmax.reshape(-1), labels.flat, flat_loss),
        *negative_log(xp, flat_loss, flat_loss),
        put_where(xp, flat_loss, 0, labels.ignored),
    )


def _swce_grad_bind(
    xp: ArrayModule,
    label,
    softmax,
    dloss,
    dlogits,
    soft_label: bool,
    ignore_index: int,
    axis: int,
    **_,
) -> Call:
    """dlogits = (softmax - one_hot(label)) dloss; soft labels in place of one_hot."""
    if soft_label:
        return in_sequence(
            partial(xp.subtract, softmax, label, dlogits),
            partial(xp.multiply, dlogits, dloss, dlogits),
        )
    labels = HardLabels(
        xp, label, softmax.shape, axis, ignore_index, "softmax_with_cross_entropy_grad"
    )
    weight = xp.empty(dloss.shape, dloss.dtype)  # the loss's gradient, 0 for ignored labels
    flat_weight, flat_dlogits, flat = weight.reshape(-1), dlogits.reshape(-1), labels.flat

    def subtract_at_labels() -> None:
        flat_dlogits[flat] -= flat_weight

    return in_sequence(
        *labels.locate,
        partial(xp.copyto, weight, dloss),
        put_where(xp, flat_weight, 0, labels.ignored),
        partial(xp.multiply, softmax, weight, dlogits),
        subtract_at_labels,
    )


_SWCE_ATTRS = {"soft_label": False, "ignore_index": -100, "numeric_stable_mode": True, "axis": -1}
define_with_grad(
    "softmax_with_cross_entropy",
    "Logits, Label -> Softmax, Loss",
    "Label, Softmax, Loss@GRAD -> Logits@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs=_SWCE_ATTRS,
    infer=_swce_infer,
    bind=_swce_bind,
    grad_infer=lambda label, softmax, *_, **__: same(softmax),
    grad_bind=_swce_grad_bind,
    grad_inplace={"Logits@GRAD": "Softmax"},
)

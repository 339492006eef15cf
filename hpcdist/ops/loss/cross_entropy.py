"""Cross entropy of probabilities, with hard or soft labels."""

from __future__ import annotations

from functools import partial

from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import by_row, of_matrices
from hpcdist.ops.common import define_with_grad, grad_by, in_sequence, same
from hpcdist.ops.loss.labels import HardLabels, put_where, take
from hpcdist.ops.loss.softmax import check_labels, loss_shape, negative_log
from hpcdist.ops.types import ArrayModule, Call, Metas

# -- hard labels: class indices -----------------------------------------------------------------


def _hard_loss(x: Meta, label: Meta) -> Meta:
    flat = len(label.shape) == len(x.shape) - 1  # [...] instead of [..., 1], and so is the loss
    check_labels(x, Meta((*label.shape, 1), label.dtype) if flat else label, soft_label=False)
    return Meta(x.shape[:-1] if flat else loss_shape(x, -1), x.dtype)


def _cross_entropy2_infer(x: Meta, label: Meta, ignore_index: int) -> Metas:
    match = Meta((*x.shape[:-1], 1), x.dtype)  # whether labels have the last dimension or not
    return _hard_loss(x, label), Meta((*x.shape, 0), x.dtype), match


def _cross_entropy2_bind(xp: ArrayModule, x, label, y, x_shape, match, ignore_index: int) -> Call:
    """match = x at the label;  y = -log(match)."""
    labels = HardLabels(xp, label, x.shape, -1, ignore_index, "cross_entropy2")
    flat_y, flat_match = y.reshape(-1), match.reshape(-1)
    return in_sequence(
        *labels.refresh,
        take(xp, x.reshape(-1), labels.flat, flat_match),
        put_where(xp, flat_match, 1, labels.ignored),
        *negative_log(xp, flat_match, flat_y),
    )


def _cross_entropy2_grad_bind(
    xp: ArrayModule, label, match, x_shape, dy, dx, ignore_index: int
) -> Call:
    """dx = -dy / match at the label, 0 elsewhere."""
    labels = HardLabels(xp, label, dx.shape, -1, ignore_index, "cross_entropy_grad2")
    at_label = xp.empty(labels.flat.shape, dx.dtype)
    flat_dx, flat = dx.reshape(-1), labels.flat

    def put_at_labels() -> None:
        flat_dx[flat] = at_label

    return in_sequence(
        *labels.locate,
        partial(xp.divide, dy.reshape(-1), match.reshape(-1), at_label),
        partial(xp.negative, at_label, at_label),
        put_where(xp, at_label, 0, labels.ignored),
        partial(dx.fill, 0),
        put_at_labels,
    )


_CE2_GRAD = "Label, MatchX, XShape, Y@GRAD -> X@GRAD"
define(
    "cross_entropy2",
    "X, Label -> Y, XShape, MatchX",
    rows=by_row(apart=of_matrices),
    attrs={"ignore_index": -100},
    infer=_cross_entropy2_infer,
    bind=_cross_entropy2_bind,
    grad=grad_by("cross_entropy_grad2", _CE2_GRAD),
)
define(
    "cross_entropy_grad2",
    _CE2_GRAD,
    attrs={"ignore_index": -100},
    infer=lambda label, match, x_shape, dy, **_: Meta(x_shape.shape[:-1], dy.dtype),
    bind=_cross_entropy2_grad_bind,
    shape_only=("XShape",),
)

# -- cross_entropy: soft labels, or hard ones in models of Fluid before 1.4 ------------------------


def _cross_entropy_infer(x: Meta, label: Meta, soft_label: bool, ignore_index: int) -> Meta:
    if not soft_label:
        return _hard_loss(x, label)
    check_labels(x, label, soft_label)
    return Meta(loss_shape(x, -1), x.dtype)


def _cross_entropy_bind(xp: ArrayModule, x, label, y, soft_label: bool, ignore_index: int) -> Call:
    """y = -sum(label log(x))."""
    if not soft_label:
        match = xp.empty(y.shape, x.dtype)
        return _cross_entropy2_bind(xp, x, label, y, None, match, ignore_index)
    logs = xp.empty(x.shape, x.dtype)
    return in_sequence(
        *negative_log(xp, x, logs),
        partial(xp.multiply, logs, label, logs),
        partial(logs.sum, -1, None, y, True),
    )


def _cross_entropy_grad_bind(
    xp: ArrayModule, x, label, dy, dx, soft_label: bool, ignore_index: int
) -> Call:
    """dx = -dy label / x."""
    if not soft_label:
        labels = HardLabels(xp, label, x.shape, -1, ignore_index, "cross_entropy_grad")
        match = xp.empty(labels.flat.shape, x.dtype)
        return in_sequence(
            *labels.refresh,
            take(xp, x.reshape(-1), labels.flat, match),
            _cross_entropy2_grad_bind(xp, label, match, None, dy, dx, ignore_index),
        )
    return in_sequence(
        partial(xp.divide, label, x, dx),
        partial(xp.multiply, dx, dy, dx),
        partial(xp.negative, dx, dx),
    )


_CE_ATTRS = {"soft_label": False, "ignore_index": -100}
define_with_grad(
    "cross_entropy",
    "X, Label -> Y",
    "X, Label, Y@GRAD -> X@GRAD",
    rows=by_row(apart=of_matrices),
    attrs=_CE_ATTRS,
    infer=_cross_entropy_infer,
    bind=_cross_entropy_bind,
    grad_infer=same,
    grad_bind=_cross_entropy_grad_bind,
)

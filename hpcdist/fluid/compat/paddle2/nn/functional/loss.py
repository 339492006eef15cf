"""Losses: by default the mean over all elements."""

from __future__ import annotations

from typing import Any, Literal

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed, declare, reductions
from hpcdist.fluid.compat.paddle2.kinds import Positive, Probability, Reduction, Unsigned
from hpcdist.fluid.compat.paddle2.nn.functional import common
from hpcdist.fluid.compat.paddle2.reductions import reduced_losses
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers import math_op
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.graph.variable import Variable

_MODULE = "paddle.nn.functional"
DECLARED = declare.functions(_MODULE, "losses")
globals().update(DECLARED)


def _labels(where: str, input: Variable, label: Variable, axis: int) -> Variable:
    """Return labels with a dimension for the classes."""
    missing = len(input.shape) - len(label.shape)
    if missing not in (0, 1):
        raise GraphError(
            f"{_MODULE}.{where}: expected labels of as many dimensions as input {input.shape}, or "
            f"one less, got {label.shape}"
        )
    return layers.unsqueeze(label, [axis]) if missing else label


def cross_entropy(
    input: Variable,
    label: Variable,
    weight: Variable | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    label_smoothing: Probability = 0.0,
    name: str | None = None,
) -> Variable:
    """Return the cross entropy of ``input``: scores, or probabilities if use_softmax is False.

    label: class indices [...] or [..., 1], or with soft_label probabilities like ``input``.
    ``weight``: one for each class. The mean is over labels other than ``ignore_index``.
    """
    squeezed = len(label.shape) == len(input.shape) - 1
    target = _labels("cross_entropy", input, label, axis)
    if label_smoothing > 0.0:
        if not soft_label:
            target = common.one_hot(layers.squeeze(target, [axis]), input.shape[axis])
        target = common.label_smooth(target.astype(input.dtype), epsilon=label_smoothing)
        soft_label = True
    if use_softmax:
        attrs = {"soft_label": soft_label, "ignore_index": ignore_index, "axis": axis}
        helper = LayerHelper("softmax_with_cross_entropy")
        outputs = dict.fromkeys(("Softmax", "Loss"), input.dtype)
        inputs = {"Logits": input, "Label": target}
        losses = helper.apply_all("softmax_with_cross_entropy", inputs, outputs, attrs)[1]
    else:
        losses = layers.cross_entropy(input, target, soft_label, ignore_index)
    weights = None if weight is None else _weights(weight, target, ignore_index, soft_label)
    if weights is not None:
        losses = losses * weights
    if reduction == "mean" and (weights is not None or (ignore_index >= 0 and not soft_label)):
        counted = _is_not(target, ignore_index, input.dtype) if not soft_label else None
        share = counted if weights is None else weights
        count = reductions.sum(share)  # type: ignore[attr-defined]
        total = reductions.sum(losses)  # type: ignore[attr-defined]
        return total / (count + _is(count, 0.0, input.dtype))
    if reduction == "none" and squeezed:
        return layers.squeeze(losses, [axis])
    return reduced_losses("cross_entropy", losses, reduction)


def _weights(weight: Variable, label: Variable, ignore_index: int, soft: bool) -> Variable:
    """Return the weight of each sample, of the losses' shape."""
    if soft:
        return reductions.sum(label * weight, -1, None, True)  # type: ignore[attr-defined]
    valid = label * _is_not(label, ignore_index, label.dtype)
    flat = layers.gather(weight, layers.reshape(valid, [-1]))
    shape = [-1, *(max(extent, 1) for extent in label.shape[1:])]
    return layers.reshape(flat, shape) * _is_not(label, ignore_index, weight.dtype)


def _is(x: Variable, number: float, dtype: str) -> Variable:
    """Return 1 where an element is ``number``, else 0."""
    return layers.cast(layers.equal(x, math_op.filled(x, number)), dtype)


def _is_not(x: Variable, number: float, dtype: str) -> Variable:
    """Return 0 where an element is ``number``, else 1."""
    return layers.cast(layers.not_equal(x, math_op.filled(x, number)), dtype)


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """Return the cross entropy of softmax(logits), [..., 1]; with return_softmax, that too."""
    target = _labels("softmax_with_cross_entropy", logits, label, axis)
    return layers.softmax_with_cross_entropy(
        logits, target, soft_label, ignore_index, numeric_stable_mode, return_softmax, axis
    )


def binary_cross_entropy(
    input: Variable,
    label: Variable,
    weight: Variable | None = None,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return -label log(input) - (1 - label) log(1 - input), for probabilities ``input``."""
    helper = LayerHelper("binary_cross_entropy", name)
    losses = helper.apply("bce_loss", {"X": input, "Label": label}, dtype=input.dtype)
    return reduced_losses(
        "binary_cross_entropy", losses if weight is None else losses * weight, reduction
    )


def binary_cross_entropy_with_logits(
    logit: Variable,
    label: Variable,
    weight: Variable | None = None,
    reduction: Reduction = "mean",
    pos_weight: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return the cross entropy of sigmoid(logit); ``pos_weight`` multiplies positive labels'."""
    if pos_weight is None:
        type = "sigmoid_cross_entropy_with_logits"
        losses = append(type, {"X": logit, "Label": label}, name)
    else:
        # As Paddle 2.6: the weight multiplies log(1 + exp(-|logit|)) only.
        share = layers.elementwise_mul(label, layers.scale(pos_weight, 1.0, -1.0))
        curved = layers.softplus(layers.scale(layers.abs(logit), -1.0))
        weighted = layers.elementwise_mul(layers.scale(share, 1.0, 1.0), curved)
        straight = layers.elementwise_sub(layers.relu(logit), layers.elementwise_mul(logit, label))
        losses = layers.elementwise_add(straight, weighted)
    if weight is not None:
        losses = losses * weight
    return reduced_losses("binary_cross_entropy_with_logits", losses, reduction)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return (input - label)^2, element by element."""
    return layers.square_error_cost(input, label)


def mse_loss(
    input: Variable, label: Variable, reduction: Reduction = "mean", name: str | None = None
) -> Variable:
    """Return the mean of (input - label)^2."""
    return reduced_losses("mse_loss", layers.square(input - label), reduction)


def l1_loss(
    input: Variable, label: Variable, reduction: Reduction = "mean", name: str | None = None
) -> Variable:
    """Return the mean of |input - label|."""
    return reduced_losses("l1_loss", layers.abs(input - label), reduction)


def smooth_l1_loss(
    input: Variable,
    label: Variable,
    reduction: Reduction = "mean",
    delta: Positive = 1.0,
    name: str | None = None,
) -> Variable:
    """Return d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), for d = label - input."""
    return reduced_losses("smooth_l1_loss", layers.huber_loss(input, label, delta), reduction)


def nll_loss(
    input: Variable,
    label: Variable,
    weight: Variable | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return -input at the label, for logarithms of probabilities [n, classes]."""
    counted = _is_not(label, ignore_index, input.dtype)
    valid = label * _is_not(label, ignore_index, label.dtype)
    shares = counted if weight is None else counted * layers.gather(weight, valid)
    picked = layers.index_sample(input, layers.unsqueeze(valid, [1]))
    losses = layers.scale(layers.squeeze(picked, [1]), -1.0) * shares
    if reduction == "mean":
        total = reductions.sum(losses)  # type: ignore[attr-defined]
        return total / reductions.sum(shares)  # type: ignore[attr-defined]
    return reduced_losses("nll_loss", losses, reduction)


def kl_div(
    input: Variable,
    label: Variable,
    reduction: Literal["mean", "batchmean", "sum", "none"] = "mean",
    name: str | None = None,
) -> Variable:
    """Return label (log(label) - input), 0 where the label is not above 0."""
    declare.floats(f"{_MODULE}.kl_div: input", input)
    loss = append(
        "kldiv_loss", {"X": input, "Target": label}, name, slot="Loss", reduction=reduction
    )
    return loss if reduction == "none" else scalar(loss)


def margin_ranking_loss(
    input: Variable,
    other: Variable,
    label: Variable,
    margin: float = 0.0,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return max(0, margin - label (input - other))."""
    losses = layers.relu(layers.scale(label * (input - other), -1.0) + margin)
    return reduced_losses("margin_ranking_loss", losses, reduction)


def hinge_embedding_loss(
    input: Variable,
    label: Variable,
    margin: float = 1.0,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return input where the label is 1, max(0, margin - input) where it is -1."""
    positive = _is(label, 1.0, input.dtype)
    negative = _is(label, -1.0, input.dtype)
    losses = input * positive + layers.relu(layers.scale(input, -1.0) + margin) * negative
    return reduced_losses("hinge_embedding_loss", losses, reduction)


def cosine_embedding_loss(
    input1: Variable,
    input2: Variable,
    label: Variable,
    margin: float = 0,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return 1 - cos where the label is 1, max(0, cos - margin) where it is -1."""
    cosine = common.cosine_similarity(input1, input2, axis=-1)
    positive = _is(label, 1, cosine.dtype)
    losses = (1.0 - cosine) * positive + layers.relu(cosine - margin) * (1.0 - positive)
    return reduced_losses("cosine_embedding_loss", losses, reduction)


def triplet_margin_loss(
    input: Variable,
    positive: Variable,
    negative: Variable,
    margin: float = 1.0,
    p: float = 2.0,
    epsilon: Unsigned = 1e-6,
    swap: bool = False,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """Return max(0, |input - positive| - |input - negative| + margin)."""

    def distance(x: Variable, y: Variable) -> Variable:
        return common.pairwise_distance(x, y, p, epsilon)

    values = input, positive, negative
    return triplet_margin_with_distance_loss(*values, distance, margin, swap, reduction)


def triplet_margin_with_distance_loss(
    input: Variable,
    positive: Variable,
    negative: Variable,
    distance_function: Any = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: Reduction = "mean",
    name: str | None = None,
) -> Variable:
    """The same, of distances by a function of two Variables."""
    distance = distance_function or common.pairwise_distance
    if not callable(distance):
        raise GraphError(
            f"{_MODULE}.triplet_margin_with_distance_loss: distance_function: expected a function "
            f"of two Variables, got {distance!r}"
        )
    near, far = distance(input, positive), distance(input, negative)
    if swap:
        far = layers.elementwise_min(far, distance(positive, negative))
    losses = layers.relu(near - far + margin)
    return reduced_losses("triplet_margin_with_distance_loss", losses, reduction)


def soft_margin_loss(
    input: Variable, label: Variable, reduction: Reduction = "mean", name: str | None = None
) -> Variable:
    """Return log(1 + exp(-label input))."""
    losses = layers.softplus(layers.scale(label.astype(input.dtype) * input, -1.0))
    return reduced_losses("soft_margin_loss", losses, reduction)


def sigmoid_focal_loss(
    logit: Variable,
    label: Variable,
    normalizer: Variable | None = None,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: Reduction = "sum",
    name: str | None = None,
) -> Variable:
    """Return alpha_t (1 - p_t)^gamma times the cross entropy of sigmoid(logit)."""
    losses = append("sigmoid_cross_entropy_with_logits", {"X": logit, "Label": label}, name)
    chance = layers.sigmoid(logit)
    right = chance * label + (1.0 - chance) * (1.0 - label)
    share = label * alpha + (1.0 - label) * (1.0 - alpha)
    focal = share * composed.pow(1.0 - right, gamma) * losses
    return reduced_losses(
        "sigmoid_focal_loss", focal if normalizer is None else focal / normalizer, reduction
    )


def dice_loss(
    input: Variable, label: Variable, epsilon: Unsigned = 1e-5, name: str | None = None
) -> Variable:
    """Return 1 - 2 |input label| / (|input| + |label|) by row, averaged."""
    one = common.one_hot(layers.squeeze(label, [-1]), input.shape[-1])
    axes = list(range(1, len(input.shape)))
    both = reductions.sum(input * one, axes)  # type: ignore[attr-defined]
    sizes = reductions.sum(input, axes) + reductions.sum(one, axes)  # type: ignore[attr-defined]
    return reductions.mean(1.0 - both * 2.0 / (sizes + epsilon))  # type: ignore[attr-defined]


def npair_loss(
    anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002
) -> Variable:
    """Return Fluid's npair_loss."""
    return scalar(layers.npair_loss(anchor, positive, labels, l2_reg))


_PAIR = ("input", "label")
_ALIKE = dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "log_loss"), _PAIR)
_ALIKE["margin_ranking_loss"] = ("input", "other", "label")  # type: ignore[assignment]
_SHAPES = {
    "nll_loss": "input: n classes; label: n; weight: classes",
    "soft_margin_loss": "input: ...; label: ...",
    "triplet_margin_loss": "input: ...; positive: ...; negative: ...",
}
__all__ = declare.offered(_MODULE, globals(), DECLARED, alike=_ALIKE, shapes=_SHAPES)

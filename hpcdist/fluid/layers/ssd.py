"""SSD: heads on several feature maps, matching of priors to true boxes, and the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.boxes import _VARIANCE, box_coder, iou_similarity
from hpcdist.fluid.layers.boxes import prior_box as prior_boxes
from hpcdist.fluid.layers.helper import declared
from hpcdist.fluid.layers.image import Pair, conv2d
from hpcdist.fluid.layers.loss import smooth_l1, softmax_with_cross_entropy
from hpcdist.fluid.layers.math import reduce_sum
from hpcdist.fluid.layers.tensor import cast, concat, flatten, reshape, transpose
from hpcdist.graph.variable import Variable

__all__ = [
    "bipartite_match",
    "multi_box_head",
    "ssd_loss",
    "target_assign",
]


def bipartite_match(
    dist_matrix: Variable,
    match_type: str | None = None,
    dist_threshold: float | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return for each column the row that it belongs to, -1 for none, and how alike they are.

    Rows are in sequences, one for each image. match_type: bipartite, each row one column; or
    per_prediction, then also other columns that are alike enough to one: ``dist_threshold`` (0.5).
    """
    match_type = match_type or "bipartite"
    return declared("bipartite_match", locals(), None, DistMat=dist_matrix)


def target_assign(
    input: Variable,
    matched_indices: Variable,
    negative_indices: Variable | None = None,
    mismatch_value: int | None = None,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return for each column its row of ``input``, and 1 where there is one, or it is negative."""
    slots = {"X": input, "MatchIndices": matched_indices, "NegIndices": negative_indices}
    return declared("target_assign", {**locals(), **slots}, None)


def ssd_loss(
    location: Variable,
    confidence: Variable,
    gt_box: Variable,
    gt_label: Variable,
    prior_box: Variable,
    prior_box_var: Any = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Variable:
    """Return the loss [N, 1] of locations [N, M, 4] and confidences [N, M, classes] of M priors.

    gt_box [boxes, 4] and gt_label [boxes, 1] are in sequences, one for each image.
    """
    if mining_type != "max_negative":
        raise GraphError(f"ssd_loss: mining_type must be max_negative, got {mining_type!r}")
    priors = confidence.shape[1]
    matched, alike = bipartite_match(
        iou_similarity(gt_box, prior_box), match_type, overlap_threshold
    )
    label = reshape(gt_label, [0] * (len(gt_label.shape) - 1) + [-1, 1])
    label.stop_gradient = True

    def labels_of(matches: Variable, negative: Variable | None) -> tuple[Variable, Variable]:
        target, weight = target_assign(label, matches, negative, background_label)
        flat = flatten(cast(target, "int64"), 2)
        flat.stop_gradient = True
        return flat, weight

    scores = flatten(confidence, 2)
    first = softmax_with_cross_entropy(scores, labels_of(matched, None)[0])
    assert isinstance(first, Variable)
    hard = reshape(first, [-1, priors])
    hard.stop_gradient = True
    slots = {"ClsLoss": hard, "MatchIndices": matched, "MatchDist": alike}
    inputs = {**locals(), **slots, "neg_dist_threshold": neg_overlap, "sample_size": None}
    negative, updated = declared("mine_hard_examples", inputs, None)
    spread = _VARIANCE if prior_box_var is None else prior_box_var
    boxes = box_coder(prior_box, spread, gt_box)
    places, weights = target_assign(boxes, updated, mismatch_value=background_label)
    target, counted = labels_of(updated, negative)
    entropy = softmax_with_cross_entropy(scores, target)
    assert isinstance(entropy, Variable)
    confident = entropy * flatten(counted, 2)
    near = smooth_l1(flatten(location, 2), flatten(places, 2)) * flatten(weights, 2)
    loss = confident * conf_loss_weight + near * loc_loss_weight
    loss = reduce_sum(reshape(loss, [-1, priors]), dim=1, keep_dim=True)
    return loss / reduce_sum(weights) if normalize else loss


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def multi_box_head(
    inputs: Sequence[Variable],
    image: Variable,
    base_size: int,
    num_classes: int,
    aspect_ratios: Sequence[Any],
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Sequence[Any] | None = None,
    max_sizes: Sequence[Any] | None = None,
    steps: Sequence[float] | None = None,
    step_w: Sequence[float] | None = None,
    step_h: Sequence[float] | None = None,
    offset: float = 0.5,
    variance: Sequence[float] = _VARIANCE,
    flip: bool = True,
    clip: bool = False,
    kernel_size: Pair = 1,
    pad: Pair = 0,
    stride: Pair = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, Variable, Variable, Variable]:
    """Return locations [N, M, 4], confidences [N, M, classes], prior boxes and their variances.

    Each feature map has two convolutions of its own, and priors of its own sizes: those given, or
    between min_ratio and max_ratio percent of ``base_size``.
    """
    if min_sizes is None or max_sizes is None:
        if len(inputs) < 3 or min_ratio is None or max_ratio is None:
            raise GraphError("multi_box_head: min_sizes and max_sizes must be given")
        step = math.floor((max_ratio - min_ratio) / (len(inputs) - 2))
        ratios = range(min_ratio, max_ratio + 1, step)
        min_sizes = [base_size * 0.1, *(base_size * r / 100 for r in ratios)]
        max_sizes = [base_size * 0.2, *(base_size * (r + step) / 100 for r in ratios)]
    if steps is not None:
        step_w = step_h = steps
    places: list[Variable] = []
    scores: list[Variable] = []
    boxes, spreads = [], []
    for i, x in enumerate(inputs):
        ratio = _listed(aspect_ratios[i]) if aspect_ratios else [1.0]
        each = [step_w[i], step_h[i]] if step_w and step_h else [0.0, 0.0]
        sizes = _listed(min_sizes[i]), _listed(max_sizes[i])
        order = min_max_aspect_ratios_order
        box, spread = prior_boxes(
            x, image, *sizes, ratio, variance, flip, clip, each, offset, None, order
        )
        boxes.append(reshape(box, [-1, 4]))
        spreads.append(reshape(spread, [-1, 4]))
        for width, by_level in ((4, places), (num_classes, scores)):
            convolved = conv2d(x, box.shape[2] * width, kernel_size, stride, pad)
            last = transpose(convolved, [0, 2, 3, 1])
            cells = -1 if -1 in last.shape[1:] else math.prod(last.shape[1:]) // width
            by_level.append(reshape(last, [0, cells, width]))
    one = len(boxes) == 1
    joined_heads = [
        by_level[0] if one else concat(by_level, axis=1) for by_level in (places, scores)
    ]
    priors = [by_level[0] if one else concat(by_level) for by_level in (boxes, spreads)]
    for prior in priors:
        prior.stop_gradient = True
    return joined_heads[0], joined_heads[1], priors[0], priors[1]

"""Training targets of two-stage detectors: classes and boxes of anchors and regions.

Random samples depend on the job's seed and the operator's name: they are the same on all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.graph.values import Value
from hpcdist.ops.detection.boxes import overlaps
from hpcdist.ops.detection.proposals import joined, rows_of, same_counts
from hpcdist.ops.random.counter import Draws, filler, key_of, part_of
from hpcdist.ops.types import Array, Metas

_ALIKE = 1e-5
Sample = Callable[[Array, int], Array]  # so many of these at most


def _sampler(draws: Draws, use_random: bool) -> Sample:
    """Return the sampler that keeps so many of the places; at random, or the first ones."""

    def sample(places, count: int) -> Array:
        count = max(count, 0)
        if len(places) <= count or not use_random:
            return places[:count]
        words = filler(np, part_of(np.empty(len(places)), None, None), key_of(0, draws.name), draws)
        return np.sort(places[np.argsort(words(), kind="stable")[:count]])

    return sample


def deltas_of(boxes, targets) -> Array:
    """Return how far targets are from boxes, in sizes of these, and how much larger; in pixels."""
    size, target_size = (b[:, 2:] - b[:, :2] + 1 for b in (boxes, targets))
    apart = targets[:, :2] + target_size / 2 - boxes[:, :2] - size / 2
    return np.concatenate([apart / size, np.log(target_size / size)], 1)


# -- anchors: rpn_target_assign (Ren et al., 2015), retinanet_target_assign (Lin et al., 2017) -----
def _anchors_of(
    alike, positive: float, negative: float, count: int, fraction: float, sample: Sample
) -> tuple[Array, Array, Array, Array]:
    """Return anchors with objects, without, to be fitted, and how each of the last counts.

    An anchor that fits an object best may fit it badly: if it is chosen to have none, it has none,
    and the first anchor with an object is fitted in its place, with weight 0.
    """
    best = alike.max(1, initial=-1)
    is_best = (np.abs(alike - alike.max(0, initial=-1)) < _ALIKE).any(1)
    objects = np.flatnonzero(is_best | (best >= positive))
    if count > 0 and fraction > 0:
        objects = sample(objects, int(fraction * count))
    nothing = np.flatnonzero(best < negative)
    if count > 0:
        nothing = sample(nothing, count - len(objects))
    both = np.intersect1d(objects, nothing)
    foreground = np.setdiff1d(objects, both)
    fitted = np.concatenate([np.repeat(objects[:1], len(both)), foreground])
    weight = np.repeat(np.arange(len(fitted)) >= len(both), 4).reshape(-1, 4)
    return foreground, np.sort(nothing), fitted, weight


def _without_crowds(
    type: str, boxes: Value, crowd: Value, info: Value
) -> list[tuple[Array, Array]]:
    """Return which rows of each image are single objects, and their boxes in the scaled image."""
    counts = [len(rows) for rows in rows_of(boxes, type, "GtBoxes")]
    same_counts(type, "images", GtBoxes=len(counts), ImInfo=len(info.array))
    same_counts(type, "boxes", GtBoxes=len(boxes.array), IsCrowd=len(crowd.array))
    ends = np.cumsum([0, *counts])
    marks = crowd.array.reshape(-1)
    by_image = []
    for image, (begin, end) in enumerate(itertools.pairwise(ends)):
        rows = begin + np.flatnonzero(marks[begin:end] == 0)
        by_image.append((rows, boxes.array[rows] * info.array[image, 2]))
    return by_image


def _assigned(dtype, *parts: list[Array]) -> tuple[Value, ...]:
    """Return the parts of all images together, as the results of both operators."""
    fitted, scored, targets, labels, weights = map(np.concatenate, parts)
    of_fitted, of_scored = (Lod.of_lengths([list(map(len, part))]) for part in parts[:2])
    return (
        Value(fitted.astype(np.int32)),
        Value(scored.astype(np.int32)),
        Value(targets.astype(dtype), of_fitted),
        Value(labels.astype(np.int32).reshape(-1, 1), of_scored),
        Value(weights.astype(dtype), of_fitted),
    )


def _rpn(
    anchors: Value,
    boxes: Value,
    crowd: Value,
    info: Value,
    rpn_batch_size_per_im: int,
    rpn_straddle_thresh: float,
    rpn_positive_overlap: float,
    rpn_negative_overlap: float,
    rpn_fg_fraction: float,
    use_random: bool,
    state: Draws,
) -> tuple[Value, ...]:
    all_anchors = anchors.array.reshape(-1, 4)
    sample = _sampler(state, use_random)
    size = rpn_batch_size_per_im
    limits = rpn_positive_overlap, rpn_negative_overlap, size, rpn_fg_fraction
    fitted, scored, labels, targets, weights = [], [], [], [], []
    images = _without_crowds("rpn_target_assign", boxes, crowd, info)
    for image, (_, objects) in enumerate(images):
        inside = np.arange(len(all_anchors))
        if rpn_straddle_thresh >= 0:
            edge = info.array[image, [1, 0]] + rpn_straddle_thresh
            within = (all_anchors[:, :2] >= -rpn_straddle_thresh).all(1) & (
                all_anchors[:, 2:] < edge
            ).all(1)
            inside = np.flatnonzero(within)
        alike = overlaps(np, all_anchors[inside], objects, False)
        foreground, nothing, fit, weight = _anchors_of(alike, *limits, sample)
        first = image * len(all_anchors)
        fitted.append(first + inside[fit])
        scored.append(first + inside[np.concatenate([foreground, nothing])])
        labels.append(np.repeat([1, 0], [len(foreground), len(nothing)]))
        targets_of_fit = objects[alike[fit].argmax(1)] if len(fit) else np.zeros((0, 4))
        targets.append(deltas_of(all_anchors[inside[fit]], targets_of_fit))
        weights.append(weight)
    return _assigned(anchors.array.dtype, fitted, scored, targets, labels, weights)


def _assign_infer(anchors: Meta, *_: Meta, **__) -> Metas:
    index, fit = Meta((-1,), "int32"), Meta((-1, 4), anchors.dtype, lod=Lod(1))
    return index, index, fit, Meta((-1, 1), "int32", lod=Lod(1)), fit


define(
    "rpn_target_assign",
    "Anchor, GtBoxes, IsCrowd, ImInfo -> "
    "LocationIndex, ScoreIndex, TargetBBox, TargetLabel, BBoxInsideWeight",
    rows=not_on_rows,
    attrs={
        "rpn_batch_size_per_im": 256,
        "rpn_straddle_thresh": 0.0,
        "rpn_positive_overlap": 0.7,
        "rpn_negative_overlap": 0.3,
        "rpn_fg_fraction": 0.25,
        "use_random": True,
    },
    infer=_assign_infer,
    values=_rpn,
    state=Draws,
)


def _retinanet(
    anchors: Value,
    boxes: Value,
    classes: Value,
    crowd: Value,
    info: Value,
    positive_overlap: float,
    negative_overlap: float,
) -> tuple[Value, ...]:
    all_anchors = anchors.array.reshape(-1, 4)
    kinds = classes.array.reshape(-1)
    fitted, scored, labels, targets, weights, counts = [], [], [], [], [], []
    images = _without_crowds("retinanet_target_assign", boxes, crowd, info)
    for image, (rows, objects) in enumerate(images):
        alike = overlaps(np, all_anchors, objects, False)
        limits = positive_overlap, negative_overlap, -1, 0.0
        foreground, nothing, fit, weight = _anchors_of(alike, *limits, lambda places, _: places)
        nearest = alike.argmax(1) if len(objects) else np.zeros(len(all_anchors), np.int64)
        fitted.append(image * len(all_anchors) + fit)
        scored.append(image * len(all_anchors) + np.concatenate([foreground, nothing]))
        labels.append(np.concatenate([kinds[rows[nearest[foreground]]], np.zeros(len(nothing))]))
        targets_of_fit = objects[nearest[fit]] if len(fit) else np.zeros((0, 4))
        targets.append(deltas_of(all_anchors[fit], targets_of_fit))
        weights.append(weight)
        counts.append(len(fit) + 1)  # one more, as in Fluid: what is divided by it is never 0
    return (
        *_assigned(anchors.array.dtype, fitted, scored, targets, labels, weights),
        Value(np.array(counts, np.int32).reshape(-1, 1), Lod.of_lengths([[1] * len(counts)])),
    )


define(
    "retinanet_target_assign",
    "Anchor, GtBoxes, GtLabels, IsCrowd, ImInfo -> "
    "LocationIndex, ScoreIndex, TargetBBox, TargetLabel, BBoxInsideWeight, ForegroundNumber",
    rows=not_on_rows,
    attrs={"positive_overlap": 0.5, "negative_overlap": 0.4},
    infer=lambda *metas, **_: (*_assign_infer(*metas), Meta((-1, 1), "int32", lod=Lod(1))),
    values=_retinanet,
)


# -- regions: generate_proposal_labels -------------------------------------------------------------
def _region_labels(
    regions: Value,
    classes: Value,
    crowd: Value,
    boxes: Value,
    info: Value,
    batch_size_per_im: int,
    fg_fraction: float,
    fg_thresh: float,
    bg_thresh_hi: float,
    bg_thresh_lo: float,
    bbox_reg_weights,
    class_nums: int,
    use_random: bool,
    is_cls_agnostic: bool,
    is_cascade_rcnn: bool,
    state: Draws,
) -> tuple[Value, ...]:
    type = "generate_proposal_labels"
    sample = _sampler(state, use_random)
    operands = {"RpnRois": regions, "GtClasses": classes, "IsCrowd": crowd, "GtBoxes": boxes}
    parts = {slot: rows_of(value, type, slot) for slot, value in operands.items()}
    images = {slot: len(rows) for slot, rows in parts.items()}
    same_counts(type, "images", **images, ImInfo=len(info.array))
    width = 4 * class_nums
    columns: list[list[Array]] = [[] for _ in range(4)]
    for image, (proposals, kinds, crowds, objects) in enumerate(zip(*parts.values(), strict=True)):
        boxes_told = {"GtBoxes": len(objects), "GtClasses": len(kinds), "IsCrowd": len(crowds)}
        same_counts(type, f"boxes of image {image}", **boxes_told)
        scale = info.array[image, 2]
        proposed = proposals / scale
        if is_cascade_rcnn:  # as in Fluid: as many as there are true boxes are not scaled
            proposed[: len(objects)] = proposals[: len(objects)]
        else:  # the true boxes are proposed, too
            proposed = np.concatenate([objects, proposed])
        alike = overlaps(np, proposed, objects, False)
        best = alike.max(1, initial=-1)
        single = crowds.reshape(-1)[: len(best)] == 0
        best[: len(single)][~single] = -1
        good = np.flatnonzero(best >= fg_thresh)
        bad = np.flatnonzero((best < fg_thresh) & (best >= bg_thresh_lo) & (best < bg_thresh_hi))
        if not is_cascade_rcnn:
            good = sample(good, int(np.floor(batch_size_per_im * fg_fraction)))
            bad = sample(bad, batch_size_per_im - len(good))
        chosen = np.concatenate([good, bad])
        near = alike[good] > best[good, None] - _ALIKE
        nearest = near.argmax(1) if len(good) else np.zeros(0, np.int64)
        labels = np.concatenate([kinds.reshape(-1)[nearest], np.zeros(len(bad))]).astype(np.int32)
        places = (labels[: len(good)] > 0).astype(int) if is_cls_agnostic else labels[: len(good)]
        target = np.zeros((len(chosen), class_nums, 4))
        weight = np.zeros_like(target)
        real = np.flatnonzero(places > 0)
        moves = deltas_of(proposed[good], objects[nearest]) / np.asarray(bbox_reg_weights)
        target[real, places[real]] = moves[real]
        weight[real, places[real]] = 1
        for column, made in zip(columns, (proposed[chosen] * scale, labels, target, weight)):
            column.append(made)
    dtype = regions.array.dtype
    weights = joined(columns[3], width, dtype)
    return (
        joined(columns[0], 4, dtype),
        joined(columns[1], 1, np.int32),
        joined(columns[2], width, dtype),
        weights,
        Value(weights.array.copy(), weights.lod),
    )


def _labels_infer(regions: Meta, *_: Meta, class_nums: int, **__) -> Metas:
    lod, wide = Lod(1), Meta((-1, 4 * class_nums), regions.dtype, lod=Lod(1))
    labels = Meta((-1, 1), "int32", lod=lod)
    return Meta((-1, 4), regions.dtype, lod=lod), labels, wide, wide, wide


define(
    "generate_proposal_labels",
    "RpnRois, GtClasses, IsCrowd, GtBoxes, ImInfo -> "
    "Rois, LabelsInt32, BboxTargets, BboxInsideWeights, BboxOutsideWeights",
    rows=not_on_rows,
    attrs={
        "batch_size_per_im": 256,
        "fg_fraction": 0.25,
        "fg_thresh": 0.25,
        "bg_thresh_hi": 0.5,
        "bg_thresh_lo": 0.0,
        "bbox_reg_weights": (0.1, 0.1, 0.2, 0.2),
        "class_nums": 81,
        "use_random": True,
        "is_cls_agnostic": False,
        "is_cascade_rcnn": False,
    },
    infer=_labels_infer,
    values=_region_labels,
    state=Draws,
)

"""Region proposals: decoded from anchors, distributed over levels, collected again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import by_row, not_on_rows
from hpcdist.graph.values import Value
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, Metas

_LARGEST = math.log(1000 / 16)  # of a factor's logarithm, so that no box becomes infinite


def bounds_of(value: Value, type: str, slot: str) -> np.ndarray:
    """Return where each image's rows begin, and the end; FeedError if they are not grouped."""
    if value.lod is None:
        raise FeedError(
            f"{type}: {slot} must be in sequences, one for each image; declare lod_level=1"
        )
    return value.lod.last


def rows_of(value: Value, type: str, slot: str) -> list[Array]:
    """Return the rows of each image."""
    bounds = bounds_of(value, type, slot)
    return [value.array[b:e] for b, e in itertools.pairwise(bounds)]


def same_counts(type: str, unit: str, **counts: int) -> None:
    """Raise FeedError if slots hold different numbers of something, of ``images`` say."""
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{count} in {slot}" for slot, count in counts.items())
        raise FeedError(f"{type}: expected as many {unit} in each, got {counts_text}")


def joined(parts: Sequence[Array], width: int, dtype) -> Value:
    """Return rows of images one after another, in sequences."""
    lod = Lod.of_lengths([[len(part) for part in parts]])
    flat = [np.asarray(part, dtype).reshape(-1, width) for part in parts]
    return Value(np.concatenate([np.zeros((0, width), dtype), *flat]), lod)


def suppress(boxes, threshold: float, eta: float, normalized: bool, most: int = -1) -> Array:
    """Return the places of the boxes, the best first, that no better one covers."""
    from hpcdist.ops.detection.nms_kernels import keep_apart

    places = np.empty(len(boxes), np.int64)
    more = 0.0 if normalized else 1.0
    return places[: keep_apart(np.ascontiguousarray(boxes), threshold, eta, more, most, places)]


def decoded(anchors, deltas) -> Array:
    """Return boxes that lie, and are as large, as ``deltas`` say of anchors; all in pixels."""
    size = anchors[..., 2:] - anchors[..., :2] + 1
    center = anchors[..., :2] + size / 2 + deltas[..., :2] * size
    half = np.exp(deltas[..., 2:]) * size / 2
    return np.concatenate([center - half, center + half - 1], -1)


# -- generate_proposals (Ren et al., 2015) ---------------------------------------------------------
def _proposals(
    scores: Value,
    deltas: Value,
    info: Value,
    anchors: Value,
    variances: Value,
    pre_nms_topN: int,
    post_nms_topN: int,
    nms_thresh: float,
    min_size: float,
    eta: float,
) -> tuple[Value, Value, Value]:
    counts = {"Scores": len(scores.array), "BboxDeltas": len(deltas.array)}
    same_counts("generate_proposals", "images", **counts, ImInfo=len(info.array))
    flat = anchors.array.reshape(-1, 4)
    spread = variances.array.reshape(-1, 4)
    boxes, chances = [], []
    for image, size in enumerate(info.array):
        image_scores = scores.array[image].transpose(1, 2, 0).reshape(-1)
        moves = deltas.array[image].transpose(1, 2, 0).reshape(-1, 4)
        order = np.argsort(-image_scores, kind="stable")
        order = order[:pre_nms_topN] if pre_nms_topN > 0 else order
        moves = moves[order] * spread[order]
        moves[:, 2:] = np.minimum(moves[:, 2:], _LARGEST)
        image_boxes = decoded(flat[order], moves)
        image_boxes = np.maximum(np.minimum(image_boxes, size[[1, 0, 1, 0]] - 1), 0)
        extent = image_boxes[:, 2:] - image_boxes[:, :2]
        center = image_boxes[:, :2] + (extent + 1) / 2
        large = (extent / size[2] + 1 >= max(min_size, 1.0)).all(1)
        places = np.flatnonzero(large & (center <= size[[1, 0]]).all(1))
        image_boxes, image_scores = image_boxes[places], image_scores[order][places]
        if nms_thresh > 0:
            survivors = suppress(image_boxes, nms_thresh, eta, False, post_nms_topN)
            image_boxes, image_scores = image_boxes[survivors], image_scores[survivors]
        boxes.append(image_boxes)
        chances.append(image_scores)
    ends = np.cumsum([len(part) for part in boxes])
    boxes_found = joined(boxes, 4, deltas.array.dtype)
    return boxes_found, joined(chances, 1, scores.array.dtype), Value(ends.astype(np.int64))


def _proposals_infer(
    scores: Meta, deltas: Meta, info: Meta, anchors: Meta, variances: Meta, **_
) -> Metas:
    if deltas.shape[1] != 4 * scores.shape[1]:
        raise GraphError(f"{scores.shape[1]} anchors need 4 deltas each, got {deltas.shape[1]}")
    lod = Lod(1)
    metas = Meta((-1, 4), deltas.dtype, lod=lod), Meta((-1, 1), scores.dtype, lod=lod)
    return (*metas, Meta((-1,), "int64"))


define(
    "generate_proposals",
    "Scores, BboxDeltas, ImInfo, Anchors, Variances -> RpnRois, RpnRoiProbs, RpnRoisLod?",
    rows=not_on_rows,
    attrs={
        "pre_nms_topN": 6000,
        "post_nms_topN": 1000,
        "nms_thresh": 0.5,
        "min_size": 0.1,
        "eta": 1.0,
    },
    infer=_proposals_infer,
    values=_proposals,
)


# -- levels of a feature pyramid (Lin et al., 2016) ------------------------------------------------
def _distributed(
    regions: Value, min_level: int, max_level: int, refer_level: int, refer_scale: int
) -> tuple[list[Value], Value]:
    rows = regions.array
    bounds = bounds_of(regions, "distribute_fpn_proposals", "FpnRois")
    sides = rows[:, 2:] - rows[:, :2]
    area = np.where((sides < 0).any(1), 0, (sides + 1).prod(1))
    level = np.floor(np.log2(np.sqrt(area) / refer_scale + 1e-6) + refer_level)
    level = np.clip(level, min_level, max_level)
    parts, places = [], []
    for k in range(min_level, max_level + 1):
        chosen = np.flatnonzero(level == k)
        ends = np.searchsorted(chosen, bounds)
        parts.append(Value(rows[chosen], Lod.of_offsets([ends])))
        places.append(chosen)
    restore = np.empty((len(rows), 1), np.int32)
    restore[np.concatenate(places), 0] = np.arange(len(rows))
    return parts, Value(restore)


def _distributed_infer(
    regions: Meta, min_level: int, max_level: int, refer_level: int, refer_scale: int
) -> Metas:
    if not 0 < min_level <= max_level:
        raise GraphError(f"levels must ascend from 1 on, got {min_level}..{max_level}")
    part = Meta((-1, 4), regions.dtype, lod=Lod(1))
    return [part] * (max_level - min_level + 1), Meta((-1, 1), "int32")


define(
    "distribute_fpn_proposals",
    "FpnRois -> MultiFpnRois*, RestoreIndex",
    rows=not_on_rows,
    attrs={"min_level": 2, "max_level": 5, "refer_level": 4, "refer_scale": 224},
    infer=_distributed_infer,
    values=_distributed,
)


def _collected(regions: Sequence[Value], scores: Sequence[Value], post_nms_topN: int) -> Value:
    type = "collect_fpn_proposals"
    bounds = [bounds_of(part, type, "MultiLevelRois") for part in regions]
    for k, (bound, part, score) in enumerate(zip(bounds, regions, scores, strict=True)):
        slot = f"MultiLevelRois[{k}]"
        same_counts(
            type, "images", **{"MultiLevelRois[0]": len(bounds[0]) - 1, slot: len(bound) - 1}
        )
        numbers = {slot: len(part.array), f"MultiLevelScores[{k}]": len(score.array)}
        same_counts(type, "regions", **numbers)
    images = np.concatenate([np.repeat(np.arange(len(b) - 1), np.diff(b)) for b in bounds])
    rows = np.concatenate([part.array for part in regions])
    chances = np.concatenate([part.array.reshape(-1) for part in scores])
    best = np.argsort(-chances, kind="stable")[:post_nms_topN]
    best = best[np.argsort(images[best], kind="stable")]
    counts = np.bincount(images[best], minlength=len(bounds[0]) - 1)
    return Value(rows[best], Lod.of_lengths([counts]))


define(
    "collect_fpn_proposals",
    "MultiLevelRois*, MultiLevelScores* -> FpnRois",
    rows=not_on_rows,
    attrs={"post_nms_topN": 1000},
    infer=lambda regions, scores, **_: Meta((-1, 4), regions[0].dtype, lod=Lod(1)),
    values=_collected,
)


# -- box_decoder_and_assign: a box for each class, and that of the class that is likeliest ---------
def _decoded_and_assigned(
    xp: ArrayModule, prior, spread, target, score, boxes, chosen, box_clip: float
) -> None:
    """Class 0 is the background: it is not chosen."""
    rows, classes = score.shape
    size = (prior[:, 2:4] - prior[:, :2] + 1)[:, None]
    code = target.reshape(rows, classes, 4) * spread.reshape(4)
    center = prior[:, None, :2] + size / 2 + code[..., :2] * size
    half = xp.exp(xp.minimum(code[..., 2:], box_clip)) * size / 2
    decoded_boxes = xp.concatenate([center - half, center + half - 1], -1)
    if boxes is not None:
        boxes[...] = decoded_boxes.reshape(boxes.shape)
    if chosen is not None:
        best = score[:, 1:].argmax(1) + 1
        chosen[...] = decoded_boxes[xp.arange(rows), best]


def _assigned_infer(prior: Meta, spread: Meta, target: Meta, score: Meta, box_clip: float) -> Metas:
    classes = score.shape[1]
    if target.shape[1] != 4 * classes or classes < 2:
        raise GraphError(
            f"boxes must be given for each of {classes} classes, the first of which is the "
            f"background: expected {4 * classes} columns, got {target.shape[1]}"
        )
    return Meta(target.shape, target.dtype), Meta((target.shape[0], 4), target.dtype)


define(
    "box_decoder_and_assign",
    "PriorBox, PriorBoxVar, TargetBox, BoxScore -> DecodeBox, OutputAssignBox",
    rows=by_row("PriorBox", "TargetBox", "BoxScore"),
    attrs={"box_clip": 4.135},
    infer=shaped("PriorBox: n 4; PriorBoxVar: 4; TargetBox: n m; BoxScore: n c", _assigned_infer),
    kernel=_decoded_and_assigned,
)

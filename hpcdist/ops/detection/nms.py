"""Non-maximum suppression: by decay, by merging, over several levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.graph.values import Value
from hpcdist.ops.detection.proposals import decoded, joined, same_counts, suppress
from hpcdist.ops.tensor.where_unique import NMS, best_first
from hpcdist.ops.types import Array, Operands


def _nothing(images: int, dtype) -> Value:
    """Say as Fluid does that there are no boxes at all."""
    lod = Lod.of_lengths([[1] + [0] * (images - 1)])
    return Value(np.full((1, 1), -1, dtype), lod)


# -- matrix_nms (Wang et al., 2020) ----------------------------------------------------------------
def _matrix(
    boxes: Value,
    scores: Value,
    background_label: int,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    normalized: bool,
    use_gaussian: bool,
    gaussian_sigma: float,
) -> tuple[Value, Value]:
    from hpcdist.ops.detection.nms_kernels import decay

    if use_gaussian and not gaussian_sigma > 0:
        raise FeedError(f"matrix_nms: gaussian_sigma must be above 0, got {gaussian_sigma}")
    dtype = boxes.array.dtype
    rows, places = [], []
    for image, image_scores in enumerate(scores.array):
        detections = []
        for label, chance in enumerate(image_scores):
            if label == background_label:
                continue
            order = best_first(chance, score_threshold, nms_top_k)
            lower = np.empty(len(order), dtype)
            candidates = np.ascontiguousarray(boxes.array[image, order])
            sigma = gaussian_sigma if use_gaussian else 0.0
            decay(candidates, chance[order], 0.0 if normalized else 1.0, sigma, lower)
            detections += [(s, label, i) for s, i in zip(lower, order) if s > post_threshold]
        detections.sort(key=lambda item: -item[0])
        detections = detections[:keep_top_k] if keep_top_k > -1 else detections
        rows.append(np.array([[c, s, *boxes.array[image, i]] for s, c, i in detections], dtype))
        places.append(
            np.array([image * boxes.array.shape[1] + i for _, _, i in detections], np.int32)
        )
    return joined(rows, 6, dtype), joined(places, 1, np.int32)


define(
    "matrix_nms",
    "BBoxes, Scores -> Out, Index",
    rows=not_on_rows,
    attrs={
        "background_label": 0,
        "score_threshold": 0.0,
        "post_threshold": 0.0,
        "nms_top_k": -1,
        "keep_top_k": -1,
        "normalized": True,
        "use_gaussian": False,
        "gaussian_sigma": 2.0,
    },
    infer=lambda boxes, scores, **_: (
        Meta((-1, 6), boxes.dtype, lod=Lod(1)),
        Meta((-1, 1), "int32", lod=Lod(1)),
    ),
    values=_matrix,
)


# -- locality_aware_nms (Zhou et al., 2017) --------------------------------------------------------
def _is_convex(boxes) -> Array:
    """Return which polygons [..., corners, 2] are convex, bool."""
    sides = np.roll(boxes, -1, -2) - boxes
    after = np.roll(sides, -1, -2)
    turns = sides[..., 0] * after[..., 1] - sides[..., 1] * after[..., 0]
    return (turns >= 0).all(-1) | (turns <= 0).all(-1)


def _merged(
    boxes: Value,
    scores: Value,
    background_label: int,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    nms_eta: float,
    keep_top_k: int,
    normalized: bool,
) -> Value:
    from hpcdist.ops.detection.nms_kernels import keep_polygons_apart, merge_neighbours

    images, count, width = boxes.array.shape
    polygons = boxes.array.reshape(images, count, width // 2, 2)
    if width > 4 and not _is_convex(polygons).all():
        image, box = np.argwhere(~_is_convex(polygons))[0]
        raise FeedError(
            f"locality_aware_nms: box {box} of image {image} is a polygon that is not convex; "
            "split it, or give rectangles [N, M, 4]"
        )
    room = np.empty((2, 2 * width, 2), polygons.dtype)
    more = 0.0 if normalized else 1.0
    by_image = []
    for image_polygons, image_scores in zip(polygons.copy(), scores.array[:, 0].copy()):
        last = np.zeros(count, np.bool_)
        if background_label != 0:
            merge_neighbours(image_polygons, image_scores, nms_threshold, more, room, last)
        places = np.flatnonzero(last & (image_scores > score_threshold))
        order = places[np.argsort(-image_scores[places], kind="stable")]
        order = order[:nms_top_k] if nms_top_k > -1 else order
        places_kept = np.empty(len(order), np.int64)
        size = keep_polygons_apart(
            image_polygons[order], nms_threshold, nms_eta, more, room, places_kept
        )
        order = order[places_kept[:size]]
        order = order[:keep_top_k] if keep_top_k > -1 else order
        label = np.zeros((len(order), 1))
        by_image.append(
            np.concatenate(
                [label, image_scores[order, None], image_polygons[order].reshape(-1, width)], axis=1
            )
        )
    dtype = boxes.array.dtype
    return (
        joined(by_image, width + 2, dtype) if any(map(len, by_image)) else _nothing(images, dtype)
    )


def _merged_infer(boxes: Meta, scores: Meta, **_) -> Meta:
    if len(scores.shape) != 3 or scores.shape[1] != 1:
        raise GraphError(f"scores must be [N, 1, boxes], of one class, got {scores.shape}")
    if boxes.shape[2] not in (4, 8, 16, 24, 32):
        raise GraphError(f"boxes must have 4, 8, 16, 24 or 32 numbers, got {boxes.shape[2]}")
    return Meta((-1, boxes.shape[2] + 2), boxes.dtype, lod=Lod(1))


define(
    "locality_aware_nms",
    "BBoxes, Scores -> Out",
    rows=not_on_rows,
    attrs={**NMS, "background_label": -1},
    infer=_merged_infer,
    values=_merged,
)


# -- retinanet_detection_output --------------------------------------------------------------------
def _of_level(scores, deltas, anchors, info, threshold: float, most: int) -> Operands:
    """Return classes, scores and boxes of a level that are likely enough, the best first."""
    flat = scores.reshape(-1)
    order = best_first(flat, threshold, most)
    anchor, label = np.divmod(order, scores.shape[1])
    box = decoded(anchors[anchor], deltas[anchor]) / info[2]
    edge = np.floor(info[[1, 0, 1, 0]] / info[2] + 0.5) - 1
    return label, flat[order], np.maximum(np.minimum(box, edge), 0)


def _detected(
    boxes: Sequence[Value],
    scores: Sequence[Value],
    anchors: Sequence[Value],
    info: Value,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    keep_top_k: int,
    nms_eta: float,
) -> Value:
    for k, (chances, deltas) in enumerate(zip(scores, boxes, strict=True)):
        counts = {f"Scores[{k}]": len(chances.array), f"BBoxes[{k}]": len(deltas.array)}
        same_counts("retinanet_detection_output", "images", **counts, ImInfo=len(info.array))
    by_image = []
    for image, size in enumerate(info.array):
        levels = []
        for k, (level, deltas, anchor) in enumerate(zip(scores, boxes, anchors)):
            least = 0.0 if k == len(scores) - 1 else score_threshold  # the highest has them all
            of_level = level.array[image], deltas.array[image], anchor.array.reshape(-1, 4)
            levels.append(_of_level(*of_level, size, least, nms_top_k))
        label, chance, made = (np.concatenate(parts) for parts in zip(*levels))
        rows = []
        for kind in np.unique(label):
            places = np.flatnonzero(label == kind)
            places = places[np.argsort(-chance[places], kind="stable")]
            rows.append(places[suppress(made[places], nms_threshold, nms_eta, False)])
        survivors = np.concatenate([np.zeros(0, np.int64), *rows])
        survivors = survivors[np.argsort(-chance[survivors], kind="stable")][:keep_top_k]
        label_scores = np.stack(
            [label[survivors] + 1, chance[survivors]], 1
        )  # class 0 is the background
        by_image.append(np.concatenate([label_scores, made[survivors]], 1))
    dtype = scores[0].array.dtype
    if any(map(len, by_image)):
        return joined(by_image, 6, dtype)
    return Value(np.zeros((1, 1), dtype), Lod.of_lengths([[1] + [0] * (len(by_image) - 1)]))


def _detected_infer(
    boxes: Sequence[Meta], scores: Sequence[Meta], anchors: Sequence[Meta], info: Meta, **options
) -> Meta:
    if not len(boxes) == len(scores) == len(anchors):
        raise GraphError(
            f"boxes of {len(boxes)} levels, scores of {len(scores)}, anchors of {len(anchors)}"
        )
    if options["keep_top_k"] < 0:
        raise GraphError(f"keep_top_k must not be negative, got {options['keep_top_k']}")
    return Meta((-1, 6), scores[0].dtype, lod=Lod(1))


define(
    "retinanet_detection_output",
    "BBoxes*, Scores*, Anchors*, ImInfo -> Out",
    rows=not_on_rows,
    attrs={
        "score_threshold": 0.05,
        "nms_top_k": 1000,
        "nms_threshold": 0.3,
        "keep_top_k": 100,
        "nms_eta": 1.0,
    },
    infer=_detected_infer,
    values=_detected,
)

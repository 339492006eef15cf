"""Selections by value, whose number is known only in the step: where, unique, boxes kept."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.graph.values import Value
from hpcdist.ops.detection.proposals import suppress
from hpcdist.ops.types import DeviceArray, Metas

define(
    "where_index",
    "Condition -> Out",
    rows=not_on_rows,
    infer=lambda x: Meta((-1, len(x.shape)), "int64"),
    values=lambda x: Value(np.argwhere(x.array).astype(np.int64)),
)


def _unique(x: Value, dtype: str, counted: bool = False) -> Any:
    """Numbers in the order in which they are met first, where each element is among them."""
    flat = x.array.reshape(-1)
    _, first, inverse, counts = np.unique(
        flat, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    index = Value(place[inverse.reshape(-1)].astype(dtype))
    unique = Value(flat[first[order]]), index
    return (*unique, Value(counts[order].astype(dtype))) if counted else unique


def _unique_infer(x: Meta, dtype: str) -> Metas:
    return Meta((-1,), x.dtype), Meta((-1,), dtype)


define(
    "unique",
    "X -> Out, Index",
    rows=not_on_rows,
    attrs={"dtype": "int32"},
    infer=_unique_infer,
    values=_unique,
)
define(
    "unique_with_counts",
    "X -> Out, Index, Count",
    rows=not_on_rows,
    attrs={"dtype": "int32"},
    infer=lambda x, dtype: (*_unique_infer(x, dtype), Meta((-1,), dtype)),
    values=lambda x, dtype: _unique(x, dtype, True),
)


# -- multiclass_nms: of boxes that overlap, the one with the highest score ------------------------
def best_first(scores, threshold: float, most: int) -> np.ndarray:
    """Return where scores [n] above a threshold are, the highest first; ``most``: -1 is all."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > threshold]
    return order[:most] if most > -1 else order


def _nms_of_class(
    boxes, scores, threshold: float, top: int, nms: float, eta: float, normalized: bool
) -> list[int]:
    """Return the places of the boxes of a class that are kept, by falling scores."""
    order = best_first(scores, threshold, top)
    chosen = suppress(boxes[order], nms, eta, normalized)
    return [int(order[i]) for i in chosen]


def _images(boxes: Value, scores: Value) -> list[tuple[DeviceArray, DeviceArray, DeviceArray]]:
    """Return for each image boxes [classes, boxes, ...], scores and places [classes, boxes].

    Scores are [images, classes, boxes], and all classes share boxes [images, boxes, ...]; or they
    are [boxes, classes], of boxes [boxes, classes, ...] in sequences, one for each image.
    """
    count, classes = scores.array.shape[-1], scores.array.shape[1]
    if scores.array.ndim == 3:
        places = np.broadcast_to(np.arange(count), (classes, count))
        boxes_by_class = [np.broadcast_to(b, (classes, *b.shape)) for b in boxes.array]
        return [
            (b, s, n * count + places) for n, (b, s) in enumerate(zip(boxes_by_class, scores.array))
        ]
    lod = boxes.lod or scores.lod
    if lod is None:
        raise FeedError("multiclass_nms: boxes of single classes must be sequences, by images")
    places = np.arange(scores.array.size).reshape(-1, classes).T
    own_boxes, own_scores = boxes.array.swapaxes(0, 1), scores.array.T
    parts = itertools.pairwise(lod.last)
    return [(own_boxes[:, a:b], own_scores[:, a:b], places[:, a:b]) for a, b in parts]


def _nms(
    boxes: Value,
    scores: Value,
    background_label: int,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    nms_eta: float,
    keep_top_k: int,
    normalized: bool,
) -> tuple[Value, Value]:
    """Rows (class, score, x1, y1, x2, y2) of each image, and the places of their boxes."""
    rows, index, lengths = [], [], []
    images = _images(boxes, scores)
    for own_boxes, own_scores, places in images:
        detections = []
        for label, class_scores in enumerate(own_scores):
            if label != background_label:
                options = score_threshold, nms_top_k, nms_threshold, nms_eta, normalized
                detections += [
                    (label, i) for i in _nms_of_class(own_boxes[label], class_scores, *options)
                ]
        if -1 < keep_top_k < len(detections):
            best = sorted(detections, key=lambda f: -own_scores[f])[:keep_top_k]
            detections = sorted(best, key=lambda f: f[0])
        if scores.array.ndim == 2:  # as Fluid has it, by their places, not their scores
            detections.sort()
        rows += [[c, own_scores[c, i], *own_boxes[c, i]] for c, i in detections]
        index += [places[c, i] for c, i in detections]
        lengths.append(len(detections))
    lod = Lod.of_lengths([np.array(lengths)])
    places = np.array(index, np.int32).reshape(-1, 1)
    return Value(np.array(rows, boxes.array.dtype).reshape(-1, 6), lod), Value(places, lod)


def _nms_or_mark(boxes: Value, scores: Value, **options: Any) -> Value:
    """Rows as of `_nms`; [[-1]], one sequence however many the images, if there are none at all."""
    found, _ = _nms(boxes, scores, **options)
    if len(found.array):
        return found
    return Value(np.full((1, 1), -1, boxes.array.dtype), Lod.of_lengths([np.array([1])]))


def _nms_infer(boxes: Meta, scores: Meta) -> Meta:
    of_boxes, of_scores = boxes.shape, scores.shape
    among = of_scores[2:] or of_scores[1:]  # of [images, classes, boxes], or of [boxes, classes]
    pairs = zip(of_boxes, (*of_scores[:1], *among))
    fits = len(of_boxes) == 3 and len(of_scores) in (2, 3)
    if not fits or any(a != b and -1 not in (a, b) for a, b in pairs):
        raise GraphError(
            "multiclass_nms: expected boxes [images, boxes, 4] and scores [images, classes, boxes] "
            f"or, in sequences, [boxes, classes, 4] and [boxes, classes], got {list(of_boxes)} and "
            f"{list(of_scores)}"
        )
    return Meta((-1, 6), boxes.dtype, lod=Lod(1))


NMS = {
    "background_label": 0,
    "score_threshold": 0.0,
    "nms_top_k": -1,
    "nms_threshold": 0.3,
    "nms_eta": 1.0,
    "keep_top_k": -1,
    "normalized": True,
}
define(
    "multiclass_nms",
    "BBoxes, Scores -> Out",
    rows=not_on_rows,
    attrs=NMS,
    infer=lambda boxes, scores, **_: _nms_infer(boxes, scores),
    values=_nms_or_mark,
)
define(
    "multiclass_nms2",
    "BBoxes, Scores -> Out, Index",
    rows=not_on_rows,
    attrs=NMS,
    infer=lambda boxes, scores, **_: (
        _nms_infer(boxes, scores),
        Meta((-1, 1), "int32", lod=Lod(1)),
    ),
    values=_nms,
)

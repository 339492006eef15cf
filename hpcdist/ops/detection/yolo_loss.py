"""yolov3_loss: losses of box positions, objectness and classes (Redmon, Farhadi, 2018).

X is [N, anchors * (5 + classes), rows, columns]: of each anchor x, y, width, height, whether there
is a box, and the classes. True boxes are (center x, center y, width, height) in parts of the image;
those without width or height do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.common import define_with_grad, same
from hpcdist.ops.formulas import sigmoid
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, Metas

_NOTHING = 1e-6


@dataclass(frozen=True)
class _Head:
    """What the attributes say, for a map of rows x columns."""

    anchors: np.ndarray  # [all anchors, 2]: width and height in pixels
    own: tuple[int, ...]  # those of this head
    classes: int
    pixels: float  # of the input, along each side
    shift: float
    scale: float
    labels: tuple[float, float]  # of the right class, and of the others

    @staticmethod
    def of(
        x,
        anchors: Sequence[int],
        anchor_mask: Sequence[int],
        class_num: int,
        downsample_ratio: int,
        use_label_smooth: bool,
        scale_x_y: float,
        **_,
    ) -> _Head:
        smooth = min(1 / class_num, 1 / 40) if use_label_smooth else 0.0
        return _Head(
            np.array(anchors, float).reshape(-1, 2),
            tuple(anchor_mask),
            class_num,
            float(downsample_ratio * x.shape[2]),
            -0.5 * (scale_x_y - 1),
            scale_x_y,
            (1 - smooth, smooth),
        )

    def raw_map(self, x) -> Array:
        """View X as [N, anchors, 5 + classes, rows, columns]."""
        return x.reshape(len(x), len(self.own), 5 + self.classes, *x.shape[2:])


def _shared(a, b) -> Array:
    """Return |a and b| / |a or b| of boxes (center x, center y, width, height)."""
    low = np.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = np.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    sides = np.maximum(high - low, 0)
    both = sides[..., 0] * sides[..., 1]
    either = a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - both
    return both / np.where(either > 0, either, 1)


def _predicted(head: _Head, raw, chance) -> Array:
    """Return the boxes that are raw_map [N, anchors, rows, columns, 4]."""
    grid = raw.shape[3]  # as Fluid: the map is taken to be as wide as it is high
    columns, rows = np.arange(raw.shape[4]), np.arange(raw.shape[3])[:, None]
    center_x = (columns + chance[:, :, 0] * head.scale + head.shift) / grid
    center_y = (rows + chance[:, :, 1] * head.scale + head.shift) / grid
    sizes = head.anchors[list(head.own)] / head.pixels
    width = np.exp(raw[:, :, 2]) * sizes[:, 0].reshape(1, -1, 1, 1)
    height = np.exp(raw[:, :, 3]) * sizes[:, 1].reshape(1, -1, 1, 1)
    return np.stack([center_x, center_y, width, height], -1)


def _targets(
    head: _Head, said, boxes, scores, match
) -> Iterator[tuple[int, int, int, float, _Target]]:
    """Yield (image, box, anchor, score, target) of the boxes that an anchor of this head has."""
    for n, t in np.argwhere(match >= 0).tolist():
        anchor, score = match[n, t], 1.0 if scores is None else float(scores[n, t])
        yield n, t, anchor, score, _Target.of(head, said, boxes[n, t], anchor, score)


def _matched(head: _Head, boxes) -> Array:
    """Return for each true box the anchor of this head that is the most like it, -1: none."""
    real = (boxes[..., 2] > _NOTHING) & (boxes[..., 3] > _NOTHING)
    flat = np.concatenate([np.zeros_like(boxes[..., 2:]), boxes[..., 2:]], -1)
    priors = np.concatenate([np.zeros_like(head.anchors), head.anchors / head.pixels], -1)
    best = _shared(priors[None, None], flat[:, :, None]).argmax(-1)
    place = np.full(len(head.anchors), -1)
    place[list(head.own)] = np.arange(len(head.own))
    return np.where(real, place[best], -1).astype(np.int32)


@dataclass(frozen=True)
class _Target:
    """Of one true box: its cell, and what should be raw_map there."""

    row: int
    column: int
    place: np.ndarray  # x, y within the cell; logarithms of width and height
    weight: float

    @staticmethod
    def of(head: _Head, raw, box, anchor: int, score: float) -> _Target:
        rows, columns = raw.shape[3:]
        column, row = int(box[0] * columns), int(box[1] * rows)
        size = np.log(box[2:] * head.pixels / head.anchors[head.own[anchor]])
        place = np.array([box[0] * rows - column, box[1] * rows - row, *size])
        return _Target(row, column, place, float((2 - box[2] * box[3]) * score))


def _entropy(x, label) -> Array:
    return np.maximum(x, 0) - x * label + np.log1p(np.exp(-np.abs(x)))


def _labels(head: _Head, label: int) -> np.ndarray:
    targets = np.full(head.classes, head.labels[1])
    targets[label] = head.labels[0]
    return targets


def _expect_within(head: _Head, real: Array, boxes: Array, labels: Array) -> None:
    """Raise FeedError if a true box is of no class, or has its center beside the image."""
    centers = boxes[..., :2]
    inside = ((centers >= 0) & (centers < 1)).all(-1) & (labels >= 0) & (labels < head.classes)
    for image, box in np.argwhere(real & ~inside)[:1]:
        raise FeedError(
            f"yolov3_loss: box {box} of image {image}: expected a center within [0, 1) and a label "
            f"in 0..{head.classes - 1}, got {centers[image, box].tolist()} and {labels[image, box]}"
        )


def _host(*arrays) -> list[Array]:
    return [None if a is None else on_host(a) for a in arrays]


def _loss(
    xp: ArrayModule, x, boxes, labels, scores, loss, objects, match, ignore_thresh: float, **facts
) -> None:
    head = _Head.of(x, **facts)
    x, boxes, labels, scores = _host(x, boxes, labels, scores)
    raw = head.raw_map(x)
    chance = sigmoid(np, raw)
    matched = _matched(head, boxes)
    real = (boxes[..., 2] > _NOTHING) & (boxes[..., 3] > _NOTHING)
    _expect_within(head, real, boxes, labels)
    objectness = np.zeros((len(x), len(head.own), *x.shape[2:]), x.dtype)
    predicted = _predicted(head, raw, chance)
    for t in range(boxes.shape[1]):  # boxes predicted well enough are no background
        alike = _shared(predicted, boxes[:, t].reshape(-1, 1, 1, 1, 4))
        objectness[(alike > ignore_thresh) & real[:, t].reshape(-1, 1, 1, 1)] = -1
    total = np.zeros(len(x))
    for n, t, anchor, score, target in _targets(head, raw, boxes, scores, matched):
        one = raw[n, anchor, :, target.row, target.column]
        total[n] += target.weight * _entropy(one[:2], target.place[:2]).sum()
        total[n] += target.weight * np.abs(one[2:4] - target.place[2:]).sum()
        total[n] += score * _entropy(one[5:], _labels(head, int(labels[n, t]))).sum()
        objectness[n, anchor, target.row, target.column] = score
    has_object, nothing = objectness > 1e-5, (objectness > -0.5) & (objectness <= 1e-5)
    each = has_object * objectness * _entropy(raw[:, :, 4], 1) + nothing * _entropy(raw[:, :, 4], 0)
    loss[...] = xp.asarray((total + each.sum((1, 2, 3))).astype(x.dtype))
    objects[...] = xp.asarray(objectness)
    match[...] = xp.asarray(matched)


def _loss_grad(
    xp: ArrayModule, x, boxes, labels, scores, objects, match, dloss, dx, **facts
) -> None:
    head = _Head.of(x, **facts)
    x, boxes, labels, scores, objectness, match = _host(x, boxes, labels, scores, objects, match)
    raw = head.raw_map(x)
    chance = sigmoid(np, raw)
    slopes = np.zeros_like(raw)
    for n, t, anchor, score, target in _targets(head, raw, boxes, scores, match):
        at = (n, anchor, slice(None), target.row, target.column)
        off = chance[at][:2] - target.place[:2], np.sign(raw[at][2:4] - target.place[2:])
        classes = chance[at][5:] - _labels(head, int(labels[n, t]))
        slopes[at] += np.concatenate([*(target.weight * o for o in off), [0.0], score * classes])
    matched, nothing = objectness > 1e-5, (objectness > -0.5) & (objectness <= 1e-5)
    slopes[:, :, 4] = matched * objectness * (chance[:, :, 4] - 1) + nothing * chance[:, :, 4]
    dx[...] = xp.asarray(slopes.reshape(x.shape)) * dloss.reshape(-1, 1, 1, 1)


def _infer(
    x: Meta,
    boxes: Meta,
    labels: Meta,
    scores: Meta | None,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    **_,
) -> Metas:
    channels = len(anchor_mask) * (5 + class_num)
    if x.shape[1] != channels:
        raise GraphError(
            f"{len(anchor_mask)} anchors and {class_num} classes need {channels} channels, got "
            f"shape {x.shape}"
        )
    objectness = Meta((x.shape[0], len(anchor_mask), *x.shape[2:]), x.dtype)
    return Meta(x.shape[:1], x.dtype), objectness, Meta(boxes.shape[:2], "int32")


define_with_grad(
    "yolov3_loss",
    "X, GTBox, GTLabel, GTScore? -> Loss, ObjectnessMask, GTMatchMask",
    "X, GTBox, GTLabel, GTScore?, ObjectnessMask, GTMatchMask, Loss@GRAD -> X@GRAD",
    rows=by_row("X", "GTBox", "GTLabel", "GTScore"),
    attrs={
        "anchors": (),
        "anchor_mask": (),
        "class_num": 1,
        "ignore_thresh": 0.7,
        "downsample_ratio": 32,
        "use_label_smooth": True,
        "scale_x_y": 1.0,
    },
    infer=shaped("X: n channels h w; GTBox: n boxes 4; GTLabel: n boxes; GTScore: n boxes", _infer),
    kernel=_loss,
    grad_kernel=_loss_grad,
    grad_infer=lambda x, *_, **__: same(x),
)

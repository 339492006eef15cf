"""Boxes in images: overlaps, codes, the output of a YOLO head. None has a gradient.

A box is (x1, y1, x2, y2). Where boxes are not ``normalized`` to the image's size, they are pixels,
the last ones included, and one pixel longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.formulas import sigmoid
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import ArrayModule, DeviceArray, Metas


# -- overlaps and codes ----------------------------------------------------------------------------
def overlaps(xp: ArrayModule, x, y, normalized: bool) -> DeviceArray:
    """Return |x and y| / |x or y| of all pairs of boxes [n, 4] and [m, 4]."""
    more = 0 if normalized else 1
    low = xp.maximum(x[:, None, :2], y[None, :, :2])
    high = xp.minimum(x[:, None, 2:], y[None, :, 2:])
    sides = xp.maximum(high - low + more, 0)
    shared = sides[..., 0] * sides[..., 1]
    areas = [(b[:, 2] - b[:, 0] + more) * (b[:, 3] - b[:, 1] + more) for b in (x, y)]
    either = areas[0][:, None] + areas[1][None, :] - shared
    return xp.where(shared > 0, shared / xp.where(either == 0, 1, either), 0)


def _iou(xp: ArrayModule, x, y, out, box_normalized: bool) -> None:
    out[...] = overlaps(xp, x, y, box_normalized)


define(
    "iou_similarity",
    "X, Y -> Out",
    rows=not_on_rows,
    attrs={"box_normalized": True},
    infer=shaped(
        "X: n 4; Y: m 4", lambda x, y, box_normalized: Meta((x.shape[0], y.shape[0]), x.dtype)
    ),
    kernel=_iou,
)

_ENCODE, _DECODE = "encode_center_size", "decode_center_size"


def _coder_infer(prior: Meta, spread: Meta | None, target: Meta, code_type: str, **_) -> Meta:
    if code_type not in (_ENCODE, _DECODE):
        raise GraphError(f"code_type must be {_ENCODE} or {_DECODE}, got {code_type!r}")
    if code_type == _ENCODE:
        return Meta((target.shape[0], prior.shape[0], 4), target.dtype)
    return Meta(target.shape, target.dtype)


def _centers(xp: ArrayModule, boxes, more: int) -> tuple[DeviceArray, DeviceArray]:
    size = boxes[..., 2:] - boxes[..., :2] + more
    return boxes[..., :2] + size / 2, size


def _box_coder(
    xp: ArrayModule,
    prior,
    spread,
    target,
    out,
    code_type: str,
    box_normalized: bool,
    axis: int,
    variance: Sequence[float],
) -> None:
    """Encode boxes by their distances from priors, or decode them; distances count by variances."""
    more = 0 if box_normalized else 1
    middle, size = _centers(xp, prior, more)
    given = variance if len(variance) else (1.0,) * 4
    weights = spread if spread is not None else xp.asarray(np.array(given))
    if code_type == _ENCODE:
        center = ((target[:, :2] + target[:, 2:]) / 2)[:, None]
        extent = (target[:, 2:] - target[:, :2] + more)[:, None]
        out[..., :2] = (center - middle) / size
        out[..., 2:] = xp.log(xp.absolute(extent / size))
        out[...] = out / weights
        return
    if axis == 1:
        middle, size = middle[:, None], size[:, None]
        weights = weights[:, None] if spread is not None else weights
    code = target * weights
    center = code[..., :2] * size + middle
    half = xp.exp(code[..., 2:]) * size / 2
    out[..., :2] = center - half
    out[..., 2:] = center + half - more


define(
    "box_coder",
    "PriorBox, PriorBoxVar?, TargetBox -> OutputBox",
    rows=not_on_rows,
    attrs={"code_type": _ENCODE, "box_normalized": True, "axis": 0, "variance": ()},
    infer=_coder_infer,
    kernel=_box_coder,
)


def _box_clip_bind(xp: ArrayModule, x, info, out, lods) -> Any:
    lengths: Any = [len(x) // max(len(info), 1)] * len(info)
    if lods[0] is not None:
        lengths = np.diff(np.asarray(lods[0].offsets[-1]))
    owner = xp.asarray(np.repeat(np.arange(len(info)), lengths))

    def run() -> None:
        size = xp.rint(info[:, :2] / info[:, 2:3])[owner] - 1  # rows, columns
        boxes = x.reshape(len(owner), -1, 4)
        most = size[:, [1, 0, 1, 0]].reshape(-1, 1, 4)
        out.reshape(boxes.shape)[...] = xp.minimum(xp.maximum(boxes, 0), most)

    return run


define(
    "box_clip",
    "Input, ImInfo -> Output",
    rows=not_on_rows,
    infer=lambda x, info: Meta(x.shape, x.dtype, lod=x.lod),
    bind=_box_clip_bind,
    lods=("Input",),
)


# -- what the head of a YOLO network says (Redmon, Farhadi, 2018) ----------------------------------
def _yolo_infer(x: Meta, size: Meta, anchors: Sequence[int], class_num: int, **_) -> Metas:
    count = len(anchors) // 2
    if x.shape[1] != count * (5 + class_num):
        raise GraphError(
            f"{count} anchors and {class_num} classes need {count * (5 + class_num)} channels, got "
            f"{x.shape[1]}"
        )
    cells = -1 if min(x.shape[2:]) < 0 else count * x.shape[2] * x.shape[3]
    return Meta((x.shape[0], cells, 4), x.dtype), Meta((x.shape[0], cells, class_num), x.dtype)


def _yolo_box(
    xp: ArrayModule,
    x,
    size,
    boxes,
    scores,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool,
    scale_x_y: float,
) -> None:
    n, _, rows, columns = x.shape
    count = len(anchors) // 2
    raw = x.reshape(n, count, 5 + class_num, rows, columns)
    chance = sigmoid(xp, raw)
    sure = chance[:, :, 4] >= conf_thresh
    high, wide = (size[:, i].reshape(-1, 1, 1, 1).astype(x.dtype) for i in (0, 1))
    anchor = xp.asarray(np.array(anchors, x.dtype.name).reshape(1, count, 2, 1, 1))
    shift = -0.5 * (scale_x_y - 1)
    # As Fluid: the map and the input are taken to be as wide as they are high.
    across = (xp.arange(columns) + chance[:, :, 0] * scale_x_y + shift) * wide / rows
    down = (xp.arange(rows).reshape(-1, 1) + chance[:, :, 1] * scale_x_y + shift) * high / rows
    width = xp.exp(raw[:, :, 2]) * anchor[:, :, 0] * wide / (downsample_ratio * rows)
    height = xp.exp(raw[:, :, 3]) * anchor[:, :, 1] * high / (downsample_ratio * rows)
    sides = [across - width / 2, down - height / 2, across + width / 2, down + height / 2]
    if clip_bbox:
        sides = [xp.maximum(side, 0) for side in sides[:2]] + [
            xp.minimum(side, most - 1) for side, most in zip(sides[2:], (wide, high))
        ]
    if boxes is not None:
        boxes[...] = xp.stack([side * sure for side in sides], -1).reshape(boxes.shape)
    if scores is not None:
        each = chance[:, :, 5:] * (chance[:, :, 4] * sure)[:, :, None]
        scores[...] = each.transpose(0, 1, 3, 4, 2).reshape(scores.shape)


define(
    "yolo_box",
    "X, ImgSize -> Boxes, Scores",
    rows=not_on_rows,
    attrs={
        "anchors": (),
        "class_num": 1,
        "conf_thresh": 0.01,
        "downsample_ratio": 32,
        "clip_bbox": True,
        "scale_x_y": 1.0,
    },
    infer=_yolo_infer,
    kernel=_yolo_box,
)


def _polygon(xp: ArrayModule, x, out) -> None:
    """Turn distances of corners from pixels of a 4 times smaller map into places."""
    columns, rows = xp.arange(x.shape[3]) * 4, xp.arange(x.shape[2]).reshape(-1, 1) * 4
    out[:, ::2] = columns - x[:, ::2]
    out[:, 1::2] = rows - x[:, 1::2]


define(
    "polygon_box_transform",
    "Input -> Output",
    rows=not_on_rows,
    infer=lambda x: Meta(x.shape, x.dtype),
    kernel=_polygon,
)

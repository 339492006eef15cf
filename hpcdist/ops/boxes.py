"""Boxes in images: priors and anchors, overlaps, codes, what a YOLO head says. None has a gradient.

A box is (x1, y1, x2, y2). Where boxes are not ``normalized`` to the image's size, they are pixels,
the last ones included, and one pixel longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import SAME, Applied, OfRows, not_on_rows
from hpcdist.ops.activation import sigmoid


def _of_shapes(op: Applied) -> OfRows:
    """The values of the operands do not matter, nor their rows."""
    return SAME


def _halves(sizes: Sequence[tuple[float, float]]) -> np.ndarray:
    return np.array(sizes) / 2


def _grid(extents: Sequence[int], steps: Sequence[float], offset: float) -> np.ndarray:
    """Return centers [rows, columns, 1, 2] (x, y) of the cells of a map."""
    rows, columns = ((np.arange(n) + offset) * s for n, s in zip(extents, steps))
    return np.stack(np.meshgrid(columns, rows), -1)[:, :, None]


def _write_priors(xp: Any, boxes: Any, variances: Any, made: np.ndarray, spread: Any) -> None:
    if boxes is not None:
        boxes[...] = xp.asarray(made.reshape(boxes.shape).astype(boxes.dtype.name))
    if variances is not None:
        variances[...] = xp.asarray(np.array(spread, variances.dtype.name))


# -- prior boxes of SSD (Liu et al., 2016) ---------------------------------------------------------
def _ratios(aspect_ratios: Sequence[float], flip: bool) -> list[float]:
    found = [1.0]
    for ratio in aspect_ratios:
        if all(abs(ratio - other) >= 1e-6 for other in found):
            found += [ratio, 1 / ratio] if flip else [ratio]
    return found


def _prior_sizes(
    min_sizes: Sequence[float],
    max_sizes: Sequence[float],
    ratios: Sequence[float],
    in_order: bool,
) -> list[tuple[float, float]]:
    sizes = []
    for i, least in enumerate(min_sizes):
        shaped = [(least * math.sqrt(r), least / math.sqrt(r)) for r in ratios]
        middle = [(math.sqrt(least * max_sizes[i]),) * 2] if max_sizes else []
        if in_order:  # the square ones first
            sizes += [(least, least), *middle]
            sizes += [size for size, r in zip(shaped, ratios) if abs(r - 1) >= 1e-6]
        else:
            sizes += [*shaped, *middle]
    return sizes


_PRIOR = {
    "min_sizes": (),
    "max_sizes": (),
    "aspect_ratios": (),
    "variances": (0.1, 0.1, 0.2, 0.2),
    "flip": False,
    "clip": False,
    "step_w": 0.0,
    "step_h": 0.0,
    "offset": 0.5,
    "min_max_aspect_ratios_order": False,
}


def _prior_infer(
    x: Meta,
    image: Meta,
    min_sizes: Sequence[float],
    max_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    flip: bool,
    **_: Any,
) -> Any:
    if max_sizes and len(max_sizes) != len(min_sizes):
        raise GraphError(f"{len(max_sizes)} max_sizes do not fit {len(min_sizes)} min_sizes")
    count = len(_prior_sizes(min_sizes, max_sizes, _ratios(aspect_ratios, flip), False))
    made = Meta((*x.shape[2:], count, 4), x.dtype)
    return made, made


def _steps(x: Any, image: Any, step_w: float, step_h: float) -> tuple[float, float]:
    """Return rows' and columns' distances: as many as the map has cells, if they are not given."""
    if step_w and step_h:
        return step_h, step_w
    return image.shape[2] / x.shape[2], image.shape[3] / x.shape[3]


def _prior_box(
    xp: Any,
    x: Any,
    image: Any,
    boxes: Any,
    variances_out: Any,
    min_sizes: Sequence[float],
    max_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    variances: Sequence[float],
    flip: bool,
    clip: bool,
    step_w: float,
    step_h: float,
    offset: float,
    min_max_aspect_ratios_order: bool,
) -> None:
    ratios = _ratios(aspect_ratios, flip)
    half = _halves(_prior_sizes(min_sizes, max_sizes, ratios, min_max_aspect_ratios_order))
    centers = _grid(x.shape[2:], _steps(x, image, step_w, step_h), offset)
    made = np.concatenate([centers - half, centers + half], -1)
    made = made / np.array([image.shape[3], image.shape[2]] * 2)
    _write_priors(xp, boxes, variances_out, np.clip(made, 0, 1) if clip else made, variances)


define(
    "prior_box",
    "Input, Image -> Boxes, Variances",
    rows=_of_shapes,
    attrs=_PRIOR,
    infer=_prior_infer,
    kernel=_prior_box,
)


def _density_infer(
    x: Meta,
    image: Meta,
    densities: Sequence[int],
    fixed_ratios: Sequence[float],
    flatten_to_2d: bool,
    **_: Any,
) -> Any:
    count = sum(d * d for d in densities) * len(fixed_ratios)
    rows, columns = x.shape[2:]
    shape: tuple[int, ...] = (rows, columns, count, 4)
    if flatten_to_2d:
        shape = (-1 if min(rows, columns) < 0 else rows * columns * count, 4)
    return Meta(shape, x.dtype), Meta(shape, x.dtype)


def _density_prior_box(
    xp: Any,
    x: Any,
    image: Any,
    boxes: Any,
    variances_out: Any,
    densities: Sequence[int],
    fixed_sizes: Sequence[float],
    fixed_ratios: Sequence[float],
    variances: Sequence[float],
    clip: bool,
    step_w: float,
    step_h: float,
    offset: float,
    flatten_to_2d: bool,
) -> None:
    """Boxes of each size and shape, ``density`` x ``density`` of them over a cell."""
    steps = _steps(x, image, step_w, step_h)
    cell = int(sum(steps) * 0.5)
    moves, half = [], []
    for size, density in zip(fixed_sizes, densities):
        shift = cell // density
        for ratio in fixed_ratios:
            for i in range(density):
                for j in range(density):
                    first = -cell / 2 + shift / 2
                    moves.append((first + j * shift, first + i * shift))
                    half.append((size * math.sqrt(ratio) / 2, size / math.sqrt(ratio) / 2))
    centers = _grid(x.shape[2:], steps, offset) + np.array(moves)
    made = np.concatenate([centers - np.array(half), centers + np.array(half)], -1)
    made = np.clip(made / np.array([image.shape[3], image.shape[2]] * 2), 0, 1)
    _write_priors(xp, boxes, variances_out, made, variances)


define(
    "density_prior_box",
    "Input, Image -> Boxes, Variances",
    rows=_of_shapes,
    attrs={
        "densities": (),
        "fixed_sizes": (),
        "fixed_ratios": (),
        "variances": (0.1, 0.1, 0.2, 0.2),
        "clip": False,
        "step_w": 0.0,
        "step_h": 0.0,
        "offset": 0.5,
        "flatten_to_2d": False,
    },
    infer=_density_infer,
    kernel=_density_prior_box,
)


# -- anchors of Faster R-CNN (Ren et al., 2015) ----------------------------------------------------
def _anchors(
    xp: Any,
    x: Any,
    anchors: Any,
    variances_out: Any,
    anchor_sizes: Sequence[float],
    aspect_ratios: Sequence[float],
    variances: Sequence[float],
    stride: Sequence[float],
    offset: float,
) -> None:
    width, height = stride
    sizes = []
    for ratio in aspect_ratios:
        base_w = math.floor(math.sqrt(width * height / ratio) + 0.5)
        base_h = math.floor(base_w * ratio + 0.5)
        sizes += [(s / width * base_w - 1, s / height * base_h - 1) for s in anchor_sizes]
    half = _halves(sizes)
    cells = _grid(x.shape[2:], (height, width), 0.0)
    centers = cells + offset * (np.array([width, height]) - 1)
    made = np.concatenate([centers - half, centers + half], -1)
    _write_priors(xp, anchors, variances_out, made, variances)


def _anchors_infer(x: Meta, anchor_sizes: Any, aspect_ratios: Any, **_: Any) -> Any:
    made = Meta((*x.shape[2:], len(anchor_sizes) * len(aspect_ratios), 4), x.dtype)
    return made, made


define(
    "anchor_generator",
    "Input -> Anchors, Variances",
    rows=_of_shapes,
    attrs={
        "anchor_sizes": (),
        "aspect_ratios": (),
        "variances": (0.1, 0.1, 0.2, 0.2),
        "stride": (),
        "offset": 0.5,
    },
    infer=_anchors_infer,
    kernel=_anchors,
)


# -- overlaps and codes ----------------------------------------------------------------------------
def overlaps(xp: Any, x: Any, y: Any, normalized: bool) -> Any:
    """Return |x and y| / |x or y| of all pairs of boxes [n, 4] and [m, 4]."""
    more = 0 if normalized else 1
    low = xp.maximum(x[:, None, :2], y[None, :, :2])
    high = xp.minimum(x[:, None, 2:], y[None, :, 2:])
    sides = xp.maximum(high - low + more, 0)
    shared = sides[..., 0] * sides[..., 1]
    areas = [(b[:, 2] - b[:, 0] + more) * (b[:, 3] - b[:, 1] + more) for b in (x, y)]
    either = areas[0][:, None] + areas[1][None, :] - shared
    return xp.where(shared > 0, shared / xp.where(either == 0, 1, either), 0)


def _iou(xp: Any, x: Any, y: Any, out: Any, box_normalized: bool) -> None:
    out[...] = overlaps(xp, x, y, box_normalized)


define(
    "iou_similarity",
    "X, Y -> Out",
    rows=not_on_rows,
    attrs={"box_normalized": True},
    infer=lambda x, y, box_normalized: Meta((x.shape[0], y.shape[0]), x.dtype),
    kernel=_iou,
)

_ENCODE, _DECODE = "encode_center_size", "decode_center_size"


def _coder_infer(prior: Meta, spread: Meta | None, target: Meta, code_type: str, **_: Any) -> Meta:
    if code_type not in (_ENCODE, _DECODE):
        raise GraphError(f"code_type must be {_ENCODE} or {_DECODE}, got {code_type!r}")
    if code_type == _ENCODE:
        return Meta((target.shape[0], prior.shape[0], 4), target.dtype)
    return Meta(target.shape, target.dtype)


def _centers(xp: Any, boxes: Any, more: int) -> tuple[Any, Any]:
    size = boxes[..., 2:] - boxes[..., :2] + more
    return boxes[..., :2] + size / 2, size


def _box_coder(
    xp: Any,
    prior: Any,
    spread: Any,
    target: Any,
    out: Any,
    code_type: str,
    box_normalized: bool,
    axis: int,
    variance: Sequence[float],
) -> None:
    """Encode boxes by their distances from priors, or decode them; distances count by variances."""
    more = 0 if box_normalized else 1
    middle, size = _centers(xp, prior, more)
    weights = spread if spread is not None else xp.asarray(np.array(variance or (1.0,) * 4))
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


def _box_clip_bind(xp: Any, x: Any, info: Any, out: Any, lods: Any) -> Any:
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
def _yolo_infer(x: Meta, size: Meta, anchors: Sequence[int], class_num: int, **_: Any) -> Any:
    count = len(anchors) // 2
    if x.shape[1] != count * (5 + class_num):
        raise GraphError(
            f"{count} anchors and {class_num} classes need {count * (5 + class_num)} channels, got "
            f"{x.shape[1]}"
        )
    cells = -1 if min(x.shape[2:]) < 0 else count * x.shape[2] * x.shape[3]
    return Meta((x.shape[0], cells, 4), x.dtype), Meta((x.shape[0], cells, class_num), x.dtype)


def _yolo_box(
    xp: Any,
    x: Any,
    size: Any,
    boxes: Any,
    scores: Any,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool,
    scale_x_y: float,
) -> None:
    n, _, rows, columns = x.shape
    count = len(anchors) // 2
    said = x.reshape(n, count, 5 + class_num, rows, columns)
    chance = xp.empty_like(said)
    sigmoid(xp, said, chance)
    sure = chance[:, :, 4] >= conf_thresh
    high, wide = (size[:, i].reshape(-1, 1, 1, 1).astype(x.dtype) for i in (0, 1))
    anchor = xp.asarray(np.array(anchors, x.dtype.name).reshape(1, count, 2, 1, 1))
    shift = -0.5 * (scale_x_y - 1)
    # As Fluid: the map and the input are taken to be as wide as they are high.
    across = (xp.arange(columns) + chance[:, :, 0] * scale_x_y + shift) * wide / rows
    down = (xp.arange(rows).reshape(-1, 1) + chance[:, :, 1] * scale_x_y + shift) * high / rows
    width = xp.exp(said[:, :, 2]) * anchor[:, :, 0] * wide / (downsample_ratio * rows)
    height = xp.exp(said[:, :, 3]) * anchor[:, :, 1] * high / (downsample_ratio * rows)
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


def _polygon(xp: Any, x: Any, out: Any) -> None:
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

"""Prior boxes and anchors: boxes laid over all places of a map. They follow from shapes alone.

A box is (x1, y1, x2, y2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import SAME, Applied, OfRows
from hpcdist.ops.types import ArrayModule, Metas


def _of_shapes(op: Applied) -> OfRows:
    """The values of the operands do not matter, nor their rows."""
    return SAME


def _halves(sizes: Sequence[tuple[float, float]]) -> np.ndarray:
    return np.array(sizes) / 2


def _grid(extents: Sequence[int], steps: Sequence[float], offset: float) -> np.ndarray:
    """Return centers [rows, columns, 1, 2] (x, y) of the cells of a map."""
    rows, columns = ((np.arange(n) + offset) * s for n, s in zip(extents, steps))
    return np.stack(np.meshgrid(columns, rows), -1)[:, :, None]


def _write_priors(xp: ArrayModule, boxes, variances, corners: np.ndarray, spread) -> None:
    if boxes is not None:
        boxes[...] = xp.asarray(corners.reshape(boxes.shape).astype(boxes.dtype.name))
    if variances is not None:
        variances[...] = xp.asarray(np.array(spread, variances.dtype.name))


# -- prior boxes of SSD (Liu et al., 2016) ---------------------------------------------------------
def _ratios(aspect_ratios: Sequence[float], flip: bool) -> list[float]:
    ratios = [1.0]
    for ratio in aspect_ratios:
        if all(abs(ratio - other) >= 1e-6 for other in ratios):
            ratios += [ratio, 1 / ratio] if flip else [ratio]
    return ratios


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
    **_,
) -> Metas:
    if max_sizes and len(max_sizes) != len(min_sizes):
        raise GraphError(f"{len(max_sizes)} max_sizes do not fit {len(min_sizes)} min_sizes")
    if any(most <= least for least, most in zip(min_sizes, max_sizes)):
        raise GraphError(f"expected max_sizes above min_sizes {min_sizes}, got {max_sizes}")
    count = len(_prior_sizes(min_sizes, max_sizes, _ratios(aspect_ratios, flip), False))
    meta = Meta((*x.shape[2:], count, 4), x.dtype)
    return meta, meta


def _steps(x, image, step_w: float, step_h: float) -> tuple[float, float]:
    """Return rows' and columns' distances: as many as the map has cells, if they are not given."""
    if step_w and step_h:
        return step_h, step_w
    return image.shape[2] / x.shape[2], image.shape[3] / x.shape[3]


def _prior_box(
    xp: ArrayModule,
    x,
    image,
    boxes,
    variances_out,
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
    corners = np.concatenate([centers - half, centers + half], -1)
    corners = corners / np.array([image.shape[3], image.shape[2]] * 2)
    _write_priors(xp, boxes, variances_out, np.clip(corners, 0, 1) if clip else corners, variances)


define(
    "prior_box",
    "Input, Image -> Boxes, Variances",
    rows=_of_shapes,
    attrs=_PRIOR,
    ranges={"min_sizes": "above 0"},
    infer=_prior_infer,
    kernel=_prior_box,
)


def _density_infer(
    x: Meta,
    image: Meta,
    densities: Sequence[int],
    fixed_ratios: Sequence[float],
    flatten_to_2d: bool,
    **_,
) -> Metas:
    count = sum(d * d for d in densities) * len(fixed_ratios)
    rows, columns = x.shape[2:]
    shape: tuple[int, ...] = (rows, columns, count, 4)
    if flatten_to_2d:
        shape = (-1 if min(rows, columns) < 0 else rows * columns * count, 4)
    return Meta(shape, x.dtype), Meta(shape, x.dtype)


def _density_prior_box(
    xp: ArrayModule,
    x,
    image,
    boxes,
    variances_out,
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
    corners = np.concatenate([centers - np.array(half), centers + np.array(half)], -1)
    corners = np.clip(corners / np.array([image.shape[3], image.shape[2]] * 2), 0, 1)
    _write_priors(xp, boxes, variances_out, corners, variances)


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
    xp: ArrayModule,
    x,
    anchors,
    variances_out,
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
    corners = np.concatenate([centers - half, centers + half], -1)
    _write_priors(xp, anchors, variances_out, corners, variances)


def _anchors_infer(x: Meta, anchor_sizes, aspect_ratios, **_) -> Metas:
    meta = Meta((*x.shape[2:], len(anchor_sizes) * len(aspect_ratios), 4), x.dtype)
    return meta, meta


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

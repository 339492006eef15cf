"""Regions of interest whose bins are integrated exactly, moved or warped, by torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.ops.by_torch import define_by_torch
from hpcdist.ops.convolution.volumes import sampled
from hpcdist.ops.detection.roi_pool import BINS, infer_bins, mixed_regions, owners_of
from hpcdist.ops.types import Array, Lods


# -- prroi_pool (Jiang et al., 2018) ---------------------------------------------------------------
def _until(torch, place) -> Array:
    """Return the integral up to a place of what a pixel at 0 adds between pixels: 1 - |place|."""
    place = place.clamp(-1, 1)
    return torch.where(place < 0, (place + 1) ** 2 / 2, 1 - (1 - place) ** 2 / 2)


def _prroi_pool(
    torch,
    x,
    rois,
    counts,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    lods: Lods,
) -> Array:
    """The mean of each bin of what lies between pixels, exactly; of a bin without area 0."""
    owners = owners_of(x, rois, lods, counts)
    if not owners:
        return x.new_zeros((0, x.shape[1], pooled_height, pooled_width))
    facts = {"dtype": x.dtype, "device": x.device}
    weights, sizes = [], []
    for k, bins, extent in ((1, pooled_height, x.shape[2]), (0, pooled_width, x.shape[3])):
        begin, end = rois[:, k, None] * spatial_scale, rois[:, k + 2, None] * spatial_scale
        size = (end - begin).clamp(min=0) / bins
        edge = begin + torch.arange(bins + 1, **facts) * size
        cumulated = _until(torch, edge[..., None] - torch.arange(extent, **facts))
        weights.append(cumulated[:, 1:] - cumulated[:, :-1])
        sizes.append(size)
    area = (sizes[0] * sizes[1])[..., None, None]
    sums = torch.einsum("rih,rchw,rjw->rcij", weights[0], x[owners], weights[1])
    return torch.where(area > 0, sums / torch.where(area > 0, area, 1), 0)


define_by_torch(
    "prroi_pool",
    "X, ROIs, BatchRoINums? -> Out",
    _prroi_pool,
    rows=mixed_regions,
    attrs=BINS,
    wrt=("X", "ROIs"),
    infer=lambda x, rois, counts, **options: infer_bins(x, rois, **options),
    lods=("ROIs",),
)


# -- deformable_psroi_pooling (Dai et al., 2017) ---------------------------------------------------
def _deformed_bins(
    torch,
    x,
    rois,
    moves,
    no_trans: bool,
    spatial_scale: float,
    output_dim: int,
    group_size: Sequence[int],
    pooled_height: int,
    pooled_width: int,
    part_size: Sequence[int],
    sample_per_part: int,
    trans_std: float,
    lods: Lods,
) -> tuple[Array, Array]:
    """The mean of places in bins, each bin moved by its part's move, in sizes of the region."""
    count, samples, pooled = len(rois), sample_per_part, (pooled_height, pooled_width)
    facts = {"dtype": x.dtype, "device": x.device}
    rounded = torch.trunc(rois + torch.copysign(torch.full_like(rois, 0.5), rois))
    classes = 1 if no_trans else moves.shape[1] // 2
    places, groups, parts = [], [], []
    for k in (0, 1):  # rows, columns
        begin = rounded[:, 1 - k] * spatial_scale - 0.5
        size = ((rounded[:, 3 - k] + 1) * spatial_scale - 0.5 - begin).clamp(min=0.1)
        step = (size / pooled[k])[:, None, None]
        at = torch.arange(pooled[k], **facts)[:, None]
        within = torch.arange(samples, **facts) / samples
        places.append((begin[:, None, None] + (at + within) * step, size))
        bins = torch.arange(pooled[k], device=x.device)
        groups.append((bins * group_size[k] // pooled[k]).clamp(0, group_size[k] - 1))
        parts.append(bins * part_size[k] // pooled[k])
    shape = count, classes, pooled_height, pooled_width, samples, samples
    y = places[0][0][:, None, :, None, :, None].expand(shape)
    across = places[1][0][:, None, None, :, None, :].expand(shape)
    if not no_trans:
        offsets = moves.reshape(count, classes, 2, *part_size) * trans_std
        offsets = offsets[:, :, :, parts[0][:, None], parts[1]][..., None, None]
        y = y + offsets[:, :, 1] * places[0][1].reshape(-1, 1, 1, 1, 1, 1)
        across = across + offsets[:, :, 0] * places[1][1].reshape(-1, 1, 1, 1, 1, 1)
    height, width = x.shape[2:]
    outside = (y < -0.5) | (y > height - 0.5) | (across < -0.5) | (across > width - 0.5)
    y, across = y.clamp(0, height - 1), across.clamp(0, width - 1)
    of_class = torch.arange(output_dim, device=x.device) // (output_dim // classes)
    channel = torch.arange(output_dim, device=x.device)[:, None, None] * group_size[0]
    channel = ((channel + groups[0][:, None]) * group_size[1] + groups[1])[None, ..., None, None]
    image = torch.tensor(owners_of(x, rois, lods), dtype=torch.long, device=x.device)
    image = image.reshape(-1, 1, 1, 1, 1, 1)
    y, across, outside = (value[:, of_class] for value in (y, across, outside))
    top, left = y.floor(), across.floor()
    total = 0.0
    for down in (0, 1):
        for right in (0, 1):
            # A place on a pixel is between no two: as in Fluid its slope is 0. It may be NaN, too.
            row = (y.ceil() if down else top).nan_to_num()
            column = (across.ceil() if right else left).nan_to_num()
            weight = (y - top if down else 1 - y + top) * (
                across - left if right else 1 - across + left
            )
            total = total + x[image, channel, row.long(), column.long()] * weight
    counts = (~outside).sum((-2, -1))
    means = torch.where(outside, 0, total).sum((-2, -1)) / counts.clamp(min=1)
    return means, counts.to(x.dtype)


def _deformed_infer(
    x: Meta, rois: Meta, moves: Meta, output_dim: int, group_size: Sequence[int], **options
) -> tuple[Meta, Meta]:
    groups = group_size[0] * group_size[1]
    if x.shape[1] != output_dim * groups:
        raise GraphError(
            f"{output_dim} channels in {groups} groups need {output_dim * groups} channels, got "
            f"{x.shape[1]}"
        )
    classes = moves.shape[1] // 2
    if not options["no_trans"] and (moves.shape[1] % 2 or output_dim % classes):
        raise GraphError(f"{output_dim} channels do not divide into {moves.shape[1]} / 2 classes")
    shape = (rois.shape[0], output_dim, options["pooled_height"], options["pooled_width"])
    return Meta(shape, x.dtype, lod=rois.lod), Meta(shape, x.dtype, lod=rois.lod)


define_by_torch(
    "deformable_psroi_pooling",
    "Input, ROIs, Trans -> Output, TopCount",
    _deformed_bins,
    rows=mixed_regions,
    attrs={
        **BINS,
        "no_trans": False,
        "output_dim": 1,
        "group_size": (1, 1),
        "part_size": (1, 1),
        "sample_per_part": 1,
        "trans_std": 0.1,
    },
    wrt=("Input", "Trans"),
    infer=_deformed_infer,
    lods=("ROIs",),
)


# -- roi_perspective_transform ---------------------------------------------------------------------
_NEAR = 1e-4


def _projection(torch, corners, height: int, width: int) -> Array:
    """Return the matrix [3, 3] that takes pixels of the result to places in the quadrangle."""
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    sides = (corners - corners.roll(-1, 0)).square().sum(1).sqrt()
    rows = max(2, height)
    tall, wide = (sides[1] + sides[3]) / 2, (sides[0] + sides[2]) / 2
    columns = math.floor(float(wide * (rows - 1) / tall) + 0.5) + 1
    columns = max(2, min(columns, width))
    ax, ay, bx, by = x1 - x2, y1 - y2, x3 - x2, y3 - y2
    cx, cy = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    turn = ax * by - bx * ay + 1e-5
    right, down = (cx * by - bx * cy) / turn, (ax * cy - cx * ay) / turn
    g, h = right / (columns - 1), down / (rows - 1)
    matrix_rows = [
        (x1 - x0) / (columns - 1) + g * x1,
        (x3 - x0) / (rows - 1) + h * x3,
        x0,
        (y1 - y0) / (columns - 1) + g * y1,
        (y3 - y0) / (rows - 1) + h * y3,
        y0,
        g,
        h,
        torch.ones_like(g),
    ]
    return torch.stack(matrix_rows).reshape(3, 3)


def _within(torch, x, y, corners) -> Array:
    """Return which places lie in a quadrangle, or nearly on one of its sides."""
    on, crossed = torch.zeros_like(x, dtype=torch.bool), torch.zeros_like(x, dtype=torch.long)
    for k in range(4):
        (xs, ys), (xe, ye) = corners[k].tolist(), corners[(k + 1) % 4].tolist()
        low, high = min(ys, ye), max(ys, ye)
        if abs(ys - ye) < _NEAR:
            level = ((y - ys).abs() < _NEAR) & ((y - ye).abs() < _NEAR)
            on |= level & (x > min(xs, xe) - _NEAR) & (x < max(xs, xe) + _NEAR)
            continue
        at = (y - ys) * (xe - xs) / (ye - ys) + xs
        on |= ((at - x).abs() < _NEAR) & (y > low - _NEAR) & (y < high + _NEAR)
        crossed += (y >= low + _NEAR) & (y - high <= _NEAR) & (at - x > _NEAR)
    return on | (crossed % 2 == 1)


def _straightened(
    torch,
    x,
    rois,
    spatial_scale: float,
    transformed_height: int,
    transformed_width: int,
    lods: Lods,
) -> tuple[Array, Array, Array]:
    """Quadrangles (x1, y1, ..., x4, y4) as rectangles: read between pixels, 0 outside of them."""
    size, (height, width) = (transformed_height, transformed_width), x.shape[2:]
    facts = {"dtype": x.dtype, "device": x.device}
    down, right = (torch.arange(extent, **facts) for extent in size)
    v, u = torch.meshgrid(down, right, indexing="ij")
    pixels = torch.stack([u, v, torch.ones_like(u)]).reshape(3, -1)
    images, masks, matrices = [], [], []
    for roi, image in zip(rois, owners_of(x, rois, lods)):
        corners = roi.reshape(4, 2) * spatial_scale
        matrix = _projection(torch, corners, *size)
        across, y, scale = matrix @ pixels
        across, y = across / scale, y / scale
        inside = _within(torch, across, y, corners)
        inside &= (across > _NEAR - 0.5) & (across < width - 0.5 - _NEAR)
        inside &= (y > _NEAR - 0.5) & (y < height - 0.5 - _NEAR)
        places = y.clamp(0, height - 1), across.clamp(0, width - 1)
        read = sampled(torch, x[image][None], *(place[None] for place in places))[0]
        images.append(torch.where(inside, read, 0).reshape(-1, *size))
        masks.append(inside.reshape(1, *size))
        matrices.append(matrix.reshape(9))
    if not images:
        return x.new_zeros((0, x.shape[1], *size)), x.new_zeros((0, 1, *size)), x.new_zeros((0, 9))
    return torch.stack(images), torch.stack(masks).to(torch.int32), torch.stack(matrices)


def _straightened_infer(
    x: Meta, rois: Meta, transformed_height: int, transformed_width: int, **_
) -> tuple[Meta, Meta, Meta]:
    if rois.shape[1:] != (8,):
        raise GraphError(f"quadrangles must have 8 numbers, got shape {rois.shape}")
    count, size = rois.shape[0], (transformed_height, transformed_width)
    return (
        Meta((count, x.shape[1], *size), x.dtype, lod=rois.lod),
        Meta((count, 1, *size), "int32", lod=rois.lod),
        Meta((count, 9), x.dtype, lod=rois.lod),
    )


define_by_torch(
    "roi_perspective_transform",
    "X, ROIs -> Out, Mask, TransformMatrix",
    _straightened,
    rows=mixed_regions,
    attrs={"spatial_scale": 1.0, "transformed_height": 1, "transformed_width": 1},
    wrt=("X",),
    infer=_straightened_infer,
    lods=("ROIs",),
)

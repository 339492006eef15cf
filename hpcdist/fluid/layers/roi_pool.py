"""Regions of interest of images: a fixed number of bins or pixels of each, by torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.fluid.layers.helper import append, append_all, present
from hpcdist.graph.variable import Variable

__all__ = [
    "deformable_roi_pooling",
    "prroi_pool",
    "psroi_pool",
    "roi_align",
    "roi_perspective_transform",
    "roi_pool",
]


def roi_pool(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: Variable | None = None,
) -> Variable:
    """Return the maximum of each bin of regions (x1, y1, x2, y2).

    Regions are in sequences, or ``rois_lod`` int [images + 1] says where each image's begin,
    and the end.
    """
    sizes = pooled_height, pooled_width, spatial_scale
    return _of_regions("roi_pool", {"X": input, "ROIs": rois, "RoisLod": rois_lod}, *sizes)


def roi_align(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
    rois_lod: Variable | None = None,
) -> Variable:
    """Return the mean of places between pixels in each bin of regions, given as to `roi_pool`.

    input: [n, channels, rows, columns]; rois: [regions, 4] in sequences, one per image. Returns
    [regions, channels, pooled_height, pooled_width].
    """
    inputs = {"X": input, "ROIs": rois, "RoisLod": rois_lod}
    sizes = pooled_height, pooled_width, spatial_scale
    return _of_regions("roi_align", inputs, *sizes, sampling_ratio=sampling_ratio)


def psroi_pool(
    input: Variable,
    rois: Variable,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    name: str | None = None,
) -> Variable:
    """Return the mean of each bin of regions, of channels that belong to the bin.

    input: [n, output_channels * pooled_height * pooled_width, rows, columns]; rois: [regions, 4] in
    sequences. Returns [regions, output_channels, pooled_height, pooled_width].
    """
    sizes = pooled_height, pooled_width, spatial_scale
    inputs = {"X": input, "ROIs": rois}
    return _of_regions("psroi_pool", inputs, *sizes, output_channels=output_channels)


def prroi_pool(
    input: Variable,
    rois: Variable,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    batch_roi_nums: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return the exact mean of what lies between pixels in each bin of regions.

    Regions are in sequences, or ``batch_roi_nums`` has their numbers per image.
    """
    inputs = {"X": input, "ROIs": rois, "BatchRoINums": batch_roi_nums}
    return _of_regions("prroi_pool", inputs, pooled_height, pooled_width, spatial_scale)


def deformable_roi_pooling(
    input: Variable,
    rois: Variable,
    trans: Variable,
    no_trans: bool = False,
    spatial_scale: float = 1.0,
    group_size: Sequence[int] = (1, 1),
    pooled_height: int = 1,
    pooled_width: int = 1,
    part_size: Any = None,
    sample_per_part: int = 1,
    trans_std: float = 0.1,
    position_sensitive: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the mean of places in each bin of regions, each bin moved by ``trans`` (x, y).

    trans: [regions, 2 * classes, rows of parts, columns]. ``position_sensitive``: each bin reads
    channels of its own.
    """
    channels = input.shape[1] // (pooled_height * pooled_width if position_sensitive else 1)
    parts = [pooled_height, pooled_width] if part_size is None else part_size
    attrs = {
        "no_trans": no_trans,
        "spatial_scale": float(spatial_scale),
        "output_dim": channels // (pooled_height * pooled_width)
        if position_sensitive
        else channels,
        "group_size": [int(size) for size in group_size],
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
        "part_size": [parts] * 2 if isinstance(parts, int) else [int(part) for part in parts],
        "sample_per_part": sample_per_part,
        "trans_std": float(trans_std),
    }
    inputs = {"Input": input, "ROIs": rois, "Trans": trans}
    outputs, constant = dict.fromkeys(("Output", "TopCount"), input.dtype), ("TopCount",)
    return append_all("deformable_psroi_pooling", inputs, attrs, outputs, name, constant)[0]


def roi_perspective_transform(
    input: Variable,
    rois: Variable,
    transformed_height: int,
    transformed_width: int,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> tuple[Variable, ...]:
    """Return quadrangles (x1, y1, ..., x4, y4) as rectangles, where those are, and the matrices.

    The second is [regions, 1, rows, columns] of int32: 1 where a pixel lies in the quadrangle and
    the image; the third [regions, 9] takes pixels to places in the image.
    """
    attrs = {
        "transformed_height": transformed_height,
        "transformed_width": transformed_width,
        "spatial_scale": float(spatial_scale),
    }
    inputs, constant = {"X": input, "ROIs": rois}, ("Mask", "TransformMatrix")
    outputs = {"Out": input.dtype, "Mask": "int32", "TransformMatrix": input.dtype}
    return append_all("roi_perspective_transform", inputs, attrs, outputs, name, constant)


def _of_regions(
    kind: str,
    inputs: Mapping[str, Variable | None],
    height: int,
    width: int,
    scale: float,
    **more: Any,
) -> Variable:
    attrs = {"pooled_height": height, "pooled_width": width, "spatial_scale": float(scale), **more}
    return append(kind, present(**inputs), None, **attrs)

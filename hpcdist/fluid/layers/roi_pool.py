"""Regions of interest of images: a fixed number of bins or pixels of each, by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.fluid.layers.helper import declared
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

    Examples:
        >>> images = fluid.data("images", [None, 8, 32, 32])
        >>> rois = fluid.data("rois", [9, 4], lod_level=1)
        >>> fluid.layers.roi_pool(images, rois, pooled_height=2, pooled_width=2).shape
        (9, 8, 2, 2)
    """
    return declared("roi_pool", locals(), ("Argmax",), X=input)[0]


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
    return declared("roi_align", {**locals(), "name": None}, X=input)


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
    return declared("psroi_pool", {**locals(), "name": None}, X=input)


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
    return declared("prroi_pool", {**locals(), "name": None}, X=input)


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
    bins = pooled_height * pooled_width if position_sensitive else 1
    parts = (pooled_height, pooled_width) if part_size is None else part_size
    part_size = [parts] * 2 if isinstance(parts, int) else parts
    output_dim = input.shape[1] // bins // bins
    return declared("deformable_psroi_pooling", locals(), ("TopCount",))[0]


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
    constant = ("Mask", "TransformMatrix")
    return declared("roi_perspective_transform", locals(), constant, X=input)

"""Regions of interest of images, by torch: a fixed number of bins or pixels of each."""

from __future__ import annotations

import math
from dataclasses import replace

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, MixesRows, OfRows
from hpcdist.ops.by_torch import define_by_torch
from hpcdist.ops.common import fits
from hpcdist.ops.convolution.volumes import sampled
from hpcdist.ops.types import Array, Lods


def owners_of(x, rois, lods: Lods, counts=None) -> list[int]:
    """Return the image that each region belongs to, by ``counts`` or the sequences of the regions.

    FeedError if those are not as many as the images, or counts not as many as the regions.
    """
    if counts is None:
        if lods[0] is None:
            raise GraphError("regions must be in sequences, one for each image (lod_level=1)")
        counts = lods[0].lengths
    owners = [i for i, count in enumerate(counts.tolist()) for _ in range(int(count))]
    if len(counts) != len(x) or len(owners) != len(rois):
        raise FeedError(
            f"{len(rois)} regions of {len(x)} images: got {len(owners)} regions of {len(counts)}"
        )
    return owners


def _counts(offsets) -> Array:
    """Return how many regions each image has, from where they begin and end; None of None."""
    return None if offsets is None else offsets[1:] - offsets[:-1]


def _roi_pool(
    torch,
    x,
    rois,
    offsets,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    lods: Lods,
) -> tuple[Array, Array]:
    """The maximum of each bin (Girshick, 2015) and where it lies; of an empty one 0 and -1."""
    height, width = x.shape[2:]
    pooled, places = [], []
    for region, image in zip(rois.tolist(), owners_of(x, rois, lods, _counts(offsets))):
        left, top, right, bottom = (_rounded(v * spatial_scale) for v in region)
        size = max(bottom - top + 1, 1), max(right - left + 1, 1)
        bins, indices = [], []
        for i in range(pooled_height):
            for j in range(pooled_width):
                ends = []
                for at, count, k, first, extent in (
                    (i, pooled_height, 0, top, height),
                    (j, pooled_width, 1, left, width),
                ):
                    low = at * size[k] // count + first
                    high = -(-(at + 1) * size[k] // count) + first
                    ends.append((min(max(low, 0), extent), min(max(high, 0), extent)))
                part = x[image, :, ends[0][0] : ends[0][1], ends[1][0] : ends[1][1]]
                empty = 0 in part.shape
                flat = x.new_zeros((len(part), 1)) if empty else part.reshape(len(part), -1)
                best = flat.max(1)
                bins.append(best.values)
                columns = max(part.shape[2], 1)
                rows = best.indices // columns + ends[0][0]
                place = rows * width + best.indices % columns + ends[1][0]
                indices.append(torch.full_like(place, -1) if empty else place)
        pooled.append(torch.stack(bins, 1).reshape(-1, pooled_height, pooled_width))
        places.append(torch.stack(indices, 1).reshape(-1, pooled_height, pooled_width))
    if pooled:
        return torch.stack(pooled), torch.stack(places)
    none = x.new_zeros((0, x.shape[1], pooled_height, pooled_width))
    return none, none.long()


def _rounded(value: float) -> int:
    """Round halves away from 0, as C does."""
    return int(math.floor(abs(value) + 0.5) * math.copysign(1, value))


def _roi_align(
    torch,
    x,
    rois,
    offsets,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    lods: Lods,
) -> Array:
    """The mean of places between pixels in each bin (He et al., 2017)."""
    pooled = []
    for region, image in zip(rois, owners_of(x, rois, lods, _counts(offsets))):
        left, top, right, bottom = (region[k] * spatial_scale for k in range(4))
        sizes = (bottom - top).clamp(min=1), (right - left).clamp(min=1)
        places = []
        for begin, size, count in ((top, sizes[0], pooled_height), (left, sizes[1], pooled_width)):
            step = size / count
            samples = sampling_ratio if sampling_ratio > 0 else math.ceil(float(step))
            at = (torch.arange(count * samples, dtype=x.dtype, device=x.device) + 0.5) / samples
            places.append((begin + at * step, samples))
        (ys, down), (xs, across) = places
        grid = torch.meshgrid(ys, xs, indexing="ij")
        read = _clamped(torch, x[image], grid[0].reshape(-1), grid[1].reshape(-1))
        bins = read.reshape(-1, pooled_height, down, pooled_width, across)
        pooled.append(bins.mean((2, 4)))
    return (
        torch.stack(pooled) if pooled else x.new_zeros((0, x.shape[1], pooled_height, pooled_width))
    )


def _clamped(torch, image, y, across) -> Array:
    """Read an image [C, H, W] between pixels; up to a pixel outside, its edge counts."""
    height, width = image.shape[1:]
    inside = (y >= -1) & (y <= height) & (across >= -1) & (across <= width)
    y, across = y.clamp(0, height - 1), across.clamp(0, width - 1)
    return sampled(torch, image[None], y[None], across[None])[0] * inside


def _psroi_pool(
    torch,
    x,
    rois,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    lods: Lods,
) -> Array:
    """The mean of each bin, of channels that belong to the bin (Dai et al., 2016); if empty 0."""
    height, width = x.shape[2:]
    shape = output_channels, pooled_height, pooled_width
    pooled = []
    for region, image in zip(rois.tolist(), owners_of(x, rois, lods)):
        left, top = (_rounded(v) * spatial_scale for v in region[:2])
        right, bottom = ((_rounded(v) + 1) * spatial_scale for v in region[2:])
        maps = x[image].reshape(*shape, height, width)
        bins = []
        for i in range(pooled_height):
            rows = _bin(i, top, max(bottom - top, 0.1) / pooled_height, height)
            for j in range(pooled_width):
                columns = _bin(j, left, max(right - left, 0.1) / pooled_width, width)
                part = maps[:, i, j, rows[0] : rows[1], columns[0] : columns[1]]
                empty = 0 in part.shape
                bins.append(x.new_zeros(len(part)) if empty else part.mean((1, 2)))
        pooled.append(torch.stack(bins, 1).reshape(shape))
    return torch.stack(pooled) if pooled else x.new_zeros((0, *shape))


def _bin(i: int, first: float, size: float, extent: int) -> tuple[int, int]:
    """Return where a bin begins and ends, within the image."""
    low, high = math.floor(i * size + first), math.ceil((i + 1) * size + first)
    return min(max(low, 0), extent), min(max(high, 0), extent)


def infer_bins(x: Meta, rois: Meta, pooled_height: int, pooled_width: int, **_) -> Meta:
    """Return [regions, channels, pooled_height, pooled_width], with the sequences of rois."""
    if not fits(rois.shape, (-1, 4)):
        raise GraphError(f"regions must be [regions, 4], got {rois.shape}")
    return Meta((rois.shape[0], x.shape[1], pooled_height, pooled_width), x.dtype, lod=rois.lod)


def mixed_regions(op: Applied) -> OfRows:
    """Raise MixesRows: the rows of rois are not those of x."""
    raise MixesRows("regions belong to images, which are divided otherwise")


BINS = {"spatial_scale": 1.0, "pooled_height": 1, "pooled_width": 1}


def _infer_places(x: Meta, rois: Meta, offsets: Meta | None, **options) -> tuple[Meta, Meta]:
    pooled = infer_bins(x, rois, **options)
    return pooled, replace(pooled, dtype="int64")


for _type, _outputs, _function, _rule, _more in (
    ("roi_pool", "Out, Argmax?", _roi_pool, _infer_places, {}),
    (
        "roi_align",
        "Out",
        _roi_align,
        lambda x, rois, offsets, **options: infer_bins(x, rois, **options),
        {"sampling_ratio": -1},
    ),
):
    define_by_torch(
        _type,
        f"X, ROIs, RoisLod? -> {_outputs}",
        _function,
        rows=mixed_regions,
        attrs={**BINS, **_more},
        wrt=("X",),
        infer=_rule,
        lods=("ROIs",),
    )


def _psroi_infer(
    x: Meta, rois: Meta, output_channels: int, pooled_height: int, pooled_width: int, **_
) -> Meta:
    if x.shape[1] != output_channels * pooled_height * pooled_width:
        raise GraphError(
            f"{output_channels} channels in {pooled_height} x {pooled_width} bins need "
            f"{output_channels * pooled_height * pooled_width} channels, got {x.shape[1]}"
        )
    shape = (rois.shape[0], output_channels, pooled_height, pooled_width)
    return Meta(shape, x.dtype, lod=rois.lod)


define_by_torch(
    "psroi_pool",
    "X, ROIs -> Out",
    _psroi_pool,
    rows=mixed_regions,
    attrs={**BINS, "output_channels": 1},
    wrt=("X",),
    infer=_psroi_infer,
    lods=("ROIs",),
)

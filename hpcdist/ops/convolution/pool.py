"""Pools: pool2d (max, avg; sliding, global or adaptive) and max_pool2d_with_index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.convolution.windows import channels_first, image_shape, in_layout, lay_windows
from hpcdist.ops.host_loops import compiled
from hpcdist.ops.types import ArrayModule, Attrs, Call, Metas


@dataclass(frozen=True)
class PoolWindows:
    """The windows of a pool: pairs [start, end) within the image, and how many elements count."""

    rows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]
    count: int | None  # of every window; None: as many as it has within the image

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return starts and ends [2, windows] of rows and of columns."""
        return tuple(np.array(axis, np.int64).T.copy() for axis in (self.rows, self.columns))  # type: ignore[return-value]

    def weights(self, dtype) -> np.ndarray:
        """Return the factors that turn the sums of windows into means."""
        (top, bottom), (left, right) = self.bounds()
        sizes = np.multiply.outer(bottom - top, right - left)
        return (1.0 / (sizes if self.count is None else np.full_like(sizes, self.count))).astype(
            dtype
        )

    def taps(self) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
        """Yield regular groups of (windows, one element of each), in the windows' own order."""
        rows, columns = _one_by_one(self.rows), _one_by_one(self.columns)
        for window_rows, pixel_rows in rows:
            for window_columns, pixel_columns in columns:
                yield (window_rows, window_columns), (pixel_rows, pixel_columns)


def _one_by_one(axis: Sequence[tuple[int, int]]) -> list[tuple[slice, slice]]:
    """Return, for the first, second, ... element of windows: runs of windows at one distance."""
    out = []
    for tap in range(max(end - start for start, end in axis)):
        having = [(i, start + tap) for i, (start, end) in enumerate(axis) if start + tap < end]
        while having:
            count = 1
            steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(having)]
            while count < len(having) and steps[count - 1] == (1, steps[0][1]) and steps[0][1] > 0:
                count += 1
            (window, pixel), step = having[0], max(1, steps[0][1]) if count > 1 else 1
            end = pixel + (count - 1) * step + 1
            out.append((slice(window, window + count), slice(pixel, end, step)))
            having = having[count:]
    return out


def lay_pool(
    extents: Sequence[int],
    ksize: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    padding_algorithm: str,
    global_pooling: bool,
    ceil_mode: bool,
    exclusive: bool,
    adaptive: bool,
    pooling_type: str,
) -> PoolWindows:
    """Return the windows over images of known extents."""
    if global_pooling and not adaptive:
        return PoolWindows(((0, extents[0]),), ((0, extents[1]),), None)
    if adaptive:
        ksize = extents if global_pooling else ksize  # as Fluid has it: each element alone
        if min(ksize) < 1:
            raise GraphError(f"an adaptive pool needs sizes of 1 or more, got {list(ksize)}")
        rows, columns = (
            tuple((i * extent // size, -(-(i + 1) * extent // size)) for i in range(size))
            for extent, size in zip(extents, ksize)
        )
        return PoolWindows(rows, columns, None)
    axes = lay_windows(extents, ksize, strides, (1, 1), paddings, padding_algorithm, ceil_mode)
    needed = pooling_type == "max" or exclusive  # without an element, neither has a value
    spans = []
    for axis, name in zip(axes, ("rows", "columns")):
        starts = [i * axis.stride - axis.before for i in range(axis.windows)]
        span = tuple((min(max(s, 0), axis.extent), min(s + axis.taps, axis.extent)) for s in starts)
        for i, (start, end) in enumerate(span):
            if start >= end and needed:
                raise GraphError(
                    f"window {i} of {len(span)} along the {name} has no element of the image: "
                    f"{axis.extent} {name}, size {axis.taps}, stride {axis.stride}, padding before "
                    f"{axis.before}, ceil_mode={ceil_mode}; use less padding or ceil_mode=False"
                )
        spans.append(span)
    return PoolWindows(spans[0], spans[1], None if exclusive else ksize[0] * ksize[1])


_WINDOWS = {
    "ksize": (1, 1),
    "strides": (1, 1),
    "paddings": (0, 0),
    "padding_algorithm": "EXPLICIT",
    "global_pooling": False,
    "ceil_mode": False,
    "exclusive": True,
    "adaptive": False,
}
_ATTRS = {"pooling_type": "max", "data_format": "NCHW", **_WINDOWS}


def _infer(x: Meta, pooling_type: str, data_format: str, **facts) -> Meta:
    if pooling_type not in ("max", "avg"):
        raise GraphError(f"pooling_type must be 'max' or 'avg', got {pooling_type!r}")
    n, channels, *extents = image_shape(x.shape, data_format, "the input of a pool")
    if -1 in extents:
        sizes = _sizes(extents, pooling_type=pooling_type, **facts)
    else:
        pool = lay_pool(extents, pooling_type=pooling_type, **facts)
        sizes = (len(pool.rows), len(pool.columns))
    return Meta(in_layout(n, channels, *sizes, data_format), x.dtype)


def _sizes(
    extents: Sequence[int],
    ksize: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    padding_algorithm: str,
    global_pooling: bool,
    ceil_mode: bool,
    exclusive: bool,
    adaptive: bool,
    pooling_type: str,
) -> tuple[int, int]:
    """Return the numbers of windows along rows and columns, -1 where that is not known yet."""
    if adaptive:
        return tuple(extents if global_pooling else ksize)  # type: ignore[return-value]
    if global_pooling:
        return 1, 1
    axes = lay_windows(extents, ksize, strides, (1, 1), paddings, padding_algorithm, ceil_mode)
    return axes[0].windows, axes[1].windows


def _bind(xp: ArrayModule, x, y, pooling_type: str, data_format: str, **facts) -> Call:
    x, y = channels_first(x, data_format), channels_first(y, data_format)
    pool = lay_pool(x.shape[2:], pooling_type=pooling_type, **facts)
    if xp is np and pooling_type == "max":
        return compiled("convolution.pool_kernels", "max_pool", x, y, *pool.bounds())
    if xp is np:
        return compiled(
            "convolution.pool_kernels", "avg_pool", x, y, *pool.bounds(), pool.weights(y.dtype)
        )
    taps, weights = list(pool.taps()), xp.asarray(pool.weights(y.dtype))

    def run() -> None:
        y[...] = float("-inf") if pooling_type == "max" else 0
        for windows, pixels in taps:
            part = y[:, :, windows[0], windows[1]]
            element = x[:, :, pixels[0], pixels[1]]
            (xp.maximum if pooling_type == "max" else xp.add)(part, element, out=part)
        if pooling_type == "avg":
            xp.multiply(y, weights, out=y)

    return run


def _grad_bind(xp: ArrayModule, x, y, dy, dx, pooling_type: str, data_format: str, **facts) -> Call:
    x, y, dy, dx = (channels_first(array, data_format) for array in (x, y, dy, dx))
    pool = lay_pool(x.shape[2:], pooling_type=pooling_type, **facts)
    if xp is np and pooling_type == "max":
        return compiled("convolution.pool_kernels", "max_pool_back", x, y, dy, dx, *pool.bounds())
    if xp is np:
        return compiled(
            "convolution.pool_kernels",
            "avg_pool_back",
            dy,
            dx,
            *pool.bounds(),
            pool.weights(dx.dtype),
        )
    taps = list(pool.taps())
    if pooling_type == "avg":
        weights = xp.asarray(pool.weights(dx.dtype))
        return lambda: _spread(dx, dy * weights, taps)
    return lambda: _to_first_greatest(xp, x, y, dy, dx, taps)


def _spread(dx, slopes, taps) -> None:
    dx[...] = 0
    for windows, pixels in taps:
        dx[:, :, pixels[0], pixels[1]] += slopes[:, :, windows[0], windows[1]]


def _to_first_greatest(xp: ArrayModule, x, y, dy, dx, taps) -> None:
    dx[...] = 0
    waiting = xp.ones(y.shape, bool)
    for windows, pixels in taps:
        inside = (slice(None), slice(None), *windows)
        is_maximum = (x[:, :, pixels[0], pixels[1]] == y[inside]) & waiting[inside]
        dx[:, :, pixels[0], pixels[1]] += dy[inside] * is_maximum
        waiting[inside] &= ~is_maximum


define_with_grad(
    "pool2d",
    "X -> Out",
    "X, Out, Out@GRAD -> X@GRAD",
    rows=by_row(),
    attrs=_ATTRS,
    infer=_infer,
    bind=_bind,
    grad_bind=_grad_bind,
)

# -- max_pool2d_with_index: Mask is each maximum's place in its image, row by row -----------------
_INDEX_ATTRS = {
    "ksize": (1, 1),
    "strides": (1, 1),
    "paddings": (0, 0),
    "global_pooling": False,
    "adaptive": False,
}
_FIXED: Attrs = {"padding_algorithm": "EXPLICIT", "ceil_mode": False, "exclusive": True}


def _index_infer(x: Meta, **facts) -> Metas:
    out = _infer(x, "max", "NCHW", **facts, **_FIXED)
    return out, Meta(out.shape, "int32")


def _index_bind(xp: ArrayModule, x, y, index, **facts) -> Call:
    pool = lay_pool(x.shape[2:], pooling_type="max", **facts, **_FIXED)
    if xp is np:
        return compiled("convolution.pool_kernels", "max_pool_index", x, y, index, *pool.bounds())
    place = xp.arange(x.shape[2] * x.shape[3], dtype="int32").reshape(x.shape[2:])
    taps = list(pool.taps())

    def run() -> None:
        y[...] = float("-inf")
        index[...] = -1
        for windows, pixels in taps:
            inside = (slice(None), slice(None), *windows)
            element = x[:, :, pixels[0], pixels[1]]
            greater = (element > y[inside]) | (index[inside] < 0)
            y[inside] = xp.where(greater, element, y[inside])
            index[inside] = xp.where(greater, place[pixels], index[inside])

    return run


def _index_grad_bind(xp: ArrayModule, x, index, dy, dx, **facts) -> Call:
    if xp is np:
        return compiled("convolution.pool_kernels", "max_pool_index_back", index, dy, dx)
    pool = lay_pool(x.shape[2:], pooling_type="max", **facts, **_FIXED)
    place = xp.arange(x.shape[2] * x.shape[3], dtype="int32").reshape(x.shape[2:])
    taps = list(pool.taps())

    def run() -> None:
        dx[...] = 0
        for windows, pixels in taps:
            inside = (slice(None), slice(None), *windows)
            dx[:, :, pixels[0], pixels[1]] += dy[inside] * (index[inside] == place[pixels])

    return run


define_with_grad(
    "max_pool2d_with_index",
    "X -> Out, Mask",
    "X, Mask, Out@GRAD -> X@GRAD",
    rows=by_row(),
    attrs=_INDEX_ATTRS,
    infer=_index_infer,
    bind=_index_bind,
    grad_bind=_index_grad_bind,
)

"""Correlation and its gradients on a GPU, from the array library alone: cupy 14 has no cuDNN."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hpcdist.ops.convolution.windows import Correlation
from hpcdist.ops.types import Array, ArrayModule, Bind, Kernel

COLUMNS_BYTES = 1 << 27  # of patches at a time
Slices = tuple[slice, ...]


def _bound(kernel: Kernel) -> Bind:
    """Return the binder of a kernel to its arrays, for `hpcdist.ops.convolution.correlate`."""
    return partial(partial, kernel)


@_bound
def correlate(xp: ArrayModule, c: Correlation, x, w, y) -> None:
    """Write y; see `hpcdist.ops.convolution.correlate`."""
    if c.is_depthwise(w):
        y[...] = 0
        filters = y.reshape(len(x), x.shape[1], -1, *y.shape[2:])
        for weight, inside, windows in _depthwise_taps(c, w, x.shape[1]):
            filters[windows] += weight * x[:, :, None][inside]
        return
    matrices = c.matrices(w)
    for part in _parts(c, x):
        images = x[part]
        products = xp.matmul(matrices, _columns(xp, c, images))
        shape = (y.shape[1], len(images), *y.shape[2:])
        y[part] = products.reshape(shape).transpose(1, 0, 2, 3)


@_bound
def correlate_back(xp: ArrayModule, c: Correlation, w, dy, dx) -> None:
    """Write the gradient by x."""
    dx[...] = 0
    if c.is_depthwise(w):
        slopes = dy.reshape(len(dx), dx.shape[1], -1, *dy.shape[2:])
        for weight, inside, windows in _depthwise_taps(c, w, dx.shape[1]):
            dx[:, :, None][inside] += (weight * slopes[windows]).sum(2, keepdims=True)
        return
    turned = c.matrices(w).swapaxes(1, 2)
    for part in _parts(c, dx):
        slopes = _by_group(xp, c, dy[part])
        images = dx[part]
        columns = xp.matmul(turned, slopes).reshape(*_columns_shape(c, images))
        for a, b, inside, windows in _taps(c):
            images[:, :, inside[0], inside[1]] += columns[
                :, a, b, :, windows[0], windows[1]
            ].transpose(1, 0, 2, 3)


@_bound
def correlate_weights(xp: ArrayModule, c: Correlation, x, dy, dw) -> None:
    """Write the gradient by w."""
    if c.is_depthwise(dw):
        slopes = dy.reshape(len(x), x.shape[1], -1, *dy.shape[2:])
        by_channel = dw.reshape(x.shape[1], -1, *dw.shape[2:])
        for a, b, inside, windows in _taps(c):
            pixels = x[:, :, None, inside[0], inside[1]]
            terms = slopes[:, :, :, windows[0], windows[1]] * pixels
            by_channel[:, :, a, b] = terms.sum((0, 3, 4))
        return
    matrices = c.matrices(dw)
    matrices[...] = 0
    for part in _parts(c, x):
        columns = _columns(xp, c, x[part])
        matrices += xp.matmul(_by_group(xp, c, dy[part]), columns.swapaxes(1, 2))


def _taps(c: Correlation) -> Iterator[tuple[int, int, tuple[slice, slice], tuple[slice, slice]]]:
    """Yield each tap with the pixels it takes from images, and the windows that take them."""
    for a in range(c.rows.taps):
        top, bottom, rows = c.rows.covered(a)
        for b in range(c.columns.taps):
            left, right, columns = c.columns.covered(b)
            if top < bottom and left < right:
                yield a, b, (rows, columns), (slice(top, bottom), slice(left, right))


def _depthwise_taps(c: Correlation, w, channels: int) -> Iterator[tuple[Array, Slices, Slices]]:
    by_channel = w.reshape(channels, -1, *w.shape[2:])
    all_of_axis = slice(None)
    for a, b, inside, windows in _taps(c):
        weight = by_channel[:, :, a, b].reshape(1, channels, -1, 1, 1)
        yield (
            weight,
            (all_of_axis, all_of_axis, all_of_axis, *inside),
            (all_of_axis, all_of_axis, all_of_axis, *windows),
        )


def _parts(c: Correlation, x) -> Iterator[slice]:
    """Divide the images so that the columns of a part keep to COLUMNS_BYTES."""
    per_image = x.shape[1] * c.taps * c.windows * x.dtype.itemsize
    step = max(1, COLUMNS_BYTES // per_image)
    for begin in range(0, len(x), step):
        yield slice(begin, begin + step)


def _columns_shape(c: Correlation, images) -> tuple[int, ...]:
    taps, windows = (c.rows.taps, c.columns.taps), (c.rows.windows, c.columns.windows)
    return (images.shape[1], *taps, len(images), *windows)


def _columns(xp: ArrayModule, c: Correlation, images) -> Array:
    """Return the patches of images as columns: one matrix for each group."""
    new = xp.empty if c.pointwise else xp.zeros
    columns = new(_columns_shape(c, images), images.dtype)
    channels = images.transpose(1, 0, 2, 3)
    for a, b, inside, windows in _taps(c):
        columns[:, a, b, :, windows[0], windows[1]] = channels[:, :, inside[0], inside[1]]
    return columns.reshape(c.groups, images.shape[1] // c.groups * c.taps, -1)


def _by_group(xp: ArrayModule, c: Correlation, images) -> Array:
    """Return images as one matrix for each group: channels times windows of all images."""
    channels = images.transpose(1, 0, 2, 3)
    copy = xp.empty(channels.shape, images.dtype)
    copy[...] = channels
    return copy.reshape(c.groups, images.shape[1] // c.groups, -1)

"""Correlation and its gradients on a CPU.

Patches are laid out as columns, a cache-sized block at a time, so that each block is one matrix
product per group and the memory does not grow with the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcdist.base.jit import bound
from hpcdist.ops.common import in_sequence
from hpcdist.ops.convolution import conv_kernels, depthwise_kernels
from hpcdist.ops.convolution.windows import Correlation
from hpcdist.ops.scratch import scratch, with_scratch
from hpcdist.ops.types import Array, ArrayModule, Call

COLUMNS = 384  # of a product at least: fewer, and the filters are read for too little work
CACHED = 1 << 17  # elements of columns that stay in the second-level cache


@dataclass(frozen=True)
class _Block:
    """Images and rows of windows that become one matrix of columns."""

    image: int
    images: int
    row: int
    rows: int


def correlate(xp: ArrayModule, c: Correlation, x, w, y) -> Call:
    """Return the call that writes y."""
    if c.is_depthwise(w):
        facts = (_depthwise_shape(x, w), c.geometry)
        return bound(
            depthwise_kernels.depthwise, *_in_memory(x), w.reshape(-1), *_in_memory(y), *facts
        )
    if c.pointwise:
        c, x, y = c.flat(), _in_row(x), _in_row(y)
    return with_scratch(lambda: list(_products(c, x, c.matrices(w), y)))


def correlate_back(xp: ArrayModule, c: Correlation, w, dy, dx) -> Call:
    """Return the call that writes the gradient by x."""
    if c.is_depthwise(w):
        memory = (w.reshape(-1), *_in_memory(dy), *_in_memory(dx))
        facts = (_depthwise_shape(dx, w), c.geometry)
        return bound(depthwise_kernels.depthwise_back, *memory, *facts)
    if c.pointwise:
        turned = c.matrices(w).swapaxes(1, 2)
        c, dy, dx = c.flat(), _in_row(dy), _in_row(dx)
        return with_scratch(lambda: list(_products(c, dy, turned, dx)))
    if c.rows.stride == c.columns.stride == 1 and _flipping_pays(c, dx, dy):
        return with_scratch(lambda: list(_flipped_products(c, w, dy, dx)))
    return with_scratch(lambda: list(_scattered(c, c.matrices(w), dy, dx)))


def correlate_weights(xp: ArrayModule, c: Correlation, x, dy, dw) -> Call:
    """Return the call that writes the gradient by w."""
    if c.is_depthwise(dw):
        memory = (*_in_memory(x), *_in_memory(dy), dw.reshape(-1))
        facts = (_depthwise_shape(x, dw), c.geometry)
        return bound(depthwise_kernels.depthwise_weights, *memory, *facts)
    if c.pointwise:
        c, x, dy = c.flat(), _in_row(x), _in_row(dy)
    return with_scratch(lambda: list(_outer_products(c, x, dy, c.matrices(dw))))


def _depthwise_shape(x, w) -> tuple[int, ...]:
    return (*x.shape[:2], len(w) // x.shape[1], *w.shape[2:])


def _flipping_pays(c: Correlation, dx, dy) -> bool:
    """Return whether patches of dy are cheaper than columns of dx, which must be added up."""
    n, channels, height, width = dx.shape
    filters = dy.shape[1]
    moved = n * filters * height * width + channels * filters  # the filters are turned, too
    return bool(moved <= 2 * n * channels * c.windows)


def _in_memory(images) -> tuple[Array, tuple[int, ...]]:
    """Return the memory of images as one row, and their place in it for conv_kernels."""
    size = images.itemsize
    memory = np.lib.stride_tricks.as_strided(images, (images.size,), (size,))
    return memory, (*(stride // size for stride in images.strides), *images.shape[2:])


def _in_row(images) -> Array:
    n, channels, rows, columns = images.shape
    return images.reshape(n, channels, 1, rows * columns)


def _blocks(c: Correlation, images: int, channels: int) -> Iterator[_Block]:
    """Divide images into blocks of about as many columns as the cache takes."""
    columns = max(COLUMNS, CACHED // (channels * c.taps))
    if c.windows >= COLUMNS or images == 1:
        rows = c.rows.windows
        step = max(1, -(-columns // c.columns.windows))
        step = -(-rows // -(-rows // step))  # blocks of like size
        for image in range(images):
            for row in range(0, rows, step):
                yield _Block(image, 1, row, min(step, rows - row))
    else:
        step = -(-columns // c.windows)
        for image in range(0, images, step):
            yield _Block(image, min(step, images - image), 0, c.rows.windows)


def _patches(c: Correlation, x, block: _Block) -> tuple[list[Call], Array]:
    """Return the steps that make a block's columns, and these: one matrix for each group."""
    channels = x.shape[1]
    if c.pointwise and block.images == 1:
        begin = block.row * c.columns.windows
        end = begin + block.rows * c.columns.windows
        pixels = x[block.image].reshape(c.groups, channels // c.groups, -1)
        return [], pixels[:, :, begin:end]
    taps = (c.rows.taps, c.columns.taps)
    shape = (channels, *taps, block.images, block.rows, c.columns.windows)
    columns = scratch("columns", shape, x.dtype)
    place = (columns.reshape(-1), shape, c.geometry, block.image, block.row)
    step = bound(conv_kernels.gather, *_in_memory(x), *place)
    return [step], columns.reshape(c.groups, channels // c.groups * c.taps, -1)


def _results(c: Correlation, y, block: _Block) -> tuple[Array, tuple[Array, Array] | None]:
    """Return a block of y as one matrix for each group, and, if that is a copy, what it copies."""
    filters = y.shape[1]
    if block.images == 1:
        begin = block.row * c.columns.windows
        end = begin + block.rows * c.columns.windows
        return y[block.image].reshape(c.groups, filters // c.groups, -1)[:, :, begin:end], None
    part = y[block.image : block.image + block.images].transpose(1, 0, 2, 3)
    copy = scratch("results", part.shape, y.dtype)
    return copy.reshape(c.groups, filters // c.groups, -1), (copy, part)


def _products(c: Correlation, x, matrices, y) -> Iterator[Call]:
    for block in _blocks(c, len(x), x.shape[1]):
        steps, columns = _patches(c, x, block)
        yield from steps
        results, copied = _results(c, y, block)
        yield partial(np.matmul, matrices, columns, out=results)
        if copied:
            yield partial(np.copyto, copied[1], copied[0])


def _flipped_products(c: Correlation, w, dy, dx) -> Iterator[Call]:
    """With strides of 1, the gradient is a correlation with the filters turned by half a turn."""
    filters, channels, rows, columns = w.shape
    by_group = w.reshape(c.groups, filters // c.groups, channels, rows, columns)
    half_turned = by_group[:, :, :, ::-1, ::-1].transpose(0, 2, 1, 3, 4)
    turned = scratch("filters", half_turned.shape, w.dtype)
    yield partial(np.copyto, turned, half_turned)
    yield from _products(c.flipped(), dy, turned.reshape(c.groups, channels, -1), dx)


def _scattered(c: Correlation, matrices, dy, dx) -> Iterator[Call]:
    channels, taps = dx.shape[1], (c.rows.taps, c.columns.taps)
    yield partial(dx.fill, 0)
    for block in _blocks(c, len(dx), channels):
        slopes, copied = _results(c, dy, block)
        if copied:
            yield partial(np.copyto, *copied)
        shape = (channels, *taps, block.images, block.rows, c.columns.windows)
        columns = scratch("columns", shape, dx.dtype)
        by_group = columns.reshape(c.groups, channels // c.groups * c.taps, -1)
        yield partial(np.matmul, matrices.swapaxes(1, 2), slopes, out=by_group)
        place = (c.geometry, block.image, block.row)
        yield bound(conv_kernels.scatter, columns.reshape(-1), shape, *_in_memory(dx), *place)


def _outer_products(c: Correlation, x, dy, dw) -> Iterator[Call]:
    term = scratch("term", dw.shape, dw.dtype)
    for i, block in enumerate(_blocks(c, len(x), x.shape[1])):
        steps, columns = _patches(c, x, block)
        yield from steps
        slopes, copied = _results(c, dy, block)
        if copied:
            yield partial(np.copyto, *copied)
        product = partial(np.matmul, slopes, columns.swapaxes(1, 2))
        if i == 0:
            yield partial(product, out=dw)
        else:
            yield in_sequence(partial(product, out=term), partial(np.add, dw, term, dw))

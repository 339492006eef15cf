"""Patches of images as rows of sequences, and sums over the rows to come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows
from hpcdist.graph.sequence_rows import by_row_of_sequence, grouped
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.sequence.pool_softmax_conv import rowwise, sequences_of
from hpcdist.ops.types import Array, ArrayModule, Attrs, Call, Lods

# -- im2sequence -----------------------------------------------------------------------------------
_PATCHES: Attrs = {
    "kernels": (1, 1),
    "strides": (1, 1),
    "paddings": (0, 0, 0, 0),
    "out_stride": (1, 1),
}


def _counts(shape: Sequence[int], kernels, strides, paddings) -> tuple[int, int]:
    """Return how many patches there are down and across; paddings: up, left, down, right."""
    counts = []
    for axis in (0, 1):
        extent = shape[2 + axis]
        room = extent + paddings[axis] + paddings[axis + 2] - kernels[axis]
        if extent < 0 or room < 0:
            raise GraphError(
                f"im2sequence: patches {list(kernels)} do not fit into images {list(shape)}"
            )
        counts.append(room // strides[axis] + 1)
    return counts[0], counts[1]


def _patches_infer(x: Meta, kernels, strides, paddings, **_) -> Meta:
    if len(x.shape) != 4:
        raise GraphError(f"im2sequence: X must be [images, channels, height, width]: {x.shape}")
    down, across = _counts(x.shape, kernels, strides, paddings)
    images, width = x.shape[0], x.shape[1] * kernels[0] * kernels[1]
    if images < 0:
        return Meta((-1, width), x.dtype, lod=Lod(1))
    lod = Lod.of_lengths([np.full(images, down * across)])
    return Meta((lod.rows, width), x.dtype, lod=lod)


def _places(shape, kernels, strides, paddings) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield for each place of a patch: it, and the pixels of padded images that stand there."""
    down, across = _counts(shape, kernels, strides, paddings)
    for i in range(kernels[0]):
        for j in range(kernels[1]):
            rows = slice(i, i + strides[0] * (down - 1) + 1, strides[0])
            columns = slice(j, j + strides[1] * (across - 1) + 1, strides[1])
            yield i, j, rows, columns


def _in_patches(rows, shape, kernels, strides, paddings) -> Array:
    counts = _counts(shape, kernels, strides, paddings)
    return rows.reshape(shape[0], *counts, shape[1], *kernels)


def _padded(xp: ArrayModule, shape, dtype, paddings) -> tuple[Array, Array]:
    up, left, down, right = paddings
    height, width = shape[2:]
    padded = xp.zeros((*shape[:2], height + up + down, width + left + right), dtype)
    return padded, padded[:, :, up : up + height, left : left + width]


def _patches(xp: ArrayModule, x, out, kernels, strides, paddings, **_) -> None:
    padded, inside = _padded(xp, x.shape, x.dtype, paddings)
    inside[...] = x
    patches = _in_patches(out, x.shape, kernels, strides, paddings)
    for i, j, rows, columns in _places(x.shape, kernels, strides, paddings):
        patches[..., i, j] = padded[:, :, rows, columns].transpose(0, 2, 3, 1)


def _patches_grad(xp: ArrayModule, x, dout, dx, kernels, strides, paddings, **_) -> None:
    padded, inside = _padded(xp, dx.shape, dx.dtype, paddings)
    patches = _in_patches(dout, dx.shape, kernels, strides, paddings)
    for i, j, rows, columns in _places(dx.shape, kernels, strides, paddings):
        padded[:, :, rows, columns] += patches[..., i, j].transpose(0, 3, 1, 2)
    dx[...] = inside


def _of_images(op: Applied) -> OfRows:
    """Each image gives a separate sequence."""
    (x,) = op.inputs["X"]
    if x.of != OfRows(How.ROWS):
        raise MixesRows(f"{x.name!r} is {x.of.how.value}")
    return grouped(op.outputs["Out"][0])


define_with_grad(
    "im2sequence",
    "X -> Out",
    "X, Out@GRAD -> X@GRAD",
    rows=_of_images,
    attrs=_PATCHES,
    ranges={"kernels": "at least 1", "strides": "at least 1", "paddings": "at least 0"},
    infer=_patches_infer,
    kernel=_patches,
    grad_kernel=_patches_grad,
)


# -- row_conv --------------------------------------------------------------------------------------
def _ahead_infer(x: Meta, filter: Meta) -> Meta:
    lod = sequences_of(x, "row_conv", "X")
    if len(x.shape) != 2 or filter.shape[1:] != x.shape[1:]:
        raise GraphError(f"row_conv: Filter {filter.shape} must be as wide as X {x.shape}")
    return rowwise(x, lod)


def _parts(lod: Lod, ahead: int) -> tuple[Array, Array]:
    """Return the rows that have a row ``ahead`` in their sequence, and those."""
    rows = np.arange(lod.rows)
    inside = rows + ahead < np.repeat(lod.last[1:], lod.lengths)
    return rows[inside], rows[inside] + ahead


def _ahead_bind(xp: ArrayModule, x, filter, out, lods: Lods) -> Call:
    parts = [tuple(map(xp.asarray, _parts(lods[0], k))) for k in range(len(filter))]

    def run() -> None:
        out.fill(0)
        for weights, (rows, sources) in zip(filter, parts):
            out[rows] += x[sources] * weights

    return run


def _ahead_grad_bind(xp: ArrayModule, x, filter, dout, dx, dfilter, lods: Lods) -> Call:
    parts = [tuple(map(xp.asarray, _parts(lods[0], k))) for k in range(len(filter))]

    def run() -> None:
        if dx is not None:
            dx.fill(0)
        for k, (rows, sources) in enumerate(parts):
            if dx is not None:
                dx[sources] += dout[rows] * filter[k]
            if dfilter is not None:
                dfilter[k] = (x[sources] * dout[rows]).sum(axis=0)

    return run


define_with_grad(
    "row_conv",
    "X, Filter -> Out",
    "X, Filter, Out@GRAD -> X@GRAD?, Filter@GRAD?",
    rows=by_row_of_sequence,
    infer=_ahead_infer,
    bind=_ahead_bind,
    lods=("X",),
    grad_infer=lambda x, filter, dout: (rowwise(x, x.lod), Meta(filter.shape, filter.dtype)),
    grad_bind=_ahead_grad_bind,
)

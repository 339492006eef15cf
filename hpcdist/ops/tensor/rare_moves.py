"""Moves of elements for which Fluid has operators, but no layers, or layers made of others.

``fill``, ``fill_zeros_like2``, ``unbind``, ``partial_concat``, ``partial_sum``, ``unpool`` and
``conv_shift``: models that other programs have built use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define, lookup
from hpcdist.graph.rows import by_element, by_row, constant, linear, moved, off_rows
from hpcdist.ops.common import define_with_grad, fits, in_sequence, same
from hpcdist.ops.loss.labels import range_check
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, Call, Operands


# -- constants -------------------------------------------------------------------------------------
def _fill_infer(value: Sequence[float], shape: Sequence[int], dtype: str, force_cpu: bool) -> Meta:
    if math.prod(shape) != len(value):
        raise GraphError(f"fill: {len(value)} values do not fill the shape {list(shape)}")
    return Meta(tuple(shape), dtype)


def _fill_bind(xp: ArrayModule, out, value: Sequence[float], **_) -> Call:
    return partial(xp.copyto, out, xp.asarray(value, dtype=out.dtype).reshape(out.shape))


define(
    "fill",
    "-> Out",
    rows=constant,
    attrs={"value": (), "shape": (), "dtype": "float32", "force_cpu": False},
    infer=_fill_infer,
    bind=_fill_bind,
)
define(
    "fill_zeros_like2",
    "X -> Out",
    rows=by_element(totals=constant),
    attrs={"dtype": None},
    infer=lambda x, dtype: Meta(x.shape, dtype or x.dtype),
    bind=lambda xp, x, out, dtype: partial(out.fill, 0),
)


# -- one value as many, or many as one -------------------------------------------------------------
_UNSTACK, _STACK = lookup("unstack"), lookup("stack")
define_with_grad(
    "unbind",
    "X -> Out*",
    "Out@GRAD* -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"axis": 0},
    infer=_UNSTACK.infer,
    bind=_UNSTACK.bind,
    grad_infer=_STACK.infer,
    grad_bind=_STACK.bind,
)


def _columns(width: int, start_index: int, length: int) -> slice:
    """Return the columns that are meant: ``length`` -1 is all that follow."""
    begin = start_index + width if start_index < 0 else start_index
    end = width if length < 0 else begin + length
    if not 0 <= begin < end <= width:
        raise GraphError(f"columns {begin} to {end} are not among the {width} there are")
    return slice(begin, end)


def _partial_infer(xs: Sequence[Meta], start_index: int, length: int) -> tuple[Meta, int]:
    if not xs or len(xs[0].shape) != 2 or not all(fits(x.shape, xs[0].shape) for x in xs):
        raise GraphError(f"expected matrices of one shape, got {[x.shape for x in xs]}")
    columns = _columns(xs[0].shape[1], start_index, length)
    return xs[0], columns.stop - columns.start


def _partial_concat_infer(xs: Sequence[Meta], **facts) -> Meta:
    first, width = _partial_infer(xs, **facts)
    return Meta((first.shape[0], width * len(xs)), first.dtype)


def _partial_sum_infer(xs: Sequence[Meta], **facts) -> Meta:
    first, width = _partial_infer(xs, **facts)
    return Meta((first.shape[0], width), first.dtype)


def _partial_concat_bind(xp: ArrayModule, xs: Operands, out, start_index: int, length: int) -> Call:
    columns = _columns(xs[0].shape[1], start_index, length)
    return partial(xp.concatenate, [x[:, columns] for x in xs], axis=1, out=out)


def _partial_sum_bind(xp: ArrayModule, xs: Operands, out, start_index: int, length: int) -> Call:
    columns = _columns(xs[0].shape[1], start_index, length)
    first, *others = [x[:, columns] for x in xs]
    adding = [partial(xp.add, out, other, out) for other in others]
    return in_sequence(partial(xp.copyto, out, first), *adding)


def _partial_grad_infer(xs: Sequence[Meta], dout: Meta, **_) -> tuple[list[Meta]]:
    return ([same(x) for x in xs],)


def _partial_grad_bind(
    xp: ArrayModule, xs: Operands, dout, dxs: Operands, start_index: int, length: int
) -> Call:
    """Each operand has its columns of the gradient, or, of a sum, all of them; others have 0."""
    columns = _columns(xs[0].shape[1], start_index, length)
    width = columns.stop - columns.start
    step = width if dout.shape[1] > width else 0
    calls: list[Call] = []
    for place, dx in enumerate(dxs):
        if dx is None:
            continue
        part = dout[:, place * step : place * step + width]
        calls += [partial(dx.fill, 0), partial(xp.copyto, dx[:, columns], part)]
    return in_sequence(*calls)


for _type, _infer, _bind, _totals in (
    ("partial_concat", _partial_concat_infer, _partial_concat_bind, moved),
    ("partial_sum", _partial_sum_infer, _partial_sum_bind, linear),
):
    define_with_grad(
        _type,
        "X* -> Out",
        "X*, Out@GRAD -> X@GRAD*",
        rows=by_row(totals=_totals),
        attrs={"start_index": 0, "length": -1},
        infer=_infer,
        bind=_bind,
        grad_infer=_partial_grad_infer,
        grad_bind=_partial_grad_bind,
        grad_shape_only=("X",),
    )


# -- unpool: each element goes back to where max_pool2d_with_index found it ------------------------
_UNPOOL = {
    "ksize": (),
    "strides": (1, 1),
    "paddings": (0, 0),
    "unpooling_type": "max",
}


def _unpool_infer(
    x: Meta,
    indices: Meta,
    ksize: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    unpooling_type: str,
) -> Meta:
    if len(x.shape) != 4 or indices.shape[1:] != x.shape[1:] or unpooling_type != "max":
        raise GraphError(f"unpool: images {x.shape} with indices {indices.shape}, max only")
    images = [
        -1 if extent < 0 else (extent - 1) * stride - 2 * padding + size
        for extent, size, stride, padding in zip(x.shape[2:], ksize, strides, paddings)
    ]
    return Meta((*x.shape[:2], *images), x.dtype)


def _pixels(indices, images) -> tuple[Array, Array]:
    """View indices and images with one row for each channel of each image."""
    channels = images.shape[0] * images.shape[1]
    return indices.reshape(channels, -1), images.reshape(channels, -1)


def _unpool_bind(xp: ArrayModule, x, indices, out, **_) -> Call:
    places, images = _pixels(indices, out)
    check = range_check(xp, places, images.shape[1], "unpool", "pixels of an image")
    rows = xp.arange(len(images))[:, None]

    def put() -> None:
        images.fill(0)
        images[rows, places] = x.reshape(places.shape)

    return in_sequence(check, put)


def _unpool_grad_bind(xp: ArrayModule, x, indices, dout, dx, **_) -> Call:
    places, images = _pixels(indices, dout)

    def take_back() -> None:
        dx[...] = xp.take_along_axis(images, places, 1).reshape(dx.shape)

    return take_back


define_with_grad(
    "unpool",
    "X, Indices -> Out",
    "X, Indices, Out@GRAD -> X@GRAD",
    rows=by_row(),
    attrs=_UNPOOL,
    infer=_unpool_infer,
    bind=_unpool_bind,
    grad_bind=_unpool_grad_bind,
    grad_shape_only=("X",),
)


# -- conv_shift: the circular correlation of rows (Graves et al., 2014) ----------------------------
def _conv_shift_infer(x: Meta, y: Meta) -> Meta:
    if len(x.shape) != 2 or len(y.shape) != 2 or not y.shape[1] % 2 or y.shape[1] > x.shape[1] >= 0:
        raise GraphError(f"conv_shift: {x.shape} by {y.shape}; an odd width, at most the first's")
    return same(x)


def _conv_shift(xp: ArrayModule, x, y, out) -> None:
    """out[i] = sum over j of x[i + j - half] y[j], round the ends."""
    half = y.shape[1] // 2
    out.fill(0)
    for j in range(y.shape[1]):
        out += xp.roll(x, half - j, 1) * y[:, j : j + 1]


def _conv_shift_grad(xp: ArrayModule, x, y, dout, dx, dy) -> None:
    half = y.shape[1] // 2
    if dx is not None:
        dx.fill(0)
    for j in range(y.shape[1]):
        if dx is not None:
            dx += xp.roll(dout, j - half, 1) * y[:, j : j + 1]
        if dy is not None:
            dy[:, j] = (xp.roll(x, half - j, 1) * dout).sum(1)


define_with_grad(
    "conv_shift",
    "X, Y -> Out",
    "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_row("X", "Y"),
    infer=shaped("X: n w; Y: n k", _conv_shift_infer),
    kernel=_conv_shift,
    grad_kernel=_conv_shift_grad,
)

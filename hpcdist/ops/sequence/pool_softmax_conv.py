"""Operators within sequences: pooling, softmax, convolution.

The Lod of a ragged value is known when an operator is bound; another one binds it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import Applied, OfRows
from hpcdist.graph.sequence_rows import by_row_of_sequence, by_sequence
from hpcdist.ops.common import Wanted, define_with_grad, grad_by, in_sequence
from hpcdist.ops.loss.labels import take
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Lods, Metas


def sequences_of(meta: Meta, type: str, slot: str) -> Lod:
    """Return the sequences of an operand; GraphError if it has none."""
    if meta.lod is None:
        raise GraphError(
            f"{type}: {slot} of shape {meta.shape} is not grouped into sequences: declare the data "
            "it comes from with lod_level=1 and feed a LoDTensor (fluid.create_lod_tensor)"
        )
    return meta.lod


def rowwise(meta: Meta, lod: Lod | None = None, rows: int | None = None) -> Meta:
    """Return the meta of a value with the same rows, or so many others, in these sequences."""
    shape = meta.shape if rows is None else (rows, *meta.shape[1:])
    return Meta(shape, meta.dtype, lod=lod)


def like_first(x: Meta, *_, **__) -> Meta:
    """Shape rule of a gradient: as the forward operand, with its sequences."""
    return rowwise(x, x.lod)


def loop(xp: ArrayModule, name: str, *args) -> Call:
    """Bind a loop over sequences: numba's for the CPU, whole arrays for a GPU."""
    if xp is not np:
        from hpcdist.ops.sequence import sequence_device

        return partial(getattr(sequence_device, name), xp, *args)
    from hpcdist.ops.sequence import sequence_kernels

    return partial(getattr(sequence_kernels, name), *args)


def matrix(array) -> DeviceArray:
    """View an array as [rows, width]."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


# -- pool ------------------------------------------------------------------------------------------
_POOL = {"pooltype": "AVERAGE", "is_test": False, "pad_value": 0.0}
_POOLS = ("SUM", "AVERAGE", "SQRT", "MAX", "FIRST", "LAST")


def _pool_infer(x: Meta, pooltype: str, **_) -> Metas:
    if pooltype not in _POOLS:
        names = ", ".join(p.lower() for p in _POOLS)
        raise GraphError(f"sequence_pool: pool_type must be one of {names}, got {pooltype!r}")
    lod = sequences_of(x, "sequence_pool", "X")
    out = rowwise(x, lod.outer, lod.sequences)
    return out, Meta(out.shape if pooltype == "MAX" else (0,), "int32")


def _divisors(lod: Lod, pooltype: str, dtype) -> np.ndarray:
    """Return the divisor of each sequence's sum, 1 where there are no rows."""
    lengths = np.maximum(lod.lengths, 1)
    if pooltype == "SUM":
        lengths = np.ones_like(lengths)
    return (np.sqrt(lengths) if pooltype == "SQRT" else lengths).astype(dtype)


def _ends(lod: Lod, pooltype: str, full: np.ndarray) -> np.ndarray:
    """Return the first, or last, row of each sequence that has rows."""
    return lod.last[:-1][full] if pooltype == "FIRST" else lod.last[1:][full] - 1


def pool_bind(
    xp: ArrayModule, x, out, max_index, pooltype: str, pad_value: float, lods: Lods, **_
) -> Call:
    (lod,) = lods
    lengths = lod.lengths
    if pooltype in ("FIRST", "LAST"):
        full = lengths > 0
        rows = xp.asarray(_ends(lod, pooltype, full))
        if full.all():
            return take(xp, x, rows, out, axis=0)
        where = xp.asarray(np.flatnonzero(full))

        def run() -> None:
            out.fill(pad_value)
            out[where] = x[rows]

        return run
    if pooltype == "MAX":
        # The row each maximum stands in is for the gradient: found also where nobody asks.
        index = xp.empty(out.shape, "int32") if max_index is None else max_index
        calls = [loop(xp, "max_rows", matrix(x), lod.last, matrix(out), matrix(index))]
    else:
        divisors = _divisors(lod, pooltype, x.dtype)
        calls = [loop(xp, "sum_rows", matrix(x), lod.last, divisors, matrix(out))]
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        calls.append(partial(_put, out, xp.asarray(empty), pad_value))
    return in_sequence(*calls)


def _put(out, rows, value: float) -> None:
    out[rows] = value


def _pool_grad_bind(
    xp: ArrayModule, x, max_index, dout, dx, pooltype: str, lods: Lods, **_
) -> Call:
    (lod,) = lods
    if pooltype == "MAX":
        return loop(xp, "put_columns", matrix(dout), matrix(max_index), matrix(dx))
    if pooltype in ("FIRST", "LAST"):
        full = lod.lengths > 0
        rows, where = (xp.asarray(i) for i in (_ends(lod, pooltype, full), np.flatnonzero(full)))

        def run() -> None:
            dx.fill(0)
            dx[rows] = dout[where]

        return run
    divisors = _divisors(lod, pooltype, x.dtype)
    return loop(xp, "spread_rows", matrix(dout), lod.last, divisors, matrix(dx))


_POOL_GRAD = "X, MaxIndex?, Out@GRAD -> X@GRAD"
_maximum_grad = grad_by("sequence_pool_grad", _POOL_GRAD)
_sum_grad = grad_by("sequence_pool_grad", "X, Out@GRAD -> X@GRAD")


def _pool_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    return (_maximum_grad if op.attrs["pooltype"] == "MAX" else _sum_grad)(op, wanted)


def _pooled_rows(op: Applied) -> Mapping[str, OfRows]:
    """MaxIndex counts rows from the first of the batch, so it is nothing to be joined."""
    return {"Out": by_sequence(op)["Out"]}


define(
    "sequence_pool",
    "X -> Out, MaxIndex?",
    rows=_pooled_rows,
    attrs=_POOL,
    infer=_pool_infer,
    bind=pool_bind,
    grad=_pool_grad,
    lods=("X",),
)
define(
    "sequence_pool_grad",
    _POOL_GRAD,
    attrs=_POOL,
    infer=like_first,
    bind=_pool_grad_bind,
    shape_only=("X",),
    lods=("X",),
)


# -- softmax ---------------------------------------------------------------------------------------
def _softmax_infer(x: Meta, **_) -> Meta:
    lod = sequences_of(x, "sequence_softmax", "X")
    if math.prod(x.shape[1:]) != 1:
        raise GraphError(f"sequence_softmax: X must be [rows, 1] or [rows], got {x.shape}")
    return rowwise(x, lod)


_CUDNN = {"use_cudnn": False}
define_with_grad(
    "sequence_softmax",
    "X -> Out",
    "X, Out, Out@GRAD -> X@GRAD",
    rows=by_row_of_sequence,
    attrs=_CUDNN,
    infer=_softmax_infer,
    bind=lambda xp, x, out, lods, **_: loop(xp, "softmax", matrix(x), lods[0].last, matrix(out)),
    lods=("X",),
    grad_infer=like_first,
    grad_bind=lambda xp, x, out, dout, dx, lods, **_: loop(
        xp, "softmax_grad", matrix(out), matrix(dout), lods[0].last, matrix(dx)
    ),
    grad_shape_only=("X",),
)


# -- convolution -----------------------------------------------------------------------------------
CONV = {"contextLength": 1, "contextStart": 0, "contextStride": 1, "paddingTrainable": False}


def conv_infer(
    x: Meta, filter: Meta, contextLength: int, contextStride: int, paddingTrainable: bool, **_
) -> Meta:
    lod = sequences_of(x, "sequence_conv", "X")
    if contextStride != 1 or paddingTrainable:
        raise GraphError(
            "sequence_conv: filter_stride must be 1 and paddings not trainable, got "
            f"filter_stride={contextStride}, paddingTrainable={paddingTrainable}"
        )
    if len(x.shape) != 2 or filter.shape[0] != contextLength * x.shape[1]:
        raise GraphError(
            f"sequence_conv: {contextLength} rows of X {x.shape} need a filter of as many rows as "
            f"they have numbers, got {filter.shape}"
        )
    return Meta((x.shape[0], filter.shape[1]), x.dtype, lod=lod)


def _laid_out(xp: ArrayModule, x, length: int, purpose: str) -> DeviceArray:
    """Return memory for the windows of every row: on the CPU, operators share it."""
    shape = (len(x), length * x.shape[1])
    if xp is not np:
        return xp.empty(shape, x.dtype)
    from hpcdist.ops.scratch import scratch

    return scratch(f"sequence_conv {purpose}", shape, x.dtype)


def conv_bind(
    xp: ArrayModule, x, filter, out, contextStart: int, contextLength: int, lods: Lods, **_
) -> Call:
    def run() -> None:
        rows = _laid_out(xp, x, contextLength, "rows")
        loop(xp, "windows", x, lods[0].last, contextStart, contextLength, rows)()
        xp.dot(rows, filter, out)

    return run


def _conv_grad_bind(
    xp: ArrayModule,
    x,
    filter,
    dout,
    dx,
    dfilter,
    contextStart: int,
    contextLength: int,
    lods: Lods,
    **_,
) -> Call:
    place = (lods[0].last, contextStart, contextLength)

    def run() -> None:
        if dfilter is not None:
            rows = _laid_out(xp, x, contextLength, "rows")
            loop(xp, "windows", x, *place, rows)()
            xp.dot(rows.T, dout, dfilter)
        if dx is not None:
            drows = _laid_out(xp, x, contextLength, "rows")
            xp.dot(dout, filter.T, drows)
            loop(xp, "windows_grad", drows, *place, dx)()

    return run


define_with_grad(
    "sequence_conv",
    "X, Filter -> Out",
    "X, Filter, Out@GRAD -> X@GRAD?, Filter@GRAD?",
    rows=by_row_of_sequence,
    attrs=CONV,
    infer=conv_infer,
    bind=conv_bind,
    lods=("X",),
    grad_infer=lambda x, filter, dout, **_: (rowwise(x, x.lod), Meta(filter.shape, filter.dtype)),
    grad_bind=_conv_grad_bind,
)

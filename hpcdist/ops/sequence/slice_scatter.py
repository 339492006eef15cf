"""Slices of sequences at computed positions, and sequences added to rows."""

from __future__ import annotations

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows
from hpcdist.graph.sequence_rows import expect_ragged, grouped
from hpcdist.graph.values import Value
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.embedding.run_kernels import add_at
from hpcdist.ops.sequence.pool_softmax_conv import sequences_of
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Lods


# -- a piece of each sequence ----------------------------------------------------------------------
def _slice_rows(op: Applied) -> dict[str, OfRows]:
    (x,) = op.inputs["X"]
    expect_ragged(x, nested=False)
    for slot in ("Offset", "Length"):
        (places,) = op.inputs[slot]
        if places.of not in (OfRows(How.ROWS), OfRows(How.RAGGED, x.of.sequences)):
            raise MixesRows(f"{places.name!r} has no row for each sample")
    return {"Out": grouped(op.outputs["Out"][0])}


def _chosen(x: Value, offset: Value, length: Value) -> tuple[np.ndarray, Lod]:
    """Return the rows that are taken, and how they group."""
    if x.lod is None or x.lod.level != 1:
        raise FeedError("sequence_slice: input must be sequences; declare it with lod_level=1")
    begins, counts = (v.array.reshape(-1).astype(np.int64) for v in (offset, length))
    lengths = x.lod.lengths
    if len(begins) != len(lengths) or len(counts) != len(lengths):
        raise FeedError(
            f"sequence_slice: {len(lengths)} sequences need as many offsets and lengths, got "
            f"{len(begins)} and {len(counts)}"
        )
    wrong = np.flatnonzero((begins < 0) | (counts < 0) | (begins + counts > lengths))
    if len(wrong):
        k = int(wrong[0])
        raise FeedError(
            f"sequence_slice: sequence {k} has {lengths[k]} rows, so {counts[k]} from row "
            f"{begins[k]} on cannot be taken"
        )
    lod = Lod.of_lengths([counts])
    within = np.arange(lod.rows) - np.repeat(lod.last[:-1], counts)
    return np.repeat(x.lod.last[:-1] + begins, counts) + within, lod


def _sliced(x: Value, offset: Value, length: Value) -> Value:
    rows, lod = _chosen(x, offset, length)
    return Value(x.array[rows], lod)


def _sliced_grad(x: Value, offset: Value, length: Value, dout: Value) -> Value:
    out = np.zeros_like(x.array)
    out[_chosen(x, offset, length)[0]] = dout.array
    return Value(out, x.lod)


define_with_grad(
    "sequence_slice",
    "X, Offset, Length -> Out",
    "X, Offset, Length, Out@GRAD -> X@GRAD",
    rows=_slice_rows,
    infer=lambda x, *_: Meta((-1, *x.shape[1:]), x.dtype, lod=Lod(1)),
    values=_sliced,
    grad_infer=lambda x, *_: Meta(x.shape, x.dtype, lod=x.lod),
    grad_values=_sliced_grad,
)


# -- sequences added to rows -----------------------------------------------------------------------
def _scatter_rows(op: Applied) -> OfRows:
    (x,), (ids,), (updates,) = (op.inputs[slot] for slot in ("X", "Ids", "Updates"))
    if x.of != OfRows(How.ROWS) or ids.of.how is not How.RAGGED or ids.lod_level > 1:
        raise MixesRows(f"{x.name!r} is {x.of.how.value}, {ids.name!r} {ids.of.how.value}")
    expect_ragged(updates)
    if updates.of.sequences != ids.of.sequences:
        op.align(ids.of.sequences, updates.of.sequences)
    return x.of


def _scatter_infer(x: Meta, ids: Meta, updates: Meta) -> Meta:
    lod = sequences_of(ids, "sequence_scatter", "index")
    if len(x.shape) != 2:
        raise GraphError(f"sequence_scatter: input must be a matrix, got {x.shape}")
    if lod.known and x.shape[0] not in (-1, lod.sequences):
        raise GraphError(
            f"sequence_scatter: input has {x.shape[0]} rows, index {lod.sequences} sequences"
        )
    if -1 not in (ids.shape[0], updates.shape[0]) and ids.shape[0] != updates.shape[0]:
        raise GraphError(
            f"sequence_scatter: index has {ids.shape[0]} rows, updates {updates.shape[0]}"
        )
    return Meta(x.shape, x.dtype, lod=x.lod)


def _places(xp: ArrayModule, ids, lod: Lod, width: int) -> tuple[DeviceArray, DeviceArray]:
    """Return the rows and columns that are added to."""
    columns = ids.reshape(-1)
    if columns.size and (int(columns.min()) < 0 or int(columns.max()) >= width):
        raise FeedError(
            f"sequence_scatter: an index must be from 0 to {width - 1}, got {int(columns.min())} "
            f"to {int(columns.max())}"
        )
    return xp.asarray(np.repeat(np.arange(lod.sequences), lod.lengths)), columns


def _scatter_bind(xp: ArrayModule, x, ids, updates, out, lods: Lods) -> Call:
    (lod,) = lods

    def run() -> None:
        out[...] = x
        add_at(xp, out, _places(xp, ids, lod, x.shape[1]), updates.reshape(-1))

    return run


def _scatter_grad_bind(xp: ArrayModule, ids, updates, dout, dx, dupdates, lods: Lods) -> Call:
    (lod,) = lods

    def run() -> None:
        if dx is not None:
            dx[...] = dout
        if dupdates is not None:
            rows = dout[_places(xp, ids, lod, dout.shape[1])]
            dupdates[...] = rows.reshape(dupdates.shape)

    return run


define_with_grad(
    "sequence_scatter",
    "X, Ids, Updates -> Out",
    "Ids, Updates, Out@GRAD -> X@GRAD?, Updates@GRAD?",
    rows=_scatter_rows,
    infer=_scatter_infer,
    bind=_scatter_bind,
    lods=("Ids",),
    grad_infer=lambda ids, updates, dout: (
        Meta(dout.shape, dout.dtype),
        Meta(updates.shape, updates.dtype, lod=updates.lod),
    ),
    grad_bind=_scatter_grad_bind,
)

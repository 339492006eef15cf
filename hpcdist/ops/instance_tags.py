"""filter_by_instag: instances with one of the given tags; similarity_focus: a mask of maxima.

`layers.lod_append` is in `sequence.regroup`, with lod_reset.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import by_row, not_on_rows
from hpcdist.graph.values import Value
from hpcdist.ops.common import define_with_grad, same
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.types import Array, ArrayModule, Call, Operands

_NOWHERE = np.array([[0, 1, 1]], np.int64)  # what Fluid writes if no instance is left


def _rows_of(x: Value) -> Array:
    """Return where instances begin, and the end: sequences, or rows."""
    return np.arange(len(x.array) + 1) if x.lod is None else x.lod.last


def _filtered(
    x: Value, tags: Value, filter_tags: Value, is_lod: bool, out_val_if_empty: float
) -> tuple[Value, Value, Value]:
    """Return the instances, 1 for each, and (where in Out, where in Ins, rows) for each."""
    bounds = _rows_of(x) if is_lod else np.arange(len(x.array) + 1)
    owners = _rows_of(tags)
    if len(owners) != len(bounds):
        raise FeedError(
            f"filter_by_instag: {len(bounds) - 1} instances, tags of {len(owners) - 1}: expected "
            "one sequence of tags for each instance"
        )
    hit = np.isin(tags.array.reshape(-1), filter_tags.array.reshape(-1))
    ends = np.concatenate([[0], np.cumsum(hit)])
    hits = np.flatnonzero(ends[owners[1:]] > ends[owners[:-1]])
    lengths = np.diff(bounds)[hits]
    if not len(hits):
        nothing = np.full((1, *x.array.shape[1:]), out_val_if_empty, x.array.dtype)
        one = Lod.of_lengths([[1]])
        return Value(nothing, one), Value(np.zeros((1, 1)), one), Value(_NOWHERE.copy(), one)
    rows = np.concatenate([np.arange(b, e) for b, e in zip(bounds[hits], bounds[hits + 1])])
    begins = np.cumsum(lengths) - lengths
    places = np.stack([begins, bounds[hits], lengths], 1).astype(np.int64)
    each = Lod.of_lengths([np.ones(len(hits), np.int64)])
    out = Value(x.array[rows], Lod.of_lengths([lengths]))
    return out, Value(np.ones((len(hits), 1)), each), Value(places, each)


def _filtered_grad(x: Value, weight: Value, places: Value, dout, **_) -> Value:
    dx = np.zeros_like(x.array)
    if dout is not None and weight.array.any():
        for begin, where, rows in places.array:
            dx[where : where + rows] = dout.array[begin : begin + rows]
    return Value(dx, x.lod)


_FILTER_ATTRS = {"is_lod": False, "out_val_if_empty": 0}
define_with_grad(
    "filter_by_instag",
    "Ins, Ins_tag, Filter_tag -> Out, LossWeight, IndexMap",
    "Ins, LossWeight, IndexMap, Out@GRAD -> Ins@GRAD",
    rows=not_on_rows,
    attrs=_FILTER_ATTRS,
    infer=lambda x, tags, filter_tags, **_: (
        Meta((-1, *x.shape[1:]), x.dtype, lod=Lod(1)),
        Meta((-1, 1), "float64", lod=Lod(1)),
        Meta((-1, 3), "int64"),
    ),
    values=_filtered,
    grad_rows=not_on_rows,
    grad_infer=lambda x, weight, places, dout, **_: Meta(x.shape, x.dtype, lod=x.lod),
    grad_values=_filtered_grad,
)


# -- similarity_focus ------------------------------------------------------------------------------
def _focus(axis: int, indexes: Sequence[int], inputs: Operands, outputs: Operands) -> None:
    (x,), (out,) = inputs, outputs
    out.fill(0)
    for image, mask in zip(np.moveaxis(x, axis, 1), np.moveaxis(out, axis, 1)):
        for index in indexes:
            plane = image[index]
            order = np.argsort(-plane.reshape(-1), kind="stable")
            rows, columns = np.unravel_index(order, plane.shape)
            free_row, free_column = (np.ones(extent, np.bool_) for extent in plane.shape)
            left = min(plane.shape)
            for row, column in zip(rows, columns):
                if free_row[row] and free_column[column]:
                    free_row[row] = free_column[column] = False
                    mask[:, row, column] = 1
                    left -= 1
                    if not left:
                        break


def _focus_infer(x: Meta, axis: int, indexes: Sequence[int]) -> Meta:
    if len(x.shape) != 4 or axis not in (1, 2, 3):
        raise GraphError(f"expected 4 dimensions and axis 1, 2 or 3, got {x.shape}, axis {axis}")
    wrong = [index for index in indexes if not 0 <= index < x.shape[axis]]
    if wrong or not indexes:
        raise GraphError(f"indexes must be some of 0..{x.shape[axis] - 1}, got {list(indexes)}")
    return same(x)


def _focus_bind(xp: ArrayModule, x, out, axis: int, indexes: Sequence[int]) -> Call:
    return run_on_host(xp, lambda ins, outs: _focus(axis, indexes, ins, outs), [x], [out])


define(
    "similarity_focus",
    "X -> Out",
    rows=by_row(),
    attrs={"axis": 1, "indexes": ()},
    infer=_focus_infer,
    bind=_focus_bind,
)

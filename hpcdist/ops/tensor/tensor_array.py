"""Tensor arrays, and sequences by step, for loops and branches.

Shapes of the results are known only in the step, so they compute with Values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import SAME, Applied, How, MixesRows, OfRows
from hpcdist.graph.sequence_rows import expect_ragged
from hpcdist.graph.values import ARRAY, RANK_TABLE, RankTable, TensorArray, Value, rows_of
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.types import Array


# -- rows of a batch that trainers share -----------------------------------------------------------
def in_loops(op: Applied) -> OfRows:
    """Rows of a batch are not followed through these."""
    raise MixesRows("rows of a batch are not followed through it")


def as_x(op: Applied) -> OfRows:
    """The same rows, in an array or out of it."""
    return op.inputs["X"][0].of


def _by_steps(op: Applied) -> OfRows:
    """Rows of sequences in steps, or back in sequences: each stays with its sequence."""
    (x,) = op.inputs["X"]
    expect_ragged(x, nested=False)
    return x.of


def _by_rank(op: Applied) -> OfRows:
    """Rows of samples in the order of a table go with the rows of its sequences."""
    (x,), (table,) = op.inputs["X"], op.inputs["RankTable"]
    if x.of == OfRows(How.ROWS) and table.of.how is How.RAGGED:
        return table.of
    return _by_steps(op)


def _longest(op: Applied) -> OfRows:
    """A number that is each trainer's own; `runtime.batches.gather` watches where it goes."""
    return SAME


def _array_of(x: Meta, *_, **__) -> Meta:
    return Meta(x.shape, x.dtype, ARRAY, lod=x.lod)


def element(x: Meta, *_, **__) -> Meta:
    """Return the Meta of each element of an array of tensors like ``x``."""
    return Meta(x.shape, x.dtype, lod=x.lod)


def open_rows(x: Meta, *_, **__) -> Meta:
    """Return ``x`` with a number of rows that only the step tells."""
    return Meta((-1, *x.shape[1:]), x.dtype)


def zeros_like(x: Value) -> Value:
    """Return zeros in place of a value that has no gradient."""
    return Value(np.zeros_like(x.array), x.lod)


# -- arrays ----------------------------------------------------------------------------------------
def _written(x: Value, i: Value, *, before) -> TensorArray:
    array = TensorArray(before or ())
    array.extend([None] * (int(i.number) + 1 - len(array)))
    array[int(i.number)] = x
    return array


def _at(array, i: Value, op_type: str) -> Any:
    index = int(i.number)
    if array is None or not 0 <= index < len(array) or array[index] is None:
        length = 0 if array is None else len(array)
        raise FeedError(f"{op_type}: nothing was written at {index} of an array of {length}")
    return array[index]


def _written_grad(x: Value, i: Value, dout) -> Value:
    index = int(i.number)
    gradient = dout[index] if dout is not None and index < len(dout) else None
    return zeros_like(x) if gradient is None else gradient


def _read_grad(x, i: Value, dout: Value) -> TensorArray:
    array = TensorArray([None] * len(x))
    array[int(i.number)] = dout
    return array


define_with_grad(
    "write_to_array",
    "X, I -> Out",
    "X, I, Out@GRAD -> X@GRAD",
    rows=as_x,
    infer=_array_of,
    values=_written,
    grad_infer=element,
    grad_values=_written_grad,
)
define_with_grad(
    "read_from_array",
    "X, I -> Out",
    "X, I, Out@GRAD -> X@GRAD",
    rows=as_x,
    infer=element,
    values=lambda x, i: _at(x, i, "array_read"),
    grad_infer=_array_of,
    grad_values=_read_grad,
)
define(
    "lod_array_length",
    "X -> Out",
    rows=in_loops,
    infer=lambda x: Meta((1,), "int64"),
    values=lambda x: Value(np.array([0 if x is None else len(x)], np.int64)),
)


def _joined(x, axis: int, use_stack: bool) -> tuple[Value, Value]:
    if not x:
        raise FeedError(
            "tensor_array_to_tensor: the array is empty: the loop that fills it made no step; "
            "give it one, such as a sequence that is not empty"
        )
    arrays = [v.array for v in x]
    out = np.stack(arrays, axis) if use_stack else np.concatenate(arrays, axis)
    sizes = [a.shape[axis] for a in arrays]  # when stacked, too, as in Fluid
    return Value(out), Value(np.array(sizes, np.int32))


def _joined_infer(x: Meta, axis: int, use_stack: bool) -> tuple[Meta, Meta]:
    shape = list(x.shape)
    if use_stack:
        shape.insert(axis, -1)
    elif shape:
        shape[axis] = -1
    return Meta(tuple(shape), x.dtype), Meta((-1,), "int32")


def _joined_grad(x, dout: Value, axis: int, use_stack: bool) -> TensorArray:
    if use_stack:
        return TensorArray(Value(a) for a in np.moveaxis(dout.array, axis, 0))
    ends = np.cumsum([v.array.shape[axis] for v in x])[:-1]
    return TensorArray(Value(np.ascontiguousarray(a)) for a in np.split(dout.array, ends, axis))


_JOINED = {"axis": 0, "use_stack": False}
define_with_grad(
    "tensor_array_to_tensor",
    "X -> Out, OutIndex",
    "X, Out@GRAD -> X@GRAD",
    rows=in_loops,
    attrs=_JOINED,
    infer=_joined_infer,
    values=_joined,
    grad_infer=_array_of,
    grad_values=_joined_grad,
)


# -- sequences step by step ------------------------------------------------------------------------
def _table(x: Value, level: int) -> RankTable:
    if x.lod is None:
        raise FeedError("lod_rank_table: X is not grouped into sequences; declare lod_level=1")
    if level >= x.lod.level:
        raise FeedError(f"lod_rank_table: level {level}: X has levels 0..{x.lod.level - 1}")
    return RankTable.of(x.lod, level)


def _step(x: Value, rows, lod: Lod | None) -> Value:
    return Value(np.take(x.array, rows, axis=0), lod)


def _longest_of(table: RankTable) -> int:
    return max(int(table.lengths.max(initial=0)), 1)  # a step of no rows, if there are none


def _steps(x: Value, table: RankTable) -> TensorArray:
    return TensorArray(_step(x, *table.rows(t)) for t in range(_longest_of(table)))


def _together(x, table: RankTable, like: Meta | None = None) -> Value:
    """``like``: what a row is if no step was computed, for all sequences are empty.

    A step's value has a row for each item, or sequences for items that are sequences.
    """
    if not x and like is not None:
        return Value(np.zeros((0, *like.shape[1:]), like.dtype), table.of_items)
    nested = x[0] is not None and x[0].lod is not None
    lod = table.lod if nested else table.of_items
    out = np.zeros((lod.rows, *x[0].array.shape[1:]), x[0].array.dtype)
    for step, value in enumerate(x):
        if value is None:
            continue
        rows, inner = table.rows(step) if nested else (table.items(step), None)
        if inner is not None and not inner.same(value.lod):
            raise FeedError(
                f"array_to_lod_tensor: step {step} has sequences of other lengths than the "
                "step_input: pool them, one row for each"
            )
        out[rows] = value.array
    return Value(out, lod)


def _rows_together(x: Value, table: RankTable, steps) -> Value:
    """Put gradients of steps in the places of the steps' rows."""
    out = np.zeros_like(x.array)
    for step, value in enumerate(steps):
        if value is not None:
            out[table.rows(step)[0]] = value.array
    return Value(out, x.lod)


def _items_apart(x, table: RankTable, dout: Value) -> TensorArray:
    """Return the rows of a gradient that belong to each step's value."""
    if x and x[0] is not None and x[0].lod is not None:
        return _steps(dout, table)
    return TensorArray(_step(dout, table.items(t), None) for t in range(_longest_of(table)))


def _shrunk(x: Value, i: Value, table: RankTable) -> Value:
    count = table.longer(int(i.number))
    if x.lod is None:
        return Value(x.array[:count])
    lod, begin, end = x.lod.cut(0, count)
    return Value(x.array[begin:end], lod)


def _shrunk_grad(x: Value, i: Value, table: RankTable, dout: Value) -> Value:
    out = np.zeros_like(x.array)
    out[: len(dout.array)] = dout.array
    return Value(out, x.lod)


def _reordered_rows(x: Value, table: RankTable) -> tuple[Array, Lod | None]:
    """Return the rows of X in the order of a table, and the sequences they form then."""
    if x.lod is None:
        if len(x.array) != len(table.order):
            raise FeedError(
                f"reorder_lod_tensor_by_rank: X has {len(x.array)} rows, the table "
                f"{len(table.order)} sequences"
            )
        return table.order, None
    return rows_of(table.order, x.lod.offsets)


def _reordered(x: Value, table: RankTable) -> Value:
    rows, lod = _reordered_rows(x, table)
    return Value(np.take(x.array, rows, axis=0), lod)


def _reordered_grad(x: Value, table: RankTable, dout: Value) -> Value:
    out = np.empty_like(x.array)
    out[_reordered_rows(x, table)[0]] = dout.array
    return Value(out, x.lod)


def _below(lod: Lod | None, level: int) -> Lod | None:
    """Return the levels of an item's own rows; None if it is a row."""
    return None if lod is None or lod.level <= level + 1 else Lod(lod.level - level - 1)


def _around(lod: Lod | None) -> Lod:
    return Lod(1 if lod is None else lod.level + 1)


define(
    "lod_rank_table",
    "X -> Out",
    rows=_by_steps,
    attrs={"level": 0},
    infer=lambda x, level: Meta((), x.dtype, RANK_TABLE, lod=_below(x.lod, level)),
    values=_table,
)
define(
    "max_sequence_len",
    "RankTable -> Out",
    rows=_longest,
    infer=lambda table: Meta((1,), "int64"),
    values=lambda table: Value(np.array([table.lengths.max(initial=0)], np.int64)),
)
define_with_grad(
    "lod_tensor_to_array",
    "X, RankTable -> Out",
    "X, RankTable, Out@GRAD -> X@GRAD",
    rows=_by_steps,
    infer=lambda x, table: Meta((-1, *x.shape[1:]), x.dtype, ARRAY, lod=table.lod),
    values=_steps,
    grad_infer=element,
    grad_values=_rows_together,
)
define_with_grad(
    "array_to_lod_tensor",
    "X, RankTable -> Out",
    "X, RankTable, Out@GRAD -> X@GRAD",
    rows=_by_steps,
    # Steps of rows are no sequences, whatever is declared of the array that holds them.
    infer=lambda x, table: Meta((-1, *x.shape[1:]), x.dtype, lod=_around(table.lod and x.lod)),
    values=_together,
    grad_infer=_array_of,
    grad_values=_items_apart,
)
define_with_grad(
    "shrink_rnn_memory",
    "X, I, RankTable -> Out",
    "X, I, RankTable, Out@GRAD -> X@GRAD",
    rows=_by_steps,
    infer=lambda x, i, table: Meta((-1, *x.shape[1:]), x.dtype, lod=x.lod),
    values=_shrunk,
    grad_infer=element,
    grad_values=_shrunk_grad,
)
define_with_grad(
    "reorder_lod_tensor_by_rank",
    "X, RankTable -> Out",
    "X, RankTable, Out@GRAD -> X@GRAD",
    rows=_by_rank,
    infer=lambda x, table: element(x),
    values=_reordered,
    grad_infer=element,
    grad_values=_reordered_grad,
)


define(
    "is_empty",
    "X -> Out",
    rows=in_loops,
    infer=lambda x: Meta((1,), "bool"),
    values=lambda x: Value(np.array([x.array.size == 0])),
)

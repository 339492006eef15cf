"""Operators on SelectedRows only.

The number of rows of a result is that of the operand, which a Program is compiled for, so merging
keeps it: the rows that became free are zeros, which change no sum, no norm and no update. Where
trainers have gathered an operand's rows the number is found in the step (`SelectedRows.fit`).
"""

from __future__ import annotations

from functools import partial

from hpcdist.base.errors import GraphTypeError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.types import ArrayModule, Call

SPARSE = "SELECTED_ROWS"


def merge_into(x: SelectedRows, out: SelectedRows) -> int:
    """Write every row of x once, repeats added up, then zeros; return the number of rows."""
    merged = x.merged()
    out.fit(x)
    n = len(merged.rows)
    out.rows[:n], out.rows[n:] = merged.rows, merged.rows[:1]
    out.value[:n], out.value[n:] = merged.value, 0
    return n


def _merge_infer(x: Meta) -> Meta:
    _expect_sparse("merge_selected_rows", x)
    return x


def _expect_sparse(type: str, x: Meta) -> None:
    if x.type != SPARSE:
        raise GraphTypeError(f"{type}: expected SelectedRows, got a dense value of {x.shape}")


define(
    "merge_selected_rows",
    "X -> Out",
    rows=not_on_rows,
    infer=_merge_infer,
    bind=lambda xp, x, out: partial(merge_into, x, out),
)


def _rows_of_infer(x: Meta) -> Meta:
    _expect_sparse("get_tensor_from_selected_rows", x)
    return Meta((x.rows, *x.shape[1:]), x.dtype)


def _rows_of_bind(xp: ArrayModule, x: SelectedRows, out) -> Call:
    return partial(xp.copyto, out, x.value)


define(
    "get_tensor_from_selected_rows",
    "X -> Out",
    rows=not_on_rows,
    infer=_rows_of_infer,
    bind=_rows_of_bind,
)

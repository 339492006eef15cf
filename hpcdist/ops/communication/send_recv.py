"""Operators between trainers and servers: the runtime runs those that communicate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.common import in_sequence
from hpcdist.ops.embedding.lookup import ids_shape
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.types import Array, ArrayModule, Call, Operands

define(
    "send",
    "X* -> Out?",
    rows=not_on_rows,
    attrs={
        "epmap": (),
        "sections": (),
        "send_varnames": (),
        "merge_add": False,
        "use_send_handler": True,
        "trainer_id": 0,
    },
)
define(
    "send_barrier",
    "X* -> Out?",
    rows=not_on_rows,
    attrs={"endpoints": (), "half_async": False, "trainer_id": 0},
)
define(
    "recv",
    "X* -> Out*",
    rows=not_on_rows,
    attrs={"epmap": (), "recv_varnames": (), "trainer_id": 0},
)
define("fetch_barrier", "X* -> Out*", rows=not_on_rows, attrs={"endpoints": (), "trainer_id": 0})
define(
    "listen_and_serv",
    "X* ->",
    rows=not_on_rows,
    attrs={"endpoint": "", "Fanin": 1, "optimize_blocks": (), "grad_to_block_id": ()},
)


def _remote_lookup_infer(
    ids: Sequence[Meta], w: Meta, lookup_table_version: str, **_
) -> tuple[list[Meta]]:
    """``lookup_table`` takes ids [..., 1], ``lookup_table_v2`` ids of any shape."""
    lead = [m.shape[:-1] if lookup_table_version == "lookup_table" else m.shape for m in ids]
    rows = [Meta((*shape, w.shape[1]), w.dtype) for shape in lead]
    return (_as_ids(rows, ids),)


def _as_ids(rows: Sequence[Meta], ids: Sequence[Meta]) -> list[Meta]:
    """Group each look-up's rows as its own ids, whatever other look-ups have as many."""
    return [replace(row_meta, lod=id_meta.lod) for row_meta, id_meta in zip(rows, ids)]


define(
    "distributed_lookup_table",
    "Ids*, W -> Outputs*",
    rows=not_on_rows,
    lods=("Ids",),
    infer=_remote_lookup_infer,
    attrs={
        "table_names": (),
        "height_sections": (),
        "endpoints": (),
        "padding_idx": -1,
        "trainer_id": 0,
        "lookup_table_version": "lookup_table",
    },
)


# -- cutting what is sent --------------------------------------------------------------------------
def _split_byref_infer(x: Meta, sections: Sequence[int]) -> tuple[list[Meta]]:
    if x.shape[0] != -1 and sum(sections) != x.shape[0]:
        raise GraphError(f"split_byref: sections {list(sections)} do not add up to {x.shape[0]}")
    return ([Meta((rows, *x.shape[1:]), x.dtype) for rows in sections],)


def _split_byref_bind(xp: ArrayModule, x, outs: Operands, sections: Sequence[int]) -> Call:
    """Copy rows; an output that is a view of X's rows already costs nothing."""
    steps, start = [], 0
    for out, rows in zip(outs, sections):
        part = x[start : start + rows]
        start += rows
        if not xp.may_share_memory(part, out):
            steps.append(partial(xp.copyto, out, part))
    return in_sequence(*steps)


define(
    "split_byref",
    "X -> Out*",
    rows=not_on_rows,
    attrs={"sections": ()},
    infer=_split_byref_infer,
    bind=_split_byref_bind,
)


def _split_selected_rows_infer(x: Meta, height_sections: Sequence[int]) -> tuple[list[Meta]]:
    # At most all rows fall into one section; how many do is known at each step.
    return ([Meta((h, *x.shape[1:]), x.dtype, "SELECTED_ROWS", x.rows) for h in height_sections],)


def _split_selected_rows_bind(
    xp: ArrayModule, x: SelectedRows, outs: Sequence[SelectedRows], height_sections: Sequence[int]
) -> Call:
    """Give every section its rows, numbered from its start, in the head of its buffers."""
    buffers = [(out.rows, out.value) for out in outs]

    def run() -> None:
        start = 0
        for out, (rows, value), height in zip(outs, buffers, height_sections):
            inside = xp.flatnonzero((x.rows >= start) & (x.rows < start + height))
            out.rows, out.value = rows[: len(inside)], value[: len(inside)]
            xp.subtract(x.rows[inside], start, out=out.rows)
            xp.take(x.value, inside, axis=0, out=out.value)
            out.beside_rows = x.moves
            start += height

    return run


define(
    "split_selected_rows",
    "X -> Out*",
    rows=not_on_rows,
    attrs={"height_sections": ()},
    infer=_split_selected_rows_infer,
    bind=_split_selected_rows_bind,
)


# -- what a server keeps for each trainer ----------------------------------------------------------
def _ref_by_trainer_id(xp: ArrayModule, xs: Operands, trainer_id, out) -> None:
    """Copy what belongs to one trainer; ``trainer_id`` is int64 [1]."""
    xp.copyto(out, xs[int(trainer_id[0])])


define(
    "ref_by_trainer_id",
    "X*, TrainerId -> Out",
    rows=not_on_rows,
    infer=lambda xs, trainer_id: xs[0],
    kernel=_ref_by_trainer_id,
)


# -- tables that live on servers -------------------------------------------------------------------
def _leave_open(xp: ArrayModule, out, shape: Sequence[int], dtype: str) -> None:
    """Write nothing: the values are never read here."""


define(
    "fake_init",
    "-> Out",
    rows=not_on_rows,
    attrs={"shape": (), "dtype": "float32"},
    infer=lambda shape, dtype: Meta(tuple(shape), dtype),
    kernel=_leave_open,
)


# -- distributed tables: row r lives on server r % servers -----------------------------------------
# Numbers of rows vary from step to step, so the runtime runs these, with its buffers.
define("split_ids", "Ids* -> Out*", rows=not_on_rows)
define("prefetch", "X* -> Out*", rows=not_on_rows, attrs={"epmap": (), "trainer_id": 0})


def _merge_ids_infer(
    ids: Sequence[Meta], rows: Sequence[Meta], xs: Sequence[Meta]
) -> tuple[list[Meta]]:
    return (_as_ids([Meta((*i.shape[:-1], xs[0].shape[-1]), xs[0].dtype) for i in ids], ids),)


define(
    "merge_ids", "Ids*, Rows*, X* -> Out*", rows=not_on_rows, lods=("Ids",), infer=_merge_ids_infer
)
define("lookup_sparse_table", "W, Ids -> Out", rows=not_on_rows, attrs={"padding_idx": -1})
define("save", "X ->", rows=not_on_rows, attrs={"file_path": ""})


# -- distributed tables, as ranks run them (`hpcdist.transpiler.table_steps`) ----------------------
def _pull_infer(
    ids: Sequence[Meta], lookups: Sequence[Array], widths: Sequence[int], create: bool
) -> tuple[list[Meta]]:
    leads = [ids_shape(m, p.kind == "lookup_table") for m, p in zip(ids, lookups)]
    return (_as_ids([Meta((*lead, width), "float32") for lead, width in zip(leads, widths)], ids),)


define(
    "pull_sparse",
    "Ids* -> Out*",
    rows=not_on_rows,
    lods=("Ids",),
    infer=_pull_infer,
    attrs={"lookups": (), "widths": (), "create": True},
)
define(
    "push_sparse",
    "Ids*, Grads*, LearningRate* ->",
    rows=not_on_rows,
    attrs={"lookups": ()},
)
define("make_table", "->", rows=not_on_rows, attrs={"table": ""})

"""Distributed tables in the programs of trainers and servers, in the operators of Fluid.

No rank has all rows of a table: servers keep those that were looked up, by id. These operators are
for the printed program; `table_steps` makes those that a rank runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import program_of
from hpcdist.ps.planned_tables import PlannedTable
from hpcdist.transpiler.look_ups import at_once
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.rpc import send_op
from hpcdist.transpiler.table_metadata import (
    TableSteps,
    gradient_of,
    is_distributed_lookup,
    look_up_of,
)

CHECKPOINT_PATH = "kLookupTablePath"


@dataclass(frozen=True)
class ServerTable:
    """A server's part of a distributed table, and the blocks that work on it.

    ``update`` applies ``gradient``: of ``received``, one from each trainer, or what any trainer
    sent. ``lookup`` reads the rows of ``ids`` into ``rows``; ``save`` writes the table. ``height``
    is its share of the table's size, -1 if that is not bounded.
    """

    table: PlannedTable
    height: int
    gradient: str
    received: tuple[str, ...]
    ids: str
    rows: str
    update: int
    lookup: int
    save: int


# -- the trainer -----------------------------------------------------------------------------------
def fetch_rows(block: Block, plan: ProgramPlan) -> TableSteps:
    """Replace all look-ups by operators that ask every server once, for rows of all tables.

    Return what they look up.
    """
    look_ups = [op for op in block.ops if is_distributed_lookup(op)]
    lookups = {
        table.parameter: [op for op in look_ups if op.input("W")[0] == table.parameter]
        for table in plan.tables
    }
    everything = [op for ops in lookups.values() for op in ops]
    if not everything:
        return TableSteps()
    first = block.ops.index(min(everything, key=block.ops.index))
    placed = at_once(block.ops, everything, first)
    if placed is None:
        raise PlanError(
            f"tables {', '.join(n for n, ops in lookups.items() if ops)}: their look-ups cannot be "
            "made at once, because ids of one are computed from rows of another; use "
            "is_distributed=False for the tables that such rows come from"
        )
    block.ops, position = placed
    splits, merges, id_names, answered = [], [], [], []
    for number, ops in enumerate(lookups.values()):
        if ops:
            split, merge = _ask_for(block, plan, number, ops)
            splits.append(split)
            merges.append(merge)
            id_names += split.output("Out")
            answered += merge.input("X")
    where = {"epmap": list(plan.endpoints) * len(splits), "trainer_id": 0}  # always 0, as in Fluid
    forward = {ROLE_ATTR: int(OpRole.FORWARD)}
    fetch = Operator(block, "prefetch", {"X": id_names}, {"Out": answered}, {**where, **forward})
    for op in reversed([*splits, fetch, *merges]):
        block.add_op(op, position)
    pulled = tuple(look_up_of(op) for op in everything)
    return TableSteps(pulled, absent=frozenset([*id_names, *answered]))


def _ask_for(
    block: Block, plan: ProgramPlan, number: int, lookups: Sequence[Operator]
) -> tuple[Operator, Operator]:
    """Return the operators that cut a table's ids by server, and place its rows."""
    ids = [op.input("Ids")[0] for op in lookups]
    rows = [op.output("Out")[0] for op in lookups]
    servers = range(len(plan.endpoints))
    id_names, answered = (
        [name(plan, number, k) for k in servers] for name in (_ids_name, _answered)
    )
    id_var, row_var = block.var(ids[0]), block.var(rows[0])
    for question, answer in zip(id_names, answered):
        block.create_var(question, shape=id_var.shape, dtype=id_var.dtype)
        block.create_var(answer, shape=row_var.shape, dtype=row_var.dtype)
    forward = {ROLE_ATTR: int(OpRole.FORWARD)}
    merged = {"Ids": ids, "Rows": id_names, "X": answered}
    return (
        Operator(block, "split_ids", {"Ids": ids}, {"Out": id_names}, forward),
        Operator(block, "merge_ids", merged, {"Out": rows}, forward),
    )


def push_rows(
    block: Block, plan: ProgramPlan, table: PlannedTable
) -> tuple[Operator, Operator, TableSteps]:
    """Return the operators that cut a table's gradient by server and send it; not added.

    Third, what is pushed.
    """
    pushed, absent = gradient_of(block, table)
    suffix = f".trainer_{plan.trainer_id}" if plan.mode.averaged else ""
    names = [f"{table.gradient}{suffix}.pserver_{k}" for k in range(len(plan.endpoints))]
    for name in names:
        facts = {"shape": table.shape, "dtype": table.dtype, "type": VarType.SELECTED_ROWS}
        block.create_var(name, **facts)
    split = Operator(
        block,
        "split_ids",
        {"Ids": table.gradient},
        {"Out": names},
        {ROLE_ATTR: int(OpRole.DIST)},
    )
    role_var = [table.parameter, table.gradient]
    send = send_op(block, names, plan.endpoints, role_var, trainer_id=plan.trainer_id)
    return split, send, TableSteps(pushed=pushed, absent=absent | {*names})


# -- the server ------------------------------------------------------------------------------------
def add_table(
    home: Block, parent: int, plan: ProgramPlan, number: int, update_op: Operator, server: int
) -> ServerTable:
    """Declare a server's part of a table and add its three blocks; ``update_op`` moves the whole.

    As in Fluid, no operator says that the trainers' gradients are averaged; they are, like all.
    """
    program, table = program_of(home), plan.tables[number]
    height = rows_on_each(plan, table)
    sparse = {"dtype": table.dtype, "type": VarType.SELECTED_ROWS}
    for name in table.names:
        home.create_var(name, shape=(height, *table.shape[1:]), persistable=True, **sparse)
    part = f"{table.gradient}.pserver_{server}"
    received: tuple[str, ...] = (part,)
    gradient = part
    if plan.mode.averaged:
        gradient = table.gradient
        received = tuple(f"{gradient}.trainer_{k}.pserver_{server}" for k in range(plan.trainers))
    for name in (gradient, *received):
        home.create_var(name, shape=table.shape, persistable=name == gradient, **sparse)
    forward = {ROLE_ATTR: int(OpRole.FORWARD)}
    update = program.create_block(parent)
    if plan.mode.averaged:
        update.add_op(Operator(update, "sum", {"X": received}, {"Out": gradient}, forward))
    moved = update_op.copied_to(update)
    moved.rename({table.gradient: gradient})
    moved.attrs = {**dict(table.attrs), **forward}
    update.add_op(moved)
    _declare_scalars(home, update_op)
    lookup = program.create_block(update.idx)
    ids, rows = _ids_name(plan, number, server), _answered(plan, number, server)
    home.create_var(ids, shape=(-1, 1), dtype="int64")
    home.create_var(rows, shape=(-1, *table.shape[1:]), dtype=table.dtype)
    slots = {"Ids": ids, "W": table.parameter}
    attrs = {"padding_idx": -1, **forward}
    lookup.add_op(Operator(lookup, "lookup_sparse_table", slots, {"Out": rows}, attrs))
    save = program.create_block(update.idx)
    home.create_var(CHECKPOINT_PATH, type=VarType.RAW, persistable=True)
    where = {"file_path": "none", **forward}
    save.add_op(Operator(save, "save", {"X": table.parameter}, {}, where))
    blocks = (update.idx, lookup.idx, save.idx)
    return ServerTable(table, height, gradient, received, ids, rows, *blocks)


def _declare_scalars(home: Block, update_op: Operator) -> None:
    """Declare what an update reads beside the table: the learning rate, Adam's powers."""
    origin = update_op.block.program.global_block()
    for slot in update_op.input_names:
        for name in update_op.input(slot):
            if slot != "Grad" and not home.has_var(name):
                home.add_var(origin.var(name).copied_to(home))


def rows_on_each(plan: ProgramPlan, table: PlannedTable) -> int:
    """Return each server's share of a table's size; -1 if that is not bounded."""
    return -1 if table.dict_size is None else math.ceil(table.dict_size / len(plan.endpoints))


def _ids_name(plan: ProgramPlan, number: int, server: int) -> str:
    return f"prefetch_compress_in_tmp_{number * len(plan.endpoints) + server}"


def _answered(plan: ProgramPlan, number: int, server: int) -> str:
    return f"prefetch_compress_out_tmp_{number * len(plan.endpoints) + server}"

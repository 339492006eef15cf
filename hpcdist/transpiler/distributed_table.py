"""Distributed tables, `embedding(is_distributed=True)`: row r lives on server r % servers.

No rank has the whole table. Servers keep the rows that were asked for, by their numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcdist.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.operator import Operator
from hpcdist.graph.roles import ROLE_ATTR, Role
from hpcdist.transpiler.plan import Plan, Table, is_distributed_lookup
from hpcdist.transpiler.rpc import send_op

CHECKPOINT_PATH = "kLookupTablePath"


@dataclass(frozen=True)
class ServerTable:
    """A server's part of the distributed table, and the blocks that work on it.

    ``update`` applies ``gradient``: the sum of ``received``, one from each trainer, or what any
    trainer sent. ``lookup`` reads the rows numbered in ``ids`` into ``rows``; ``save`` writes the
    table. ``height`` rows fit.
    """

    parameter: str
    height: int
    gradient: str
    received: tuple[str, ...]
    ids: str
    rows: str
    update: int
    lookup: int
    save: int


# -- the trainer -----------------------------------------------------------------------------------
def fetch_rows(block: Block, plan: Plan) -> None:
    """Replace the look-ups by one that asks every server for its rows."""
    table = plan.table
    if table is None:
        return
    lookups = [
        op for op in block.ops if is_distributed_lookup(op) and op.input("W")[0] == table.parameter
    ]
    if not lookups:
        return
    first = block.ops.index(lookups[0])
    kept = [op for op in block.ops if op not in lookups]
    ids = [op.input("Ids")[0] for op in lookups]
    rows = [op.output("Out")[0] for op in lookups]
    written = (i for i, op in enumerate(kept) if set(ids) & set(op.output_arg_names))
    position = max(first, 1 + max(written, default=-1))
    if any(set(rows) & set(op.input_arg_names) for op in kept[:position]):
        raise PlanError(
            f"table {table.parameter!r}: its look-ups cannot be made at once, because ids of one "
            "are computed from rows of another; use is_distributed=False for this table"
        )
    block.ops = kept
    servers = range(len(plan.endpoints))
    asked, answered = ([name(k) for k in servers] for name in (_asked, _answered))
    id_var, row_var = block.var(ids[0]), block.var(rows[0])
    for question, answer in zip(asked, answered):
        block.create_var(question, shape=id_var.shape, dtype=id_var.dtype)
        block.create_var(answer, shape=row_var.shape, dtype=row_var.dtype)
    where = {"epmap": list(plan.endpoints), "trainer_id": 0}  # always 0, as in Fluid
    forward = {ROLE_ATTR: int(Role.FORWARD)}
    merged = {"Ids": ids, "Rows": asked, "X": answered}
    for op in (
        Operator(block, "merge_ids", merged, {"Out": rows}, forward),
        Operator(block, "prefetch", {"X": asked}, {"Out": answered}, {**where, **forward}),
        Operator(block, "split_ids", {"Ids": ids}, {"Out": asked}, forward),
    ):
        block.add_op(op, position)


def push_rows(block: Block, plan: Plan, table: Table) -> tuple[Operator, Operator]:
    """Return what cuts the table's gradient by server and what sends it, not added."""
    whose = f".trainer_{plan.trainer_id}" if plan.mode.lockstep else ""
    names = [f"{table.gradient}{whose}.pserver_{k}" for k in range(len(plan.endpoints))]
    for name in names:
        facts = {"shape": table.shape, "dtype": table.dtype, "type": VarType.SELECTED_ROWS}
        block.create_var(name, **facts)
    split = Operator(
        block,
        "split_ids",
        {"Ids": table.gradient},
        {"Out": names},
        {ROLE_ATTR: int(Role.DIST)},
    )
    role_var = [table.parameter, table.gradient]
    return split, send_op(block, names, plan.endpoints, role_var, trainer_id=plan.trainer_id)


# -- the server ------------------------------------------------------------------------------------
def add_table(home: Block, parent: int, plan: Plan, table: Table, server: int) -> ServerTable:
    """Declare a server's part of the table and add its three blocks.

    Rows of several trainers are added up, not averaged, as in Fluid.
    """
    program = home.program
    height = rows_on_each(plan, table)
    sparse = {"dtype": table.dtype, "type": VarType.SELECTED_ROWS}
    home.create_var(table.parameter, shape=(height, *table.shape[1:]), persistable=True, **sparse)
    part = f"{table.gradient}.pserver_{server}"
    received: tuple[str, ...] = (part,)
    gradient = part
    if plan.mode.lockstep:
        gradient = table.gradient
        received = tuple(f"{gradient}.trainer_{k}.pserver_{server}" for k in range(plan.trainers))
    for name in (gradient, *received):
        home.create_var(name, shape=table.shape, persistable=name == gradient, **sparse)
    forward = {ROLE_ATTR: int(Role.FORWARD)}
    update = program.create_block(parent)
    if plan.mode.lockstep:
        update.add_op(Operator(update, "sum", {"X": received}, {"Out": gradient}, forward))
    inputs = {"Param": table.parameter, "Grad": gradient, "LearningRate": table.learning_rate}
    update.add_op(Operator(update, "sgd", inputs, {"ParamOut": table.parameter}, forward))
    lookup = program.create_block(update.idx)
    ids, rows = _asked(server), _answered(server)
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
    return ServerTable(table.parameter, height, gradient, received, ids, rows, *blocks)


def rows_on_each(plan: Plan, table: Table) -> int:
    """Return how many rows fit on each server."""
    return math.ceil(table.shape[0] / len(plan.endpoints))


def _asked(server: int) -> str:
    return f"prefetch_compress_in_tmp_{server}"


def _answered(server: int) -> str:
    return f"prefetch_compress_out_tmp_{server}"

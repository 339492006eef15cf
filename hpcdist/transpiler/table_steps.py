"""What a rank runs in place of the operators of distributed tables: one pull and one push a step.

A trainer's Program says ``split_ids``, ``prefetch`` and ``merge_ids``, as Fluid's does, and sends a
sparse gradient; a Program that trains alone says ``lookup_table`` and an update. Both become
``pull_sparse``, which fills the rows of all look-ups at once, and ``push_sparse``, which takes the
rows' gradients from where the backward pass left them. No array of a table is left, and neither is
what would fill one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hpcdist.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.roles import ROLE_ATTR, ROLE_VAR_ATTR, Role
from hpcdist.transpiler.plan import Plan, trainer_plan
from hpcdist.transpiler.table_metadata import LOOKUPS, Table, is_distributed_lookup, padding_of


def trainer_steps(program: Program, plan: Plan) -> Program:
    """Return what a trainer runs in place of its Program, or of one that only looks rows up.

    That is the Program itself if it has nothing to do with tables.
    """
    tables = plan.tables
    names = {name for table in tables for name in table.names}
    if not (names and _concerned(program, names)):
        return program
    new = program.clone()
    new.distribution = trainer_plan(program) or plan
    block = new.global_block()
    _drop_fills(block, names)
    sends = [op for op in block.ops if op.type == "send" and _of_table(op, names)]
    for fetch in [op for op in block.ops if op.type == "prefetch"]:
        _fuse_fetch(block, fetch, create=bool(sends))
    if sends:
        _fuse_sends(block, tables, sends)
    return new


def lone_steps(program: Program, tables: Sequence[Table]) -> Program:
    """Return what a process that trains alone runs: a startup makes its tables, others use them.

    A server's startup makes its tables, too.
    """
    names = {name for table in tables for name in table.names}
    new = program.clone()
    block = new.global_block()
    filled = _drop_fills(block, names)
    for table in tables:
        if table.parameter in filled:
            attrs = {"table": table, ROLE_ATTR: int(Role.FORWARD)}
            block.add_op(Operator(block, "make_table", {}, {}, attrs))
    updates = [op for op in block.ops if op.input("Param") and op.input("Param")[0] in names]
    lookups = [op for op in block.ops if is_distributed_lookup(op)]
    if lookups:
        _fuse_lookups(block, lookups, create=bool(updates))
    if updates:
        _fuse_updates(block, tables, updates)
    return new


def gradient_sources(block: Block, table: Table) -> list[Operator]:
    """Return the look-ups' gradient operators, in the order of the look-ups.

    PlanError if anything else happens to the gradient of a table.
    """
    return [op for op in _chain(block, table) if op.type != "sum"]


# -- what goes -------------------------------------------------------------------------------------
def _concerned(program: Program, names: set[str]) -> bool:
    return any(
        op.type == "prefetch" or not names.isdisjoint(op.output_arg_names) or _of_table(op, names)
        for op in program.global_block().ops
    )


def _of_table(op: Operator, names: Collection[str]) -> bool:
    return (op.attrs.get(ROLE_VAR_ATTR) or [""])[0] in names


def _drop_fills(block: Block, names: Collection[str]) -> set[str]:
    """Drop what would fill tables and their accumulators; return the names of these."""
    fills = [op for op in block.ops if not op.input_arg_names and _writes(op, names)]
    block.ops = [op for op in block.ops if op not in fills]
    return {name for op in fills for name in op.output_arg_names}


def _writes(op: Operator, names: Collection[str]) -> bool:
    return any(name in names for name in op.output_arg_names)


def _chain(block: Block, table: Table) -> list[Operator]:
    """Return the operators that form a table's gradient: of look-ups, and sums; the last first.

    The backward pass has them in the reverse order of the look-ups.
    """
    found: list[Operator] = []
    wanted = [table.gradient]
    for op in reversed(block.ops):
        if not any(name in wanted for name in op.output_arg_names):
            continue
        if op.type == "sum":
            wanted += op.input("X")
        elif op.type.removesuffix("_grad") not in LOOKUPS:
            raise PlanError(
                f"table {table.parameter!r} has is_distributed=True: operator {op} changes its "
                "gradient, which only look-ups may form"
            )
        found.append(op)
    own = {id(op) for op in found}
    for op in block.ops:
        reads = [name for name in op.input_arg_names if name in wanted]
        if reads and id(op) not in own and op.type != "split_ids" and not op.input("Param"):
            raise PlanError(
                f"table {table.parameter!r} has is_distributed=True: operator {op} reads its "
                f"gradient {reads[0]!r}, which is not formed on any rank"
            )
    return found


# -- what comes ------------------------------------------------------------------------------------
def _fuse_fetch(block: Block, fetch: Operator, *, create: bool) -> None:
    """Replace a prefetch with the operators around it."""
    asked = set(fetch.input("X"))
    splits = [op for op in block.ops if op.type == "split_ids" and asked & set(op.output("Out"))]
    merges = [op for op in block.ops if op.type == "merge_ids" and asked & set(op.input("Rows"))]
    found = [
        (op.attrs["table"], op.attrs.get("padding_idx", -1), ids, out, kind)
        for op in merges
        for ids, out, kind in zip(op.input("Ids"), op.output("Out"), op.attrs["lookups"])
    ]
    pull = _pull(block, found, create=create)
    _replace(block, [*splits, fetch, *merges], pull, block.ops.index(fetch))


def _fuse_lookups(block: Block, lookups: Sequence[Operator], *, create: bool) -> None:
    """Replace look-ups by as few pulls as there can be: one, unless ids depend on rows."""
    waiting = list(lookups)
    while waiting:
        first = block.ops.index(waiting[0])
        rows = {op.output("Out")[0] for op in waiting}
        ready = [op for op in waiting if _ready(block, op, first, rows)]
        found = [
            (
                op.input("W")[0],
                -1 if padding_of(op) is None else padding_of(op),
                op.input("Ids")[0],
                op.output("Out")[0],
                op.type,
            )
            for op in sorted(ready, key=lambda op: op.input("W")[0])
        ]
        _replace(block, ready, _pull(block, found, create=create), first)
        waiting = [op for op in waiting if op not in ready]


def _ready(block: Block, op: Operator, first: int, rows: Collection[str]) -> bool:
    """Tell whether the ids of a look-up are there before operator ``first``."""
    ids = op.input("Ids")[0]
    written = [i for i, other in enumerate(block.ops) if ids in other.output_arg_names]
    return all(i < first for i in written) and ids not in rows


def _pull(block: Block, found: Sequence[tuple[Any, ...]], *, create: bool) -> Operator:
    """Return the operator for look-ups given as (table, padding, ids, rows, operator type)."""
    tables = list(dict.fromkeys(name for name, *_ in found))
    shapes = [block.var(name).shape for name in tables]
    attrs = {
        "tables": tables,
        "widths": [shape[1] for shape in shapes],
        "sizes": [shape[0] for shape in shapes],
        "paddings": [next(f[1] for f in found if f[0] == name) for name in tables],
        "of": [tables.index(name) for name, *_ in found],
        "lookups": [kind for *_, kind in found],
        "create": create,
        ROLE_ATTR: int(Role.FORWARD),
    }
    ids, rows = [f[2] for f in found], [f[3] for f in found]
    return Operator(block, "pull_sparse", {"Ids": ids}, {"Out": rows}, attrs)


def _fuse_sends(block: Block, tables: Sequence[Table], sends: Sequence[Operator]) -> None:
    """Replace the gradients of look-ups, sums, cuts and sends of all tables by one push."""
    sent = {op.attrs[ROLE_VAR_ATTR][0]: op for op in sends}
    pushed = [table for table in tables if table.parameter in sent]
    push, gone = _push(block, pushed)
    gone += [op for op in block.ops if op.type == "split_ids" and _cuts(op, pushed)]
    last = max(sends, key=block.ops.index)
    _replace(block, [*gone, *sends], push, block.ops.index(last))


def _fuse_updates(block: Block, tables: Sequence[Table], updates: Sequence[Operator]) -> None:
    """Replace the gradients of look-ups, sums and updates of all tables by one push."""
    moved = {op.input("Param")[0] for op in updates}
    pushed = [table for table in tables if table.parameter in moved]
    push, gone = _push(block, pushed)
    push.inputs["LearningRate"] = [table.learning_rate for table in pushed]
    last = max(updates, key=block.ops.index)
    _replace(block, [*gone, *updates], push, block.ops.index(last))


def _push(block: Block, tables: Sequence[Table]) -> tuple[Operator, list[Operator]]:
    """Return the operator that pushes the gradients of tables, and those that it makes needless."""
    sources = [(table, op) for table in tables for op in gradient_sources(block, table)]
    attrs = {
        "tables": [table.parameter for table in tables],
        "of": [tables.index(table) for table, _ in sources],
        ROLE_ATTR: int(Role.RPC),
    }
    slots = {
        "Ids": [op.input("Ids")[0] for _, op in sources],
        "Grads": [op.input("Out@GRAD")[0] for _, op in sources],
    }
    gone = [op for table in tables for op in _chain(block, table)]
    return Operator(block, "push_sparse", slots, {}, attrs), gone


def _cuts(op: Operator, tables: Sequence[Table]) -> bool:
    return any(table.gradient in op.input("Ids") for table in tables)


def _replace(block: Block, gone: Sequence[Operator], new: Operator, position: int) -> None:
    """Put an operator in the place of another, and take out others."""
    drop = {id(op) for op in gone}
    before, after = block.ops[:position], block.ops[position:]
    block.ops = [*(op for op in before if id(op) not in drop), new]
    block.ops += [op for op in after if id(op) not in drop]
    block.program.touch()

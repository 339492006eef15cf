"""The operators that a rank runs for distributed tables: one pull and one push per step.

A trainer's Program contains ``split_ids``, ``prefetch`` and ``merge_ids``, as Fluid's does, and
sends a sparse gradient; its plan describes what these pull and push (`TableSteps`). A Program of a
single process contains ``lookup_table`` and an update. Both are replaced by ``pull_sparse``, which
fills the rows of all look-ups at once, and ``push_sparse``, which reads the rows' gradients where
the backward pass wrote them. No array of a table remains, nor its initializer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ps.planned_tables import PlannedTable
from hpcdist.transpiler.plan import ProgramPlan, trainer_plan
from hpcdist.transpiler.table_metadata import (
    LookUp,
    gradient_of,
    is_distributed_lookup,
    look_up_of,
    padding_in,
    policy_of,
    refuse_reader,
)


def trainer_steps(program: Program, plan: ProgramPlan) -> Program:
    """Return a trainer's Program in place of its own, or of one that only looks rows up.

    That is the Program itself if it has nothing to do with tables.
    """
    plan = trainer_plan(program) or plan
    names = {name for table in plan.tables for name in table.names}
    absent = plan.table_steps.absent
    touched = names | absent
    ops = program.global_block().ops
    if touched.isdisjoint(
        name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)
    ):
        return program
    new = program.clone()
    new.distribution = plan
    block = new.global_block()
    _drop_fills(block, names)
    dropped = [op for op in block.ops if _printed_only(op, absent)]
    printed = {name for op in dropped for name in op.output_arg_names}  # pruned Programs lack some
    pulled = [look_up for look_up in plan.table_steps.pulled if look_up.rows in printed]
    gradients = {table.parameter: table.gradient for table in plan.tables}
    pushed = [source for source in plan.table_steps.pushed if gradients[source.table] in printed]
    if pulled:
        fetch = next(op for op in dropped if op.type == "prefetch")
        # Programs for tests have the look-ups, but no longer the tables.
        widths = {table.parameter: table.shape[1] for table in plan.tables}
        _insert(block, _pull(block, pulled, widths, create=bool(pushed)), fetch)
    if pushed:
        last = [op for op in dropped if op.type == "send"][-1]
        for new_op in _push(block, pushed):
            _insert(block, new_op, last)
    _drop(block, dropped)
    return new


def lone_steps(program: Program, tables: Sequence[PlannedTable], *, here: bool = True) -> Program:
    """Return a lone process's Program: a startup makes its tables, others use them.

    A server's startup makes its tables, too; that of a trainer that has these servers does not, for
    they are not ``here``.
    """
    names = {name for table in tables for name in table.names}
    new = program.clone()
    block = new.global_block()
    filled = _drop_fills(block, names)
    for table in tables:
        if here and table.parameter in filled:
            attrs = {"table": table, ROLE_ATTR: int(OpRole.FORWARD)}
            block.add_op(Operator(block, "make_table", {}, {}, attrs))
    updates = [op for op in block.ops if op.input("Param") and op.input("Param")[0] in names]
    lookups = [op for op in block.ops if is_distributed_lookup(op)]
    _fuse_lookups(block, lookups, create=bool(updates))
    if updates:
        _fuse_updates(block, tables, updates)
        for name in {name for table in tables for name in table.state}:
            block.remove_var(name)  # rows hold their own
    return new


# -- what goes -------------------------------------------------------------------------------------
def _drop_fills(block: Block, names: Collection[str]) -> set[str]:
    """Drop what would fill tables and their accumulators; return the names of these."""
    fills = [op for op in block.ops if not op.input_arg_names and _writes(op, names)]
    _drop(block, fills)
    return {name for op in fills for name in op.output_arg_names}


def _writes(op: Operator, names: Collection[str]) -> bool:
    return any(name in names for name in op.output_arg_names)


def _printed_only(op: Operator, absent: Collection[str]) -> bool:
    """Return whether an operator forms or moves what is absent; PlanError if it is a user's."""
    reads = [name for name in op.input_arg_names if name in absent]
    if reads and not _writes(op, absent) and op.type not in ("merge_ids", "send"):
        refuse_reader(op, reads[0])
    return bool(reads) or _writes(op, absent)


def _drop(block: Block, dropped: Sequence[Operator]) -> None:
    block.ops = [op for op in block.ops if op not in dropped]
    block.program.touch()


# -- what comes ------------------------------------------------------------------------------------
def _fuse_lookups(block: Block, lookups: Sequence[Operator], *, create: bool) -> None:
    """Replace look-ups by as few pulls as there can be: one, unless ids depend on rows."""
    waiting = list(lookups)
    while waiting:
        first = block.ops.index(waiting[0])
        rows = {op.output("Out")[0] for op in waiting}
        ready = [op for op in waiting if _ready(block, op, first, rows)]
        pulled = sorted(map(look_up_of, ready), key=lambda look_up: look_up.table)
        widths = {look_up.table: block.var(look_up.table).shape[1] for look_up in pulled}
        _insert(block, _pull(block, pulled, widths, create=create), waiting[0])
        _drop(block, ready)
        waiting = [op for op in waiting if op not in ready]


def _ready(block: Block, op: Operator, first: int, rows: Collection[str]) -> bool:
    """Return whether the ids of a look-up are there before operator ``first``."""
    ids = op.input("Ids")[0]
    written = [i for i, other in enumerate(block.ops) if ids in other.output_arg_names]
    return all(i < first for i in written) and ids not in rows


def _fuse_updates(
    block: Block, tables: Sequence[PlannedTable], updates: Sequence[Operator]
) -> None:
    """Replace the gradients of look-ups, sums and updates of all tables by one push."""
    moved = {op.input("Param")[0] for op in updates}
    trained = [table for table in tables if table.parameter in moved]
    pushed: list[LookUp] = []
    absent: set[str] = set()
    for table in trained:
        sources, names = gradient_of(block, table)
        pushed += sources
        absent |= names
    *spread, push = _push(block, pushed)
    push.inputs["LearningRate"] = [table.learning_rate for table in trained]
    push.attrs["tables"] = tuple(trained)
    for new in (*spread, push):
        _insert(block, new, max(updates, key=block.ops.index))
    _drop(block, [*updates, *(op for op in block.ops if _writes(op, absent))])


def _pull(
    block: Block, pulled: Sequence[LookUp], widths: Mapping[str, int], *, create: bool
) -> Operator:
    for table in {look_up.table for look_up in pulled}:
        padding_in(table, pulled)  # refuses different ones
    attrs = {
        "lookups": tuple(pulled),
        "widths": [widths[look_up.table] for look_up in pulled],
        "create": create,
        ROLE_ATTR: int(OpRole.FORWARD),
    }
    ids, rows = [p.ids for p in pulled], [p.rows for p in pulled]
    return Operator(block, "pull_sparse", {"Ids": ids}, {"Out": rows}, attrs)


def _push(block: Block, pushed: Sequence[LookUp]) -> list[Operator]:
    """Return the push, behind operators that give each id of a sequence its shows and clicks."""
    attrs = {"lookups": tuple(pushed), ROLE_ATTR: int(OpRole.RPC)}
    slots = {"Ids": [p.ids for p in pushed], "Grads": [p.rows for p in pushed]}
    spread: dict[str, Operator] = {}
    shows = [
        tuple(_of_each_id(block, name, look_up.ids, spread) for name in shows_of(block, look_up))
        for look_up in pushed
    ]
    attrs["shows"] = tuple(shows)  # by look-up: the names of its shows and clicks
    slots["Shows"] = [name for pair in shows for name in pair]
    return [*spread.values(), Operator(block, "push_sparse", slots, {}, attrs)]


def _of_each_id(block: Block, name: str, ids: str, spread: dict[str, Operator]) -> str:
    """Return the variable that repeats numbers of examples for the ids of their sequences."""
    if not block.var(ids).lod_level:
        return name
    new = f"{name}@OF@{ids}"
    if new not in spread:
        block.create_var(new, shape=[-1, 1], dtype=block.vars[name].dtype, lod_level=1)
        attrs = {ROLE_ATTR: int(OpRole.RPC)}
        slots = {"X": [name], "Y": [ids]}
        spread[new] = Operator(block, "sequence_expand_as", slots, {"Out": [new]}, attrs)
    return new


def shows_of(block: Block, look_up: LookUp) -> tuple[str, ...]:
    """Return the variables of a look-up's shows and clicks; () if it has none.

    PlanError if they are not there.
    """
    policy = policy_of(block.var(look_up.table))
    shows = (policy is not None and policy.shows) or ()
    if shows and (block.var(look_up.ids).lod_level or 0) > 1:
        raise PlanError(
            f"table {look_up.table!r}: shows and clicks are of examples, which have ids or a "
            f"sequence of them each, and {look_up.ids!r} has sequences of sequences: leave shows "
            "out; a step that looks an id up then counts as one show"
        )
    for name in shows:
        var = block.vars.get(name)
        if var is None or var.shape[1:] not in ((), (1,)):
            got = "no such variable" if var is None else f"shape {list(var.shape)}"
            raise PlanError(
                f"table {look_up.table!r}: shows and clicks come from {' and '.join(shows)}: "
                f"expected {name!r} to be a variable [batch, 1] of this program, got {got}"
            )
    return shows


def _insert(block: Block, new: Operator, before: Operator) -> None:
    block.ops.insert(block.ops.index(before), new)

"""Programs that train in turns with the same servers, such as the two of a GAN.

Servers must know all of them before the first trains: they serve one Program that contains the
updates of all. A trainer's Program sends the gradients of its own turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.transpiler.mean_gradient import SCALARS, SUMMED, of_mean_gradient
from hpcdist.transpiler.own_rates import with_rates_scheduled
from hpcdist.transpiler.program_roles import ProgramRoles, program_roles
from hpcdist.transpiler.table_metadata import LOOKUPS
from hpcdist.transpiler.unserved import refuse_other_order, refuse_unserved

# Attribute of updates and schedules: which of the Programs they belong to.
TURN = "turn"


def in_turns(main: Program, startup: Program, servers: int) -> list[Program]:
    """Return the Programs that servers shall know, ``main`` among them: those of one startup.

    It is ``main`` alone if they cannot train in turns: `why_not_in_turns` says why. A copy of a
    Program takes its place.
    """
    moved = _moved(main)
    mains = [p for p in startup.mains if p.trains and p.startup is startup]
    together = [main if _moved(p) == moved else p for p in mains]
    if together.count(main) != 1 or why_not_in_turns(together, servers):
        return [main]
    return together


def why_not_in_turns(mains: Sequence[Program], servers: int) -> str | None:
    """Return why servers cannot serve these Programs together; None if they can, or it is one."""
    if len(mains) < 2:
        return None
    try:
        return _conflict([of_mean_gradient(with_rates_scheduled(main), servers) for main in mains])
    except PlanError as error:
        return str(error)


def _conflict(mains: Sequence[Program]) -> str | None:
    moved: set[str] = set()
    scheduled: set[str] = set()
    updated: set[str] = set()
    for main in mains:
        block = main.global_block()
        roles = program_roles(main)
        refuse_unserved(main, roles)
        refuse_other_order(main, roles)
        if both := sorted(moved & _moved(main)):
            return f"{both[0]!r} is updated by two of them; see parameter_list of minimize"
        moved |= _moved(main)
        for update in roles.updates:
            if block.var(update.gradient).type == VarType.SELECTED_ROWS:
                return f"the gradient of {update.parameter!r} is sparse: use is_sparse=False"
        for op in (op for b in main.blocks for op in b.ops):
            if op.type in LOOKUPS and op.attrs.get("is_distributed"):
                return f"{op.input('W')[0]!r} is a distributed table"
        at_server = _at_server(block, roles)
        for op in at_server:
            if op.attrs.get(SUMMED) or op.attrs.get(SCALARS):
                return f"{op.place} {op} needs sums over servers: clip by value instead"
        names = _written_by(at_server)
        rates = _written_by(_schedule(main))
        # Schedules may share what they count with, as they share it in the scope of one process.
        if both := sorted((names & updated) | (names - rates) & scheduled):
            return f"both compute {both[0]!r} on the servers: give the variables different names"
        updated |= names - rates
        scheduled |= rates
    for name in sorted(scheduled):
        kinds = {(v.shape, v.dtype, v.persistable) for v in _variables(mains, name)}
        if len(kinds) > 1:
            return f"{name!r} means different things in them: rename one"
    return None


def refuse_partial_counts(program: Program, endpoints: Sequence[Sequence[str]]) -> None:
    """Refuse a schedule that counts steps where a server takes part in other turns only.

    It would not count, though it answers for the schedule, say in a checkpoint. ``endpoints`` are
    the servers that each of the `joined` Programs updates something on.
    """
    everywhere = {endpoint for turn in endpoints for endpoint in turn}
    for op in _schedule(program) if endpoints else ():
        counts = set(op.input_arg_names) & set(op.output_arg_names)
        missing = sorted(everywhere - set(endpoints[op.attrs.get(TURN, 0)]))
        if counts and missing:
            raise PlanError(
                "programs train in turns, and the learning rate of one counts steps in "
                f"{min(counts)!r}: it has no parameter on {missing[0]}, so that server would not "
                "count its steps; start fewer servers, or train without servers (no --pservers)"
            )


def joined(mains: Sequence[Program]) -> Program:
    """Return one Program that updates what all of these update, each in its turn.

    It is for servers: nobody runs it as a whole.
    """
    if len(mains) == 1:
        return mains[0]
    new = Program()
    new.random_seed = mains[0].random_seed
    for turn, main in enumerate(mains):
        optimizers = {id(op) for op in _optimizers(main)}
        number = {0: 0}
        for block in main.blocks[1:]:
            number[block.idx] = len(new.blocks)
            new.blocks.append(Block(new, number[block.idx], number[block.parent_idx]))
        for block in main.blocks:
            target = new.blocks[number[block.idx]]
            for name, var in block.vars.items():
                if name not in target.vars:
                    target.vars[name] = var.copied_to(target)
            for op in block.ops:
                copied = op.copied_to(target)
                if "sub_block" in copied.attrs:
                    copied.attrs["sub_block"] = number[copied.attrs["sub_block"]]
                if id(op) in optimizers or op.role & OpRole.LR_SCHED:
                    copied.attrs[TURN] = turn
                target.ops.append(copied)
    new.touch()
    return new


def turns_of(program: Program, roles: ProgramRoles) -> tuple[tuple[str, ...], ...]:
    """Return the parameters that each of the `joined` Programs moves; nothing for any other."""
    ops = program.global_block().ops
    by_turn: dict[int, list[str]] = {}
    for update in roles.updates:
        if TURN in ops[update.optimizer].attrs:
            by_turn.setdefault(ops[update.optimizer].attrs[TURN], []).append(update.parameter)
    return tuple(tuple(by_turn[turn]) for turn in sorted(by_turn))


def _moved(main: Program) -> set[str]:
    return {op.input("Param")[0] for op in _optimizers(main)}


def _optimizers(main: Program) -> list[Operator]:
    ops = main.global_block().ops
    return [op for op in ops if op.role == OpRole.OPTIMIZE and op.input("Param")]


def _schedule(main: Program) -> list[Operator]:
    return [op for op in main.global_block().ops if op.role & OpRole.LR_SCHED]


def _written_by(ops: Sequence[Operator]) -> set[str]:
    return {name for op in ops for name in op.output_arg_names}


def _variables(mains: Sequence[Program], name: str) -> list[Variable]:
    variables = (main.global_block().find_var(name) for main in mains)
    return [var for var in variables if var is not None]


def _at_server(block: Block, roles: ProgramRoles) -> list[Operator]:
    positions = [*roles.schedule, *(i for update in roles.updates for i in update.on_server)]
    return [block.ops[i] for i in positions]

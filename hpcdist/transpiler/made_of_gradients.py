"""What a script makes of the gradients that `backward` gives, before `apply_gradients`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import PlanError
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.transpiler.dependences import access_of
from hpcdist.transpiler.program_roles import nested
from hpcdist.transpiler.table_metadata import tables_looked_up


def as_updates(program: Program) -> Program:
    """Return a Program in which what reads gradients of parameters has the optimizer's role.

    So it waits for their sums, and has what one process has. A Program whose further losses depend
    on such values is returned as it is: they are no part of an update.
    """
    if not _made_of_gradients(program)[0]:
        return program
    new = program.clone()
    made, of_losses = _made_of_gradients(new)
    if of_losses:
        return program
    for op in nested(made):
        op.set_attr(ROLE_ATTR, int(OpRole.OPTIMIZE))
    return new


def refuse_losses_of_gradients(program: Program) -> None:
    """Refuse a Program that goes back through gradients which trainers sum.

    Its own gradients would be of the sums, but count as those of each trainer's rows.
    """
    for op, name in _made_of_gradients(program)[1]:
        raise PlanError(
            f"{op.place} {op} depends on {name!r}, made of a parameter's gradient that trainers "
            "sum: a loss of it would count a second time how many they are; take gradients that a "
            "loss depends on by fluid.gradients, each trainer's own, or leave transpile out, and "
            "train as one process does"
        )


def _made_of_gradients(program: Program) -> tuple[Sequence[Operator], list[tuple[Operator, str]]]:
    """Return the forward operators that read finished gradients, or what is made of them.

    And the backward operators that do, each with what it reads. Rows of tables are not summed.
    """
    tables = tables_looked_up(program)
    of_gradients: set[str] = set()
    finished: set[str] = set()
    made: list[Operator] = []
    of_losses: list[tuple[Operator, str]] = []
    block = program.global_block()
    for op in block.ops:
        access = access_of(op)
        if op.role & OpRole.BACKWARD:
            if read := sorted(of_gradients & access.reads):
                of_losses.append((op, read[0]))
            pairs = list(op.attrs.get(ROLE_VAR_ATTR) or ())
            finished.update(g for p, g in zip(pairs[::2], pairs[1::2]) if p not in tables)
            continue
        if (access.reads | access.writes).isdisjoint(finished | of_gradients):
            continue
        of_gradients.update(n for n in access.writes if not block.is_persistable(n))
        if op.role & ~OpRole.LOSS == OpRole.FORWARD:
            made.append(op)
    return made, of_losses

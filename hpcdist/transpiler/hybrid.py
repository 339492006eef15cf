"""Hybrid jobs: servers keep distributed tables; trainers sum all other gradients. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcdist.base.errors import PlanError
from hpcdist.graph.op_role import AFTER_UPDATES, WITHOUT_SERVERS, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.transpiler.grad_allreduce import allreduce_gradients, collective_startup
from hpcdist.transpiler.group import PLAIN, Group
from hpcdist.transpiler.plan import ProgramPlan, trainer_plan
from hpcdist.transpiler.table_metadata import tables_looked_up


@dataclass(frozen=True)
class HybridGroup(Group):
    """Trainers that sum dense gradients; ``served`` is the plan of the tables that servers keep."""

    served: ProgramPlan = field(kw_only=True)

    def fluid_fields(self) -> dict[str, object]:
        return self.served.fluid_fields()


def hybrid_group(plan: ProgramPlan, rings: int) -> HybridGroup:
    """Return the group of the trainers of a plan; ``rings`` communicators take turns."""
    names = tuple(f"trainer{k}" for k in range(plan.trainers))
    me = plan.trainer_id
    return HybridGroup(
        "grad_allreduce",
        names,
        me,
        names[me],
        rings,
        fusing=PLAIN,
        served=plan,
        fingerprint=plan.fingerprint,
    )


def served_plan(program: Program) -> ProgramPlan | None:
    """Return the plan of what servers keep for a trainer's Program; None if they keep nothing."""
    group = program.distribution
    return group.served if isinstance(group, HybridGroup) else trainer_plan(program)


def tables_alone(program: Program) -> Program:
    """Return a Program of which servers are to keep the tables: one that updates nothing else.

    PlanError if it has no distributed tables.
    """
    tables = tables_looked_up(program)
    if not tables:
        raise PlanError(
            "with dense = 'collective' (--dense collective) servers keep distributed tables, and "
            "this program has none: give an embedding is_sparse=True and is_distributed=True, or "
            "train without servers (no --pservers)"
        )
    new = program.clone()
    block = new.global_block()
    block.ops = [op for op in block.ops if not _of_trainers(op, tables)]
    new.touch()
    return new


def _of_trainers(op: Operator, tables: set[str]) -> bool:
    """Return whether an operator moves what trainers keep, or follows it."""
    if AFTER_UPDATES in op.attrs or WITHOUT_SERVERS in op.attrs:
        return True
    return op.role == OpRole.OPTIMIZE and tables.isdisjoint(op.input("Param"))


def hybrid_trainer(main: Program, group: HybridGroup) -> Program:
    """Return a trainer's Program in place of ``main``."""
    new = allreduce_gradients(main, group)
    new.distribution = group
    return new


def hybrid_startup(startup: Program, main: Program, group: HybridGroup) -> Program:
    """Return the startup program of a trainer: all take over trainer 0's parameters."""
    new = collective_startup(startup, main, group)
    new.initialize_as(startup)
    new.main, new.distribution = main, group
    return new

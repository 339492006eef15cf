"""Values computed by learning-rate schedules on servers, which trainers may fetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcdist.graph.dtypes import VarType
from hpcdist.graph.program import Program
from hpcdist.transpiler.program_roles import ProgramRoles, nested


@dataclass(frozen=True)
class ScheduledValue:
    """A variable of fixed shape that every server computes, or keeps, whole: all have the same."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def scheduled_values(program: Program, roles: ProgramRoles) -> tuple[ScheduledValue, ...]:
    """Return the schedule's results (rates, step counters), then the values that are constant.

    These are rates, and what the schedule makes rates of.
    """
    block = program.global_block()
    optimizers = [update.optimizer for update in roles.updates]
    schedule = [block.ops[i] for i in roles.schedule]
    names = _names(op.output_arg_names for op in schedule)
    read = _names(op.input_arg_names for op in nested(schedule))
    names |= {name: None for name in read if block.is_persistable(name)}
    names |= _names(block.ops[i].input("LearningRate") for i in optimizers)
    return tuple(
        ScheduledValue(var.name, tuple(var.shape), var.dtype)
        for var in map(block.find_var, names)
        if var is not None and var.type == VarType.LOD_TENSOR and -1 not in var.shape
    )


def _names(lists: Iterable[Sequence[str]]) -> dict[str, None]:
    return {name: None for names in lists for name in names}

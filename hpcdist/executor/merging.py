"""Gradients merged over steps: the Program of the steps that do not update."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdist.executor.scope import Scope
from hpcdist.graph.block import block_of
from hpcdist.graph.op_role import MERGED_STEPS, OF_LAST_STEP, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache

_ONLY_LAST = OpRole.OPTIMIZE | OpRole.RPC | OpRole.DIST
_RINGS = ("c_allreduce_sum", "c_sync_calc_stream", "c_sync_comm_stream")


@dataclass(frozen=True)
class _Merged:
    """The Program of the other steps; ``counter`` holds how many there were since an update."""

    between: Program | None = None
    counter: str = ""
    steps: int = 1


class MergedSteps:
    """Chooses what is run in a step; the counter is in the scope, so checkpoints know it."""

    def __init__(self) -> None:
        self._merged: ProgramCache[_Merged] = ProgramCache()

    def of_this_step(self, program: Program, scope: Scope) -> Program:
        """Return a Program, or what is left of it in a step that only adds to gradients."""
        merged = self._merged.of(program, lambda: _read(program))
        if merged.between is None:
            return program
        variable = scope.find_var(merged.counter)
        if variable is None or variable.value is None:  # not initialized: compiling says so
            return program
        return program if int(variable.value[0]) >= merged.steps - 1 else merged.between

    def merges(self, program: Program) -> bool:
        """Return whether a Program merges gradients over steps, so that not all are alike."""
        return self._merged.of(program, lambda: _read(program)).between is not None


def merge_counter(program: Program) -> str | None:
    """Return the variable that counts the steps merged so far; None if gradients are not merged."""
    op = _starts_over(program)
    return None if op is None else op.output("Out")[0]


def merged_steps(program: Program) -> int:
    """Return how many steps make one update: 1 if gradients are not merged."""
    op = _starts_over(program)
    return 1 if op is None else int(op.attrs[MERGED_STEPS])


def merged_gradients(program: Program) -> set[str]:
    """Return the variables that hold the gradients of steps that have not yet updated."""
    counter = merge_counter(program)
    cleared = (op for op in program.global_block().ops if _is_cleared(op))
    return {name for op in cleared for name in op.output("Out") if name != counter}


def merge_state(program: Program) -> set[str]:
    """Return the state kept between merged steps: their gradients, and the counter."""
    counter = merge_counter(program)
    return merged_gradients(program) | ({counter} if counter is not None else set())


def begin_to_merge(program: Program, scope: Scope) -> None:
    """Forget the gradients of steps that have not yet updated, if there are any."""
    for name in merge_state(program):
        variable = scope.find_var(name)
        if variable is not None and variable.value is not None:
            variable.value.fill(0)


def _starts_over(program: Program) -> Operator | None:
    return next((op for op in program.global_block().ops if MERGED_STEPS in op.attrs), None)


def _is_cleared(op: Operator) -> bool:
    return OF_LAST_STEP in op.attrs and op.type == "fill_constant"


def _read(program: Program) -> _Merged:
    last = _starts_over(program)
    if last is None:
        return _Merged()
    new = program.clone()
    block = new.global_block()
    block.ops = [op for op in block.ops if not _is_only_last(op)]
    return _Merged(new, last.output("Out")[0], merged_steps(program))


def _is_only_last(op: Operator) -> bool:
    """Return whether an operator runs only in the last of the merged steps."""
    if OF_LAST_STEP in op.attrs or op.role & _ONLY_LAST or op.type in _RINGS:
        return True
    if not op.role & OpRole.LR_SCHED:
        return False
    return any(map(block_of(op).is_persistable, op.output_arg_names))

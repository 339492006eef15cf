"""Learning rates that a script computes with plain layers, without a schedule of the framework.
Pure.

Warm-ups and restarts are often written with plain layers: a step counter, arithmetic, a Switch.
These operators have the forward role, and yet belong to the schedule: servers run it.
"""

from __future__ import annotations

from hpcdist.graph.block import Block
from hpcdist.graph.op_role import AFTER_UPDATES, MERGED_STEPS, ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import lookup
from hpcdist.graph.variable import Parameter
from hpcdist.transpiler.program_roles import nested

# What an update reads that may be computed anew in every step.
_RATES = ("LearningRate", "Beta1Tensor", "Beta2Tensor")


def with_rates_scheduled(main: Program) -> Program:
    """Return a Program in which what leads only to learning rates has the role of a schedule.

    That is forward operators of which nobody else reads anything, and that read only constants,
    what is kept from step to step, and each other; `refuse_unserved` says what it makes of others.
    What reads a counter of these and is read by nobody, so that it may be fetched, goes with them.
    Nothing moves to where it would run at other times: a schedule runs in front of all updates, and
    where gradients are merged, only in the steps that update.
    """
    indices = _leading_to_rates(main.global_block())
    if not indices:
        return main
    new = main.clone()
    block = new.global_block()
    for op in nested([block.ops[i] for i in sorted(indices)]):
        op.attrs[ROLE_ATTR] = int(OpRole.LR_SCHED)
    new.touch()
    return new


def _leading_to_rates(block: Block) -> set[int]:
    """Return the positions of forward operators that lead to rates, and to nothing else."""
    ops = block.ops
    read = [{name for op in nested([op]) for name in op.input_arg_names} for op in ops]
    written = [{name for op in nested([op]) for name in op.output_arg_names} for op in ops]
    scheduled = {i for i, op in enumerate(ops) if op.role & OpRole.LR_SCHED}
    needed = {name for i in scheduled for name in read[i]}
    for op in ops:
        if op.role == OpRole.OPTIMIZE:
            needed.update(name for slot in _RATES for name in op.input(slot))
    indices: set[int] = set()
    while more := {
        i
        for i, op in enumerate(ops)
        if i not in indices and op.role == OpRole.FORWARD and written[i] & needed
    }:
        indices |= more
        needed.update(name for i in more for name in read[i])
    computed = {name for i in indices for name in written[i]}
    for i in _read_by_nobody(block, read, written):  # and so may follow a counter
        if computed & read[i]:
            indices.add(i)
            computed |= written[i]
    indices = {i for i in indices if _repeatable(ops[i])}
    if any(MERGED_STEPS in op.attrs for op in ops):
        return set()
    first_update: dict[str, int] = {}  # by what it reads: its position
    for i, op in enumerate(ops):
        for name in read[i] if _on_servers(op) else ():
            first_update.setdefault(name, i)
    while indices:
        elsewhere = {i for i in range(len(ops)) if i not in indices} - scheduled
        moved = {name for i in elsewhere for name in written[i]}
        seen = {name for i in elsewhere if not _on_servers(ops[i]) for name in read[i]}
        computed = {name for i in indices | scheduled for name in written[i]}
        bad = {
            i
            for i in indices
            if written[i] & (moved | seen)
            or any(first_update.get(name, i) < i for name in written[i])
            or any(
                name in moved or not (name in computed or _persists(block, name))
                for name in read[i]
            )
        }
        if not bad:
            break
        indices -= bad
    # Constants alone need no schedule: servers make them beside each update, trainers fetch them.
    names = {name for i in indices for name in read[i] | written[i]}
    moving = {name for i in scheduled for name in written[i]}
    return indices if any(n in moving or block.is_persistable(n) for n in names) else set()


def _read_by_nobody(block: Block, read: list[set[str]], written: list[set[str]]) -> list[int]:
    """Return the positions of forward operators whose results no other operator needs."""
    indices: list[int] = []
    needed: set[str] = set()
    for i, op in reversed(list(enumerate(block.ops))):
        stays = any(block.is_persistable(name) for name in written[i])
        if op.role != OpRole.FORWARD or stays or not needed.isdisjoint(written[i]):
            needed |= read[i]
        else:
            indices.append(i)
    return indices[::-1]


def _on_servers(op: Operator) -> bool:
    return op.role == OpRole.OPTIMIZE and AFTER_UPDATES not in op.attrs


def _repeatable(op: Operator) -> bool:
    """Return whether every server may run an operator, and all get the same."""
    definitions = [lookup(inner.type) for inner in nested([op])]
    return all(definition.state is None and not definition.acts for definition in definitions)


def _persists(block: Block, name: str) -> bool:
    """Return whether servers have a value that nothing here writes: it stays from step to step."""
    var = block.find_var(name)
    if var is None:  # of a sub-block
        return True
    return var.persistable and not (var.is_data or isinstance(var, Parameter))

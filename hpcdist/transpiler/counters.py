"""Asynchronous schedules: each trainer counts its own steps, and servers add the counters up."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.errors import PlanError
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.roles import ROLE_ATTR, Role

FIRST = 1.0  # what each of several trainers' counters begins with, as in Fluid


def step_counter(program: Program, schedule: Sequence[int]) -> str | None:
    """Return the variable that a schedule increments; None if its rates depend on no counter."""
    ops = program.global_block().ops
    counters = {n for i in schedule if ops[i].type == "increment" for n in ops[i].output("Out")}
    if len(counters) > 1:
        raise PlanError(
            f"asynchronous training with several step counters: {sorted(counters)}; "
            "use one learning rate schedule"
        )
    return counters.pop() if counters else None


def count_by_trainer(
    program: Program, startup: Program, counter: str, counters: Sequence[str]
) -> tuple[Program, Program]:
    """Return both programs with ``counters``, one for each trainer, that add up to ``counter``.

    A lone trainer's begins where local training begins, so that both see the same rates.
    """
    program, startup = program.clone(), startup.clone()
    block, initial = program.global_block(), startup.global_block()
    position = next(
        i
        for i, op in enumerate(block.ops)
        if op.type == "increment" and op.output("Out") == [counter] and op.role & Role.LR_SCHED
    )
    step = block.ops[position].attrs.get("step", 1.0)
    scheduled = {ROLE_ATTR: int(Role.LR_SCHED)}
    block.ops[position] = Operator(block, "sum", {"X": counters}, {"Out": counter}, scheduled)
    first = FIRST
    for op in initial.ops:
        if op.type == "fill_constant" and op.output("Out") == [counter]:
            if len(counters) == 1:
                first = op.attrs["value"] + step
            op.attrs["value"] = -float(len(counters))
    var = block.var(counter)
    attrs = {"shape": list(var.shape), "dtype": var.dtype, "value": first}
    attrs[ROLE_ATTR] = int(Role.FORWARD)
    for name in counters:
        for home in (block, initial):
            home.create_var(name, shape=var.shape, dtype=var.dtype, persistable=True)
        initial.add_op(Operator(initial, "fill_constant", {}, {"Out": name}, attrs), 0)
    return program, startup

"""Asynchronous schedules: each trainer counts its own steps, and servers add the counters up."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import PlanError
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.transpiler.program_roles import nested

FIRST = 1.0  # what each of several trainers' counters begins with, as in Fluid


def step_counter(program: Program, schedule: Sequence[int]) -> str | None:
    """Return the variable that a schedule increments; None if its rates depend on no counter.

    PlanError if it has several, or keeps something else from one step to the next.
    """
    ops = program.global_block().ops
    schedule_ops = [ops[i] for i in schedule]
    counting = [op for op in schedule_ops if op.type == "increment"]
    counters = {n for op in counting for n in op.output("Out")}
    if len(counters) > 1:
        raise PlanError(
            f"asynchronous training with several step counters: {sorted(counters)}; "
            "use one learning rate schedule"
        )
    if len(counting) > 1 or any(op.attrs.get("step", 1.0) != 1.0 for op in counting):
        raise PlanError(
            f"{counting[-1].place} {counting[-1]}: in asynchronous training trainers count single "
            f"steps, but {min(counters)!r} is not incremented by 1 in each: increment it once in a "
            "step, by 1, or pass sync_mode=True"
        )
    written = {name for op in nested(schedule_ops) for name in op.output_arg_names}
    for op in schedule_ops:
        read = [name for inner in nested([op]) for name in inner.input_arg_names]
        if op in counting:
            read = [name for name in read if name not in counters]
        if counted := [
            name for name in read if name in written and program.global_block().has_var(name)
        ]:
            raise PlanError(
                f"{op.place} {op} keeps {counted[0]!r} from one step to the next, but in "
                "asynchronous training servers have no steps, only trainers count: compute the "
                "rate from layers.learning_rate_scheduler's counter, or pass sync_mode=True"
            )
        written.difference_update(name for inner in nested([op]) for name in inner.output_arg_names)
    return counters.pop() if counters else None


def count_by_trainer(
    program: Program, startup: Program, counter: str, counters: Sequence[str]
) -> tuple[Program, Program]:
    """Return both programs with ``counters``, one for each trainer, that add up to ``counter``.

    A lone trainer's begins where local training begins, so that both see the same rates.
    PlanError if those of several cannot: together they count from 1, as in Fluid.
    """
    program, startup = program.clone(), startup.clone()
    block, initial = program.global_block(), startup.global_block()
    position = next(
        i
        for i, op in enumerate(block.ops)
        if op.type == "increment" and op.output("Out") == [counter] and op.role & OpRole.LR_SCHED
    )
    step = block.ops[position].attrs.get("step", 1.0)
    scheduled = {ROLE_ATTR: int(OpRole.LR_SCHED)}
    block.ops[position] = Operator(block, "sum", {"X": counters}, {"Out": counter}, scheduled)
    first = FIRST
    for op in initial.ops:
        if op.type == "fill_constant" and op.output("Out") == [counter]:
            if len(counters) == 1:
                first = op.attrs["value"] + step
            elif op.attrs["value"] not in (0.0, -1.0):
                raise PlanError(
                    f"asynchronous training: {len(counters)} trainers count from 1, but "
                    f"{counter!r} begins with {op.attrs['value'] + step:g}; add a constant to a "
                    "counter that begins with 0 or 1, or pass sync_mode=True"
                )
            op.attrs["value"] = -float(len(counters))
    var = block.var(counter)
    attrs = {"shape": list(var.shape), "dtype": var.dtype, "value": first}
    attrs[ROLE_ATTR] = int(OpRole.FORWARD)
    for name in counters:
        for home in (block, initial):
            home.create_var(name, shape=var.shape, dtype=var.dtype, persistable=True)
        initial.add_op(Operator(initial, "fill_constant", {}, {"Out": name}, attrs), 0)
    return program, startup

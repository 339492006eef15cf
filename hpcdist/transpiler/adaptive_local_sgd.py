"""Adaptive local SGD: steps that average also choose the number of steps to the next average.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ops.optimize.local_sgd import INTERVAL_OP
from hpcdist.transpiler.group import Group, group_of

_START, _STEPS = "@LOCAL_SGD_START@", "@LOCAL_SGD_STEPS@"  # in front of a loss
_AVERAGE = "@AVERAGE"


def adaptive(program: Program, group: Group) -> Program:
    """Return a trainer's Program in place of one of local SGD, or of its startup Program.

    The loss of a step that averages is averaged over the trainers, too.
    """
    if program.trains:
        return _main(program, group)
    groups = [group_of(main) for main in dict.fromkeys((*program.mains, program.main)) if main]
    return _startup(program, [g for g in groups if g is not None and g.adapts_to])


def steps_of(group: Group) -> str:
    """Return the name of what holds how many steps come before the next average."""
    return _STEPS + group.adapts_to


def _main(program: Program, group: Group) -> Program:
    new = program.clone()
    block = new.global_block()
    rates = [op.input("LearningRate") for op in block.ops if op.input("Param")]
    rate = next((names[0] for names in rates if names), None)
    if rate is None:
        raise PlanError("adaptive local SGD follows the learning rate, and this optimizer has none")
    loss, average = group.adapts_to, group.adapts_to + _AVERAGE
    block.create_var(average, shape=(1,), dtype="float32")
    start, steps = _state(block, group)
    mean = {"scale": 1.0 / len(group.endpoints), "bias": 0.0, "bias_after_scale": True}
    role: dict[str, Any] = {ROLE_ATTR: int(OpRole.OPTIMIZE)}
    ring = {"ring_id": 0, "use_calc_stream": False}
    chosen = {"Loss": average, "LearningRate": rate, "Start": start, "Steps": steps}
    moved = {"StartOut": start, "StepsOut": steps}
    attrs = {"init_k_steps": group.k_steps, "begin_step": group.begin_step}
    for op in (
        Operator(block, "scale", {"X": loss}, {"Out": average}, {**mean, **role}),
        Operator(block, "c_allreduce_sum", {"X": average}, {"Out": average}, {**ring, **role}),
        Operator(
            block, "c_sync_comm_stream", {"X": average}, {"Out": average}, {"ring_id": 0, **role}
        ),
        Operator(block, INTERVAL_OP, chosen, moved, {**attrs, **role}),
    ):
        block.add_op(op)
    return new


def _startup(startup: Program, groups: Sequence[Group]) -> Program:
    if not groups:
        return startup
    new = startup.clone()
    block = new.global_block()
    for group in groups:
        start, steps = _state(block, group)
        for var, value in ((start, 0.0), (steps, float(group.k_steps))):
            facts = {"shape": list(var.shape), "dtype": var.dtype, "value": value}
            block.add_op(Operator(block, "fill_constant", {}, {"Out": var}, facts))
    return new


def _state(block: Block, group: Group) -> tuple[Any, Any]:
    flags = {"persistable": True, "stop_gradient": True}
    return (
        block.create_var(_START + group.adapts_to, shape=(3,), dtype="float32", **flags),
        block.create_var(steps_of(group), shape=(1,), dtype="int64", **flags),
    )

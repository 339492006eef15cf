"""Deep gradient compression: what trainers run once it has begun. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import MERGED_STEPS, ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ops.optimize.dgc import COUNTER
from hpcdist.transpiler.dependences import access_of
from hpcdist.transpiler.grad_allreduce import refuse_operators

_SENT = ("Values", "Indices", "Count")


@dataclass(frozen=True)
class GradientCompression:
    """What is run from step ``begin`` on, counted from 0; None: nothing is ever compressed."""

    program: Program | None = None
    begin: int = 0


def compressed_updates(program: Program) -> list[Operator]:
    """Return the updates of parameters whose gradients are compressed some time."""
    return [op for op in program.global_block().ops if op.type == "dgc_momentum"]


def compression_of(program: Program, trainers: int) -> GradientCompression:
    """Return the trainers' Program in place of one that sums gradients over them."""
    updates = compressed_updates(program)
    if not updates or trainers == 1:
        return GradientCompression()
    _check(program)
    new = program.clone()
    block = new.global_block()
    sums = {op.input("X")[0] for op in block.ops if op.type == "c_allreduce_sum"}
    of = {op.input("Grad")[0]: op for op in compressed_updates(new)}
    if lacking := sorted(of.keys() - sums):
        raise PlanError(
            f"DGCMomentum compresses what the backward pass gives, but {lacking[0]!r} is computed "
            "from the sum over trainers: leave mixed precision out, and let operators between "
            "backward and apply_gradients read no gradients"
        )
    for op in block.ops:
        if op.type == "dgc_momentum" or not op.role & OpRole.OPTIMIZE:
            continue
        if read := sorted(of.keys() & access_of(op).reads):
            raise PlanError(
                f"{op.place} {op} reads the gradient {read[0]!r}, of which DGCMomentum sends a "
                "part only: trainers have no sum of it; leave this operator out, or use Momentum"
            )
    ops: list[Operator] = []
    choices: list[Operator] = []
    for op in block.ops:
        if op.role & OpRole.OPTIMIZE and choices:
            ops.append(_sum(block, choices))
            choices = []
        if op.type == "c_allreduce_sum" and op.input("X")[0] in of:
            op = _choice(block, of[op.input("X")[0]], trainers)
            choices.append(op)
        elif op.type == "dgc_momentum":
            op = _update(block, op)
        ops.append(op)
    block.ops = ops
    return GradientCompression(new, int(updates[0].attrs["rampup_begin_step"]))


def _check(program: Program) -> None:
    begins = sorted({op.attrs["rampup_begin_step"] for op in compressed_updates(program)})
    if len(begins) > 1:
        raise PlanError(
            "DGCMomentum begins to compress all gradients of a program in one step, but its "
            f"optimizers have rampup_begin_step {' and '.join(map(str, begins))}: give all the same"
        )
    refuse_operators(
        program,
        "DGCMomentum",
        {
            MERGED_STEPS: "sends a part of each step's gradient, and gradient merge sends in some "
            "steps only: leave one of them out",
            "check_finite_and_unscale": "keeps what it does not send for later steps, which mixed "
            "precision scales by other numbers, or skips: leave one of them out",
        },
    )


def _choice(block: Block, update: Operator, trainers: int) -> Operator:
    name = update.input("Grad")[0]
    outputs = {
        slot: block.create_var(f"{name}@{slot.upper()}", dtype=dtype, stop_gradient=True)
        for slot, dtype in (("Values", "float32"), ("Indices", "int64"), ("Count", "int64"))
    }
    u, v = update.input("Velocity")[0], update.input("Residual")[0]
    inputs = {"U": u, "V": v, "Grad": name, "Param": update.input("Param")[0], "Step": COUNTER}
    attrs = {**update.attrs, "trainers": trainers, ROLE_ATTR: int(OpRole.BACKWARD)}
    return Operator(block, "dgc", inputs, {"UOut": u, "VOut": v, **outputs}, attrs)


def _sum(block: Block, choices: list[Operator]) -> Operator:
    shapes = [list(block.var(op.input("Param")[0]).shape) for op in choices]
    names = [_summed(op.input("Grad")[0]) for op in choices]
    for name, shape in zip(names, shapes):
        block.create_var(name, shape=shape, dtype="float32", stop_gradient=True)
    inputs = {slot: [op.output(slot)[0] for op in choices] for slot in _SENT}
    attrs = {"shapes": shapes, ROLE_ATTR: int(OpRole.BACKWARD)}
    return Operator(block, "c_sparse_sum", inputs, {"Out": names}, attrs)


def _summed(gradient: str) -> str:
    return f"{gradient}@SUM_OF_SENT"


def _update(block: Block, op: Operator) -> Operator:
    inputs: dict[str, Any] = {
        "Param": op.input("Param"),
        "Grad": _summed(op.input("Grad")[0]),
        "LearningRate": op.input("LearningRate"),
    }
    attrs = {ROLE_ATTR: op.attrs[ROLE_ATTR]}
    return Operator(block, "sgd", inputs, {"ParamOut": op.output("ParamOut")}, attrs)

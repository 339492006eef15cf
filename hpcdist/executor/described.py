"""What a recording says of a Program."""

from __future__ import annotations

import math
from itertools import chain, islice

import numpy as np

from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.roles import Role
from hpcdist.graph.variable import Variable
from hpcdist.trace import programs
from hpcdist.trace.programs import OperatorFacts, ParameterFacts, ProgramFacts


def described(program: Program) -> ProgramFacts:
    """Return the operators of a Program, and the parameters that they update, by name."""
    ops = [op for block in program.blocks for op in block.ops]
    updated = {
        name: var
        for op in ops
        for name in op.input("Param")
        if (var := op.block.find_var(name)) is not None
    }
    kind = _kind(program, ops)
    rest = programs.UPDATE if kind == programs.SERVES else programs.FORWARD
    return ProgramFacts(
        kind=kind,
        operators=tuple(_operator(op, rest) for op in islice(ops, programs.MOST_OPERATORS)),
        parameters=tuple(_parameter(updated[name]) for name in sorted(updated)),
        left_out=max(0, len(ops) - programs.MOST_OPERATORS),
    )


def _kind(program: Program, ops: list[Operator]) -> str:
    if any(op.type == "listen_and_serv" for op in ops):
        return programs.SERVES
    if any(op.role & (Role.OPTIMIZE | Role.BACKWARD) for op in program.global_block().ops):
        return programs.TRAINS  # as the executor counts steps
    return programs.STARTS if program.main is not None else programs.RUNS


def _operator(op: Operator, role: str) -> OperatorFacts:
    """Return an operator, with a ``role`` that holds if its own says nothing else."""
    # Sums of gradients stand in the backward.
    sums = op.type.startswith("c_")
    if sums or op.role & (Role.RPC | Role.DIST) or op.type == "listen_and_serv":
        role = programs.EXCHANGE
    elif op.role & (Role.OPTIMIZE | Role.LR_SCHED):
        role = programs.UPDATE
    elif op.role & Role.BACKWARD:
        role = programs.BACKWARD
    reads, writes = (tuple(chain(*slots.values())) for slots in (op.inputs, op.outputs))
    return OperatorFacts(op.type, reads, writes, role)


def _parameter(var: Variable) -> ParameterFacts:
    size = math.prod(var.shape) if min(var.shape, default=0) >= 0 else 0  # a table's rows come
    nbytes = size * np.dtype(var.dtype).itemsize
    return ParameterFacts(var.name, var.shape, nbytes)

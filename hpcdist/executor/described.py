"""What a recording says of a Program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

import numpy as np

from hpcdist.executor.compiled_form import Compiled
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.roles import Role
from hpcdist.graph.variable import Variable
from hpcdist.trace import programs
from hpcdist.trace.programs import Moved, OperatorFacts, ParameterFacts, ProgramFacts


def described(program: Program, compiled: Compiled | None = None) -> ProgramFacts:
    """Return the operators of a Program, the parameters that they update, and the bytes they move.

    The latter are those of its form for some feeds, where one is given.
    """
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
        moved=() if compiled is None else _moved(compiled),
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


def _moved(compiled: Compiled) -> tuple[Moved, ...]:
    by_type: dict[str, list[int | None]] = defaultdict(list)
    for op in compiled.ops:
        by_type[op.type].append(_bytes_of(op, compiled.arrays))
    return tuple(
        Moved(type_, len(found), sum(known))
        for type_, found in sorted(by_type.items())
        if len(known := [nbytes for nbytes in found if nbytes]) == len(found)
    )


def _bytes_of(op: Operator, arrays: Mapping[str, Any]) -> int | None:
    """Return the bytes that an operator reads and writes; None if they depend on values.

    So it is where rows of a table are looked up or have gradients, and in loops.
    """
    if op.type.startswith("lookup_table"):
        return None
    sizes = [
        getattr(arrays.get(name), "nbytes", None)
        for slots in (op.inputs, op.outputs)
        for name in set(chain(*slots.values()))
    ]
    return None if None in sizes else sum(size for size in sizes if size is not None)

"""What a recording says of a Program."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np

from hpcdist.base.trace import programs
from hpcdist.base.trace.programs import Moved, OperatorFacts, ParameterFacts, ProgramFacts
from hpcdist.executor.compiled_form import Compiled
from hpcdist.graph.names import EMPTY
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import arguments, declared_attrs, lookup
from hpcdist.graph.variable import Variable

Work = tuple[int, int | None]  # bytes, multiplications and additions


def described(program: Program, compiled: Compiled | None = None) -> ProgramFacts:
    """Return the operators of a Program, the parameters that they update, and the work they do.

    The latter is that of its form for some feeds, where one is given.
    """
    ops = [op for block in program.blocks for op in block.ops]
    updated = {
        name: var
        for op in ops
        for name in op.input("Param")
        if (var := op.block.find_var(name)) is not None
    }
    kind = _kind(program, ops)
    default_role = programs.UPDATE if kind == programs.SERVES else programs.FORWARD
    return ProgramFacts(
        kind=kind,
        operators=tuple(_operator(op, default_role) for op in islice(ops, programs.MOST_OPERATORS)),
        parameters=tuple(_parameter(updated[name]) for name in sorted(updated)),
        left_out=max(0, len(ops) - programs.MOST_OPERATORS),
        moved=() if compiled is None else _moved(compiled),
    )


def _kind(program: Program, ops: list[Operator]) -> str:
    if any(op.type == "listen_and_serv" for op in ops):
        return programs.SERVES
    if any(op.role & (OpRole.OPTIMIZE | OpRole.BACKWARD) for op in program.global_block().ops):
        return programs.TRAINS  # as the executor counts steps
    return programs.STARTS if program.main is not None else programs.RUNS


def _operator(op: Operator, role: str) -> OperatorFacts:
    """Return an operator, with a ``role`` that holds if its own says nothing else."""
    # Sums of gradients stand in the backward.
    sums = op.type.startswith("c_")
    if sums or op.role & (OpRole.RPC | OpRole.DIST) or op.type == "listen_and_serv":
        role = programs.EXCHANGE
    elif op.role & (OpRole.OPTIMIZE | OpRole.LR_SCHED):
        role = programs.UPDATE
    elif op.role & OpRole.BACKWARD:
        role = programs.BACKWARD
    reads, writes = (tuple(chain(*slots.values())) for slots in (op.inputs, op.outputs))
    return OperatorFacts(op.type, reads, writes, role)


def _parameter(var: Variable) -> ParameterFacts:
    shape = tuple(None if size < 0 else size for size in var.shape)  # a table's rows come
    size = math.prod(size or 0 for size in shape)
    return ParameterFacts(var.name, shape, size * np.dtype(var.dtype).itemsize)


def _moved(compiled: Compiled) -> tuple[Moved, ...]:
    by_type: dict[str, list[Work | None]] = defaultdict(list)
    for op in compiled.ops:
        by_type[op.type].append(_work_of(op, compiled.arrays))
    return tuple(
        Moved(type_, len(works), sum(n for n, _ in measured), _sum(f for _, f in measured))
        for type_, works in sorted(by_type.items())
        if len(measured := [work for work in works if work is not None]) == len(works)
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    types = list(counts)
    return None if None in types else sum(n for n in types if n is not None)


def _work_of(op: Operator, arrays: Mapping[str, Any]) -> Work | None:
    """Return the bytes that an operator reads and writes, and what its products take.

    None if they depend on values, as where rows of a table are looked up or have gradients, and in
    loops; and on a device, which runs its operators when their calls have long returned.
    """
    definition = lookup(op.type)
    if op.type.startswith("lookup_table"):
        return None
    touched: list[Any] = [
        arrays.get(name)
        for side in (op.inputs, op.outputs)
        for name in {n for slot in side.keys() - set(definition.shape_only) for n in side[slot]}
        if name != EMPTY
    ]
    if not all(isinstance(array, np.ndarray) for array in touched):
        return None
    nbytes = sum(array.nbytes for array in touched)
    if definition.flops is None:
        return nbytes, 0 if definition.inplace else None
    slots = (*definition.operands, *definition.outputs)
    operands = {
        s: [arrays.get(n) for n in names] for s, names in {**op.inputs, **op.outputs}.items()
    }
    return nbytes, definition.flops(
        *arguments(slots, operands), **declared_attrs(definition, op.attrs)
    )

"""Fluid's ``contrib``: what a Program needs of memory, and what operators it has."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.graph.names import EMPTY
from hpcdist.graph.program import Program

__all__ = ["memory_usage", "op_freq_statistic"]


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """Return Fluid's estimate of what the results of all operators take: from, to, unit.

    It counts every result once; the executor shares memory among them, and needs less.
    """
    _expect_program("memory_usage", program)
    if batch_size <= 0:
        raise GraphError(f"memory_usage: batch_size must be positive, got {batch_size}")
    block = program.global_block()
    total = 0.0
    for name in dict.fromkeys(name for op in block.ops for name in op.output_arg_names):
        var = block.vars.get(name)
        if name == EMPTY or var is None or var.type != "LOD_TENSOR":
            continue
        if sum(extent < 0 for extent in var.shape) > 1:
            raise GraphError(f"memory_usage: {name!r} has several open dimensions: {var.shape}")
        elements = math.prod(-extent * batch_size if extent < 0 else extent for extent in var.shape)
        total += elements * np.dtype(var.dtype).itemsize
    unit = "B"
    for larger in ("KB", "MB"):
        if total > 1024:
            total, unit = total / 1024, larger
    return total * 1.05, total * 1.1, unit


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return how often operators, and pairs ``a->b`` where b reads what a wrote, stand there."""
    _expect_program("op_freq_statistic", program)
    parameters = {parameter.name for parameter in program.all_parameters()}
    single: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    written_by: dict[str, str] = {}
    for op in program.global_block().ops:
        single[op.type] += any(name not in parameters for name in op.output_arg_names)
        for name in op.input_arg_names:
            if name not in parameters and name in written_by:
                pairs[f"{written_by[name]}->{op.type}"] += 1
        written_by.update(dict.fromkeys(op.output_arg_names, op.type))
    return (+single).most_common(), pairs.most_common()


def _expect_program(call: str, program: object) -> None:
    if not isinstance(program, Program):
        raise GraphTypeError(f"{call}: expected a Program, got {program!r}")

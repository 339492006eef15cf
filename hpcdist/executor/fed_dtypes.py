"""Data of another element type than declared, where nothing else decides the type.

Fluid computes what `layers.data` declares in the type of what is fed. An operator takes values of
one type: so this works where operators read only what was fed so, or comes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from hpcdist.executor.analysis import reads, writes
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.program import Program


def of_other_dtypes(program: Program, values: Mapping[str, np.ndarray]) -> set[str]:
    """Return the names fed with a type that takes the place of the declared one."""
    variables = program.global_block().vars
    others = {name for name, value in values.items() if value.dtype.name != variables[name].dtype}
    alike = len({values[name].dtype for name in others}) == 1
    free = not any(variables[name].checks_feed for name in others)
    return others if alike and free and _decide_alone(program, values, others) else set()


def _decide_alone(program: Program, values: Mapping[str, np.ndarray], fed: Collection[str]) -> bool:
    """Return whether no operator reads what comes of ``fed`` beside anything else.

    Where floats take the place of floats, integers, such as places to gather from, may be beside.
    """
    variables, made = program.global_block().vars, set(fed)
    floats = all(is_float(variables[n].dtype) and values[n].dtype.kind == "f" for n in fed)
    for op in program.global_block().ops:
        read = set(reads(op))
        if not read & made:
            continue
        if "sub_block" in op.attrs:  # it reads variables that are not of this block, too
            return False
        if any(not floats or is_float(variables[n].dtype) for n in read - made):
            return False
        made.update(writes(op))
    return True

"""Updates of few elements as calls of numpy, which may become one with others (`parts_of`).

They have the bits of the pass over memory (`update_kernels`): each formula of `base.optimizers`
is run once on values that note what is computed with them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.optimizers import FORMULAS
from hpcdist.ops.types import Array, Call, Operands

MOST_WORK = 8192  # elements times calls: of more, one pass is quicker
# What rounds alike in numpy and in compiled loops: powers and choices do not, or may not.
_EXACT = (np.add, np.subtract, np.multiply, np.true_divide, np.sqrt, np.negative)


class _Inexact(Exception):
    """A formula needs something else."""


class _Noted(np.lib.mixins.NDArrayOperatorsMixin):
    """A value in a formula, with the calls that it takes to compute it."""

    def __init__(self, calls: list[Call], array: Array) -> None:
        self.calls, self.array = calls, array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> _Noted:
        if ufunc not in _EXACT or method != "__call__" or named:
            raise _Inexact
        dtype = self.array.dtype
        arrays = [x.array if isinstance(x, _Noted) else np.full((), x, dtype) for x in inputs]
        out = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), dtype)
        self.calls.append(functools.partial(ufunc, *arrays, out=out))
        return _Noted(self.calls, out)


def update_calls(
    rule: str, param: Array, rows: Sequence[Array], rate: Array, hyper: Array, states: Operands
) -> list[Call] | None:
    """Return calls that move ``param`` as `update_kernels.PASSES[rule]` does; None if none do so.

    ``rows`` are gradients to be added in this order, ``hyper`` the scale and the constants.
    """
    if rule not in FORMULAS or param.size * 2 > MOST_WORK:
        return None
    formula, moved = FORMULAS[rule], FORMULAS[rule].states
    calls: list[Call] = []

    def noted(array: Array) -> _Noted:
        return _Noted(calls, array)

    try:
        total: Any = noted(rows[0])
        for row in rows[1:]:
            total = total + noted(row)
        if hyper[0] != 1:
            total = total * hyper[0]
        powers = [noted(power) for power in states[moved : moved + formula.powers]]
        speed: Any = noted(rate)
        if formula.rate is not None:
            speed = formula.rate(speed, *powers)
        operands = (noted(param), total, *map(noted, states[:moved]), speed)
        constants: list[Any] = list(hyper[1 : 1 + formula.constants])
        if formula.last is not None:
            constants[-1] = formula.last(constants[-1], *powers)
        found = formula.step(*operands, *constants)
    except _Inexact:
        return None
    for target, value in zip((param, *states[:moved]), found if moved else (found,)):
        calls.append(functools.partial(np.copyto, target, value.array))
    for power, place in zip(states[moved:], formula.times):
        beta = np.full((), hyper[1 + place])
        calls.append(functools.partial(np.multiply, power, beta, out=power))
    return calls if param.size * len(calls) <= MOST_WORK else None

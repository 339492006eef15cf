"""The formulas of `optimizers`, compiled, and the loops over elements that they stand in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numba.extending import overload

from hpcdist.base import optimizers
from hpcdist.base.jit import inlined, jit
from hpcdist.base.optimizer_kind import Formula


@overload(optimizers.where)
def _where_of_numbers(condition, chosen, other):  # numba's np.where makes arrays of numbers
    return lambda condition, chosen, other: chosen if condition else other


@functools.cache
def compiled(formula: Callable[..., Any] | None) -> Any:
    """Return a formula as kernels call it; None for None."""
    return None if formula is None else jit(formula)


RULES = {
    name: replace(f, step=compiled(f.step), rate=compiled(f.rate), last=compiled(f.last))
    for name, f in optimizers.FORMULAS.items()
}


def elementwise(rule: Formula) -> Any:
    """Return the compiled loop (p, g, states, n, scale, rate, constants) that moves n elements.

    ``g`` is multiplied by ``scale``; ``states`` and ``constants`` are tuples.
    """
    formula = rule.step

    def none(p, g, states, n, scale, rate, constants):
        for i in range(n):
            p[i] = formula(p[i], g[i] * scale, rate, *constants)

    def one(p, g, states, n, scale, rate, constants):
        a = states[0]
        for i in range(n):
            p[i], a[i] = formula(p[i], g[i] * scale, a[i], rate, *constants)

    def two(p, g, states, n, scale, rate, constants):
        a, b = states[0], states[1]
        for i in range(n):
            p[i], a[i], b[i] = formula(p[i], g[i] * scale, a[i], b[i], rate, *constants)

    def three(p, g, states, n, scale, rate, constants):
        a, b, c = states[0], states[1], states[2]
        for i in range(n):
            p[i], a[i], b[i], c[i] = formula(p[i], g[i] * scale, a[i], b[i], c[i], rate, *constants)

    loops: tuple[Callable[..., Any], ...] = (none, one, two, three)
    return inlined(loops[rule.states])

"""Optimizer updates on a GPU: the formulas of `optimizers`, each as one kernel.

Parameters that are contiguous, as are their gradients and states, are updated as one (`bind_run`):
the arithmetic is element-wise. Gaps between them are ignored.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base import optimizers as rules
from hpcdist.ops.common import in_sequence
from hpcdist.ops.types import Array, ArrayModule, Call, Operands

GAP = 128  # bytes at whose multiples values begin that are moved as one


def bind(xp: ArrayModule, name: str, param, lr, state: Operands, hyper, rows: Operands) -> Call:
    """Return the rule ``name`` bound to arrays.

    ``rows`` are the gradients to be summed; ``hyper`` is what they are multiplied by, then the
    rule's constants. ``lr`` is the parameter itself for a rule without a rate.
    """
    scale, *constants = (param.dtype.type(h) for h in hyper)
    special = {"lars_momentum": _lars, "lamb": _lamb, "unbiased_lamb": _unbiased_lamb}.get(name)

    def total() -> Array:
        sum_ = rows[0]
        for row in rows[1:]:
            sum_ = sum_ + row
        return sum_

    if special is None:
        rule = rules.FORMULAS[name]
        flat = [array.reshape(-1) for array in (param, *state[: rule.states])]
        rate = param.dtype.type(0) if lr is param else lr.reshape(-1)
        powers = [power.reshape(-1) for power in state[rule.states :][: rule.powers]]
        kernel = rule_kernel(xp, name)

        def update() -> None:
            kernel(flat[0], total().reshape(-1), scale, rate, *flat[1:], *powers, *constants)

        return in_sequence(update, *_next_powers(xp, name, powers, constants))

    def norm(x) -> Array:
        return xp.sqrt(xp.sum(xp.square(x, dtype="float64"))).astype(param.dtype)

    def step() -> None:
        moved = special(param, total() * scale, state, lr, constants, norm)
        for target, value in zip((param, *state), moved):
            target[...] = value

    return step


def bind_run(
    xp: ArrayModule,
    name: str,
    params: Operands,
    lr,
    states: Sequence[Sequence[Array]],
    hyper,
    grads: Sequence[Array],
) -> Call:
    """Return the rule ``name`` bound to several parameters, each with its states and gradient.

    Each of ``params``, ``grads`` and the arrays of one state is contiguous, beginning
    at multiples of GAP bytes, and the memory reaches to such a multiple after the last.
    """
    rule, dtype = rules.FORMULAS[name], params[0].dtype
    scale, *constants = (dtype.type(h) for h in hyper)
    slots = list(zip(*states))
    moved = [_stacked(xp, arrays) for arrays in (params, grads, *slots[: rule.states])]
    counts = [-(-param.nbytes // GAP) for param in params]
    owner = xp.asarray(np.repeat(np.arange(len(params)), counts))
    steps, powers, spread = [], [], []
    for arrays in slots[rule.states :][: rule.powers]:
        powers.append(_stacked(xp, arrays))
        spread.append(xp.empty((len(owner), 1), dtype))  # of each row of GAP bytes its parameter's
        flat = spread[-1].reshape(-1)
        steps.append(partial(xp.take, powers[-1][:, 0], owner, 0, flat))
    rate = dtype.type(0) if lr is params[0] else lr.reshape(1, 1)
    kernel = partial(rule_kernel(xp, name), *moved[:2], scale, rate, *moved[2:], *spread)
    return in_sequence(
        *steps,
        partial(kernel, *constants),
        *_next_powers(xp, name, powers, constants),
    )


def _stacked(xp: ArrayModule, arrays: Operands) -> Array:
    """View arrays, with the gaps after them, as rows of GAP bytes."""
    first, last = arrays[0], arrays[-1]
    rows = -(-(last.data.ptr + last.nbytes - first.data.ptr) // GAP)
    return xp.ndarray((rows, GAP // first.itemsize), first.dtype, memptr=first.data)


def _next_powers(
    xp: ArrayModule, name: str, powers: Sequence[Array], constants: Sequence[Array]
) -> list[Call]:
    times = [constants[i] for i in rules.FORMULAS[name].times]
    return [partial(xp.multiply, p, t, out=p) for p, t in zip(powers, times)]


@functools.cache
def rule_kernel(xp, name: str) -> Any:
    """Return the kernel (p, g, scale, lr, *states, *powers of beta, *constants) of a rule."""
    rule = rules.FORMULAS[name]
    formula = formula_of(xp, rule.step)
    rate_of = None if rule.rate is None else formula_of(xp, rule.rate)
    last_of = None if rule.last is None else formula_of(xp, rule.last)

    def update(p, g, scale, lr, *rest) -> None:
        states, rest = rest[: rule.states], rest[rule.states :]
        powers, constants = rest[: rule.powers], rest[rule.powers :]
        rate = lr if rate_of is None else rate_of(lr, *powers)
        if last_of is not None:
            constants = (*constants[:-1], last_of(constants[-1], *powers))
        moved = formula(p, g * scale, *states, rate, *constants)
        for target, value in zip((p, *states), moved if rule.states else (moved,)):
            target[...] = value

    return xp.fuse(update)


def formula_of(xp: ArrayModule, formula, **names) -> Callable[..., Any]:
    """Return a formula with xp's functions in place of numpy's, which cupy.fuse does not take.

    ``names``: what else it is to read in place of what it has.
    """
    namespace = {**formula.__globals__, "np": xp, "where": xp.where, **names}
    return types.FunctionType(formula.__code__, namespace)


def _lars(param, g, state: Operands, lr, constants: Sequence[Array], norm) -> tuple[Array, ...]:
    mu, coeff, decay = constants
    rate = rules.lars_rate(lr, coeff, decay, norm(param), norm(g))
    return rules.lars_rule(param, g, state[0], rate, mu, decay)


def _lamb(
    param, g, state: Operands, lr, constants: Sequence[Array], norm, wholes=(rules.ONE, rules.ONE)
) -> tuple[Array, ...]:
    step, m, v = rules.lamb_rule(param, g, *state[:2], *wholes, *constants[:6])
    return param - rules.lamb_rate(lr, constants[6], norm(param), norm(step)) * step, m, v


def _unbiased_lamb(param, g, state: Operands, lr, constants, norm) -> tuple[Array, ...]:
    first, second = state[2:]
    wholes = rules.ONE - first, rules.ONE - second
    moved = _lamb(param, g, state, lr, constants, norm, wholes)
    return *moved, first * constants[0], second * constants[2]

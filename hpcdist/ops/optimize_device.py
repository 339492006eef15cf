"""Optimizer updates on a GPU: the formulas of `update_rules` applied to whole cupy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist import update_rules as rules


def bind(
    xp: Any,
    name: str,
    param: Any,
    lr: Any,
    state: Sequence[Any],
    hyper: Any,
    rows: Sequence[Any],
) -> Callable[[], None]:
    """Return the rule ``name`` bound to arrays.

    ``rows`` are the gradients to be summed; ``hyper`` is what they are multiplied by, then the
    rule's constants.
    """
    scale, *constants = (param.dtype.type(h) for h in hyper)
    special = {"lars_momentum": _lars, "lamb": _lamb}.get(name)

    def gradient() -> Any:
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return total * scale

    def norm(x: Any) -> Any:
        return xp.sqrt(xp.sum(xp.square(x, dtype="float64"))).astype(param.dtype)

    def step() -> None:
        if special is not None:
            moved = special(param, gradient(), state, lr, constants, norm)
        else:
            moved = _plain(name, param, gradient(), state, lr, constants)
        for target, value in zip((param, *state), moved):
            target[...] = value

    return step


def _plain(
    name: str, param: Any, g: Any, state: Sequence[Any], lr: Any, constants: Sequence[Any]
) -> tuple[Any, ...]:
    rule = rules.RULES[name]
    states, powers = state[: rule.states], state[rule.states :]
    rate = lr if rule.rate is None else rule.rate.py_func(lr, *powers)
    moved = rule.formula.py_func(param, g, *states, rate, *constants)
    if name == "adam":
        return *moved, powers[0] * constants[0], powers[1] * constants[2]
    return moved if rule.states else (moved,)


def _lars(
    param: Any, g: Any, state: Sequence[Any], lr: Any, constants: Sequence[Any], norm: Any
) -> tuple[Any, ...]:
    mu, coeff, decay = constants
    rate = rules.lars_rate.py_func(lr, coeff, decay, norm(param), norm(g))
    return rules.lars_rule.py_func(param, g, state[0], rate, mu, decay)


def _lamb(
    param: Any, g: Any, state: Sequence[Any], lr: Any, constants: Sequence[Any], norm: Any
) -> tuple[Any, ...]:
    *betas, epsilon, decay = constants
    step, m, v = rules.lamb_rule.py_func(param, g, *state[:2], *betas, epsilon, decay)
    return param - rules.lamb_rate.py_func(lr, norm(param), norm(step)) * step, m, v

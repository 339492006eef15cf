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
    scale: float,
) -> Callable[[], None]:
    """Return the update ``name`` bound to arrays; ``rows`` are the gradients to be summed."""
    constants = [param.dtype.type(h) for h in hyper]
    factor = param.dtype.type(scale)
    special = {"lars_momentum": _lars, "lamb": _lamb}.get(name)

    def gradient() -> Any:
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return total * factor

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
    rule = getattr(rules, name + "_rule").py_func
    if name == "adam":
        m, v, power1, power2 = state
        rate = rules.adam_rate.py_func(lr, power1, power2)
        beta1, _, beta2, *_ = constants
        return *rule(param, g, m, v, rate, *constants), power1 * beta1, power2 * beta2
    if name == "adamax":
        m, u, power1 = state
        return rule(param, g, m, u, rules.adamax_rate.py_func(lr, power1), *constants)
    if name == "adadelta":
        return rule(param, g, *state, *constants)
    if name == "rmsprop":
        return rule(param, g, *state[:2], lr, *constants)
    moved = rule(param, g, *state, lr, *constants)
    return moved if isinstance(moved, tuple) else (moved,)


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

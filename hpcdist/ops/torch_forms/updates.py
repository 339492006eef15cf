"""Forms of the optimizers, from the formulas of `optimizers`, and of mixed precision."""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcdist.base import optimizers as rules
from hpcdist.ops.optimize.average_accumulates import MOST
from hpcdist.ops.optimize.update_device import formula_of
from hpcdist.ops.torch_forms import dtype_name, form


def _formula(torch, formula):
    return formula_of(torch, formula, ONE=1.0)


def _constants(update, attrs, param):
    number = np.dtype(dtype_name(param)).type
    return [float(number(c)) for c in update.hyper(attrs, number)]


def _norm(torch, x):
    """Return the Euclidean norm, added up in double precision."""
    return torch.linalg.vector_norm(x, dtype=torch.float64).to(x.dtype)


def _updated(torch, param, grad, state, rate, attrs, type):
    """Return the parameter and all of its states as they are after the update."""
    update = rules.OPTIMIZERS[type]
    constants = _constants(update, attrs, param)
    name = update.rule(attrs)
    if name == "lars_momentum":
        mu, coeff, decay = constants
        norms = _norm(torch, param), _norm(torch, grad)
        rate = _formula(torch, rules.lars_rate)(rate, coeff, decay, *norms)
        return _formula(torch, rules.lars_rule)(param, grad, state[0], rate, mu, decay)
    if name in ("lamb", "unbiased_lamb"):
        powers, own = state[2:], name == "unbiased_lamb"
        wholes = [1.0 - p for p in powers] if own else (1.0, 1.0)
        rule = _formula(torch, rules.lamb_rule)
        step, *moments = rule(param, grad, *state[:2], *wholes, *constants[:6])
        norms = _norm(torch, param), _norm(torch, step)
        rate = _formula(torch, rules.lamb_rate)(rate, param.new_tensor(constants[6]), *norms)
        powers = [p * t for p, t in zip(powers, constants[:3:2])] if own else powers
        return param - rate * step, *moments, *powers
    rule = rules.FORMULAS[name]
    powers = state[rule.states :][: rule.powers]
    if rule.rate is not None:
        rate = _formula(torch, rule.rate)(rate, *(power.reshape(()) for power in powers))
    moved = _formula(torch, rule.step)(param, grad, *state[: rule.states], rate, *constants)
    times = [constants[i] for i in rule.times]
    powers = [p * t for p, t in zip(powers, times)] if times else powers
    rest = state[rule.states + rule.powers :]
    return (*(moved if rule.states else (moved,)), *powers, *rest)


def _update(type, torch, param, grad, *rest, **attrs):
    update = rules.OPTIMIZERS[type]
    rate, state = (rest[0].reshape(()), rest[1:]) if update.has_rate else (0.0, rest)
    param, *states = _updated(torch, param, grad, state, rate, attrs, type)
    return (param, *(s for s, out in zip(states, update.state.values()) if out is not None))


for _type in rules.OPTIMIZERS:
    form(_type, family="updates")(partial(_update, _type))


@form("lars_momentum_of_norms")
def lars_momentum_of_norms(
    torch, p, g, rate, velocity, p_norm, g_norm, mu, lars_coeff, lars_weight_decay
):
    number = np.dtype(dtype_name(p)).type
    mu, coeff, decay = (float(number(c)) for c in (mu, lars_coeff, lars_weight_decay))
    norms = torch.sqrt(p_norm), torch.sqrt(g_norm)
    local_rate = _formula(torch, rules.lars_rate)(rate, coeff, decay, *norms)
    return _formula(torch, rules.lars_rule)(p, g, velocity, local_rate, mu, decay)


@form("average_accumulates")
def average_accumulates(
    torch,
    param,
    sum_1,
    sum_2,
    sum_3,
    accumulated,
    before,
    updates,
    average_window,
    min_average_window,
    max_average_window,
):
    accumulated, updates, sum_1 = accumulated + 1, updates + 1, sum_1 + param
    is_full = updates % MOST == 0
    sum_2 = torch.where(is_full, sum_2 + sum_1, sum_2)
    sum_1 = torch.where(is_full, 0, sum_1)
    window = (updates.to(torch.float64) * average_window).to(accumulated.dtype)
    window = torch.clamp(window, max=max_average_window)
    moves = (accumulated >= min_average_window) & (accumulated >= window)
    sum_3 = torch.where(moves, sum_1 + sum_2, sum_3)
    before = torch.where(moves, accumulated, before)
    sum_1, sum_2, accumulated = (
        torch.where(moves, 0, value) for value in (sum_1, sum_2, accumulated)
    )
    return sum_1, sum_2, sum_3, accumulated, before, updates


# -- mixed precision -------------------------------------------------------------------------------
@form("round_to_float16")
def round_to_float16(torch, x):
    """On the bits of a float32: some inductors (2.11) drop a cast there and back."""
    if x.dtype != torch.float32:
        return x.to(torch.float16).to(x.dtype)
    bits = x.view(torch.int32) & 0x7FFFFFFF
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) >> 13) << 13
    infinite = 0x7F800000
    rounded = torch.where(rounded >= 0x47800000, infinite, rounded)  # from 2^16 on
    magnitude = torch.where(bits > infinite, bits, rounded).view(torch.float32)
    small = torch.round(torch.abs(x) * 2.0**24) * 2.0**-24  # below 2^-14: multiples of 2^-24
    return torch.copysign(torch.where(bits < 0x38800000, small, magnitude), x)


@form("round_to_bfloat16")
def round_to_bfloat16(torch, x):
    bits = x.view(torch.int32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return torch.where((bits & 0x7FFFFFFF) > 0x7F800000, bits, rounded).view(torch.float32)


@form("check_finite_and_unscale")
def check_finite_and_unscale(torch, xs, scale, zeroes):
    outs = torch._foreach_mul(xs, torch.reciprocal(scale.reshape(())))
    if not zeroes:
        return outs, torch.zeros_like(scale, dtype=torch.bool)
    # What torch's GradScaler calls: one kernel for many tensors. It multiplies, here by 1.
    facts = {"dtype": torch.float32, "device": scale.device}
    worst, one = torch.zeros(1, **facts), torch.ones(1, **facts)
    torch._amp_foreach_non_finite_check_and_unscale_(outs, worst, one)
    has_infinite = worst != 0
    return [out.masked_fill(has_infinite, 0) for out in outs], has_infinite


@form("update_loss_scaling")
def update_loss_scaling(
    torch,
    has_infinite,
    scale,
    good,
    bad,
    incr_every_n_steps,
    decr_every_n_nan_or_inf,
    incr_ratio,
    decr_ratio,
):
    lowers = has_infinite & (bad + 1 > decr_every_n_nan_or_inf)
    raises = ~has_infinite & (good + 1 > incr_every_n_steps)
    larger, smaller = scale * incr_ratio, torch.clamp(scale * decr_ratio, min=1)
    larger = torch.where(torch.isfinite(larger), larger, scale)
    goods = torch.where(has_infinite | raises, 0, good + 1)
    bads = torch.where(has_infinite & ~lowers, bad + 1, 0)
    return torch.where(lowers, smaller, torch.where(raises, larger, scale)), goods, bads

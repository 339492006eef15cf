"""Optimizer updates: one pass over memory for each (numba).

A pass applies a formula of `base.optimizers` to the gradient that it forms: rows of ``grads``
(one per contributor, beginning at ``starts``) are added in that order and multiplied by ``scale``,
a cache-sized chunk at a time, so that a parameter cut into blocks moves as the whole would.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base import optimizers
from hpcdist.base.jit import as_tuple, jit
from hpcdist.base.update_rules import RULES, compiled, elementwise

lamb_rate, lamb_rule = compiled(optimizers.lamb_rate), compiled(optimizers.lamb_rule)
lars_rate, lars_rule = compiled(optimizers.lars_rate), compiled(optimizers.lars_rule)
sgd_rule = RULES["sgd"].step
ONE = optimizers.ONE
CHUNK = 1024  # elements whose gradient is formed at once: stays in the first-level cache


@jit
def _total(grads, starts, begin, out):
    """Return elements begin.. of the sum of rows, in their order: one row itself, not copied."""
    n = len(out)
    first = grads[starts[0] + begin : starts[0] + begin + n]
    if len(starts) == 1:
        return first
    second = grads[starts[1] + begin : starts[1] + begin + n]
    for i in range(n):
        out[i] = first[i] + second[i]
    for k in range(2, len(starts)):
        row = grads[starts[k] + begin : starts[k] + begin + n]
        for i in range(n):
            out[i] += row[i]
    return out


@jit
def _norm(x):
    """Return the Euclidean norm: eight sums in double precision, the same on every machine."""
    s = np.zeros(8)
    vector_end = len(x) // 8 * 8
    for i in range(0, vector_end, 8):
        for k in range(8):
            s[k] += np.float64(x[i + k]) * np.float64(x[i + k])
    for i in range(vector_end, len(x)):
        s[0] += np.float64(x[i]) * np.float64(x[i])
    out = np.empty(1, x.dtype)
    out[0] = np.sqrt(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])))
    return out[0]


# -- passes over memory --------------------------------------------------------------------------
# Each: (param, grads, starts, lr, hyper, state), all flat and contiguous; lr holds one
# element, hyper the scale and the formula's constants, state a tuple of arrays: those as long as
# the parameter, then powers of beta, one element each.


@jit
def _plain_rate(rate):
    return rate


@jit
def _no_powers(state):
    return ()


@jit
def _one_power(state):
    return (state[2][0],)


@jit
def _two_powers(state):
    return state[2][0], state[3][0]


_POWERS = [_no_powers, _one_power, _two_powers]


@jit
def _keep_powers(state, hyper):
    pass


def _next_powers(times):
    """Make the step of two powers of beta: each times a constant, at its place in ``times``."""
    first, second = (1 + place for place in times)

    def move(state, hyper):
        state[2][0] *= hyper[first]
        state[3][0] *= hyper[second]

    return jit(move)


_next_lamb_powers = _next_powers((0, 2))


@jit
def _as_given(hyper, powers):
    return hyper[1:]


def _with_last(last):
    """Make a function that gives a step its constants, the last one from powers of beta."""

    def constants_of(hyper, powers):
        constants = hyper[1:].copy()
        constants[-1] = last(constants[-1], *powers)
        return constants

    return jit(constants_of)


@jit
def _no_states(state, begin, end):
    return ()


@jit
def _one_state(state, begin, end):
    return (state[0][begin:end],)


@jit
def _two_states(state, begin, end):
    return state[0][begin:end], state[1][begin:end]


@jit
def _three_states(state, begin, end):
    return state[0][begin:end], state[1][begin:end], state[2][begin:end]


_CUTS = [_no_states, _one_state, _two_states, _three_states]


def _update_pass(name):
    """Return the pass that moves a parameter by a rule, element by element."""
    rule = RULES[name]
    loop, constants, cut = elementwise(rule), rule.constants, _CUTS[rule.states]
    rate_of, powers_of = rule.rate or _plain_rate, _POWERS[rule.powers]
    finish = _next_powers(rule.times) if rule.times else _keep_powers
    constants_of = _as_given if rule.last is None else _with_last(rule.last)

    def update(param, grads, starts, lr, hyper, state):
        powers, scale = powers_of(state), hyper[0]
        rate = rate_of(lr[0], *powers)
        fixed = as_tuple(constants_of(hyper, powers), constants)
        buffer = np.empty(CHUNK, param.dtype)
        for begin in range(0, len(param), CHUNK):
            end = min(begin + CHUNK, len(param))
            g = _total(grads, starts, begin, buffer[: end - begin])
            parts = cut(state, begin, end)
            loop(param[begin:end], g, parts, end - begin, scale, rate, fixed)
        finish(state, hyper)

    return jit(update)


@jit
def lars_momentum(param, grads, starts, lr, hyper, state):
    """Update a flat parameter by LARS; ``hyper`` is (scale, mu, coeff, decay)."""
    (velocity,) = state
    mu, coeff, decay = hyper[1], hyper[2], hyper[3]
    g = _total(grads, starts, 0, np.empty_like(param)) * hyper[0]
    rate = lars_rate(lr[0], coeff, decay, _norm(param), _norm(g))
    for i in range(len(param)):
        param[i], velocity[i] = lars_rule(param[i], g[i], velocity[i], rate, mu, decay)


@jit
def _move_by_lamb(param, grads, starts, lr, hyper, state, wholes):
    """Update a flat parameter by LAMB; ``hyper`` is (scale, beta1, 1 - beta1, beta2, ...)."""
    moment1, moment2 = state[0], state[1]
    constants = as_tuple(hyper[1:], 6)
    g = _total(grads, starts, 0, np.empty_like(param)) * hyper[0]
    for i in range(len(param)):
        g[i], moment1[i], moment2[i] = lamb_rule(
            param[i], g[i], moment1[i], moment2[i], *wholes, *constants
        )
    rate = lamb_rate(lr[0], hyper[7], _norm(param), _norm(g))
    for i in range(len(param)):
        param[i] -= rate * g[i]


@jit
def lamb(param, grads, starts, lr, hyper, state):
    """Update a flat parameter by Fluid's LAMB."""
    _move_by_lamb(param, grads, starts, lr, hyper, state, (ONE, ONE))


@jit
def unbiased_lamb(param, grads, starts, lr, hyper, state):
    """Update a flat parameter by Paddle 2's LAMB, and its powers of beta."""
    wholes = ONE - state[2][0], ONE - state[3][0]
    _move_by_lamb(param, grads, starts, lr, hyper, state, wholes)
    _next_lamb_powers(state, hyper)


@jit
def sgd_rows(param, rows, values, scale, lr):
    """Subtract row by row, repeats included; ``values`` is [rows, width], ``param`` flat."""
    rate, width = lr[0], values.shape[1]
    for k in range(len(rows)):
        begin = rows[k] * width
        if not 0 <= begin < len(param):
            raise IndexError("sparse gradient: a row lies outside the table")
        p, g = param[begin : begin + width], values[k]
        for i in range(width):
            p[i] = sgd_rule(p[i], g[i] * scale, rate)


PASSES = {name: _update_pass(name) for name in RULES}
PASSES |= {"lars_momentum": lars_momentum, "lamb": lamb, "unbiased_lamb": unbiased_lamb}

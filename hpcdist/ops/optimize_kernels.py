"""Optimizer updates: one pass over memory for each (numba).

A pass applies a formula of `hpcdist.update_rules` and forms the gradient: rows of ``grads`` (one
per contributor, beginning at ``starts``) are added in that order and multiplied by ``scale``, a
cache-sized chunk at a time, so that a parameter cut into blocks moves as the whole would.
"""

from __future__ import annotations

import numpy as np

from hpcdist.ops.jit import jit
from hpcdist.update_rules import (
    adadelta_rule,
    adagrad_rule,
    adam_rate,
    adam_rule,
    adamax_rate,
    adamax_rule,
    centered_rmsprop_rule,
    decayed_adagrad_rule,
    ftrl_rule,
    lamb_rate,
    lamb_rule,
    lars_rate,
    lars_rule,
    momentum_rule,
    nesterov_rule,
    rmsprop_rule,
    sgd_rule,
    sqrt_ftrl_rule,
)

CHUNK = 1024  # elements whose gradient is formed at once: stays in the first-level cache


@jit
def _gradient(grads, starts, scale, begin, out):
    """Write elements begin.. of the scaled sum of rows into ``out`` and return it."""
    n = len(out)
    first = grads[starts[0] + begin : starts[0] + begin + n]
    if len(starts) == 1:
        for i in range(n):
            out[i] = first[i] * scale[0]
        return out
    second = grads[starts[1] + begin : starts[1] + begin + n]
    if len(starts) == 2:
        for i in range(n):
            out[i] = (first[i] + second[i]) * scale[0]
        return out
    for i in range(n):
        out[i] = first[i] + second[i]
    for k in range(2, len(starts)):
        row = grads[starts[k] + begin : starts[k] + begin + n]
        for i in range(n):
            out[i] += row[i]
    for i in range(n):
        out[i] *= scale[0]
    return out


@jit
def _norm(x):
    """Return the Euclidean norm: eight sums in double precision, the same on every machine."""
    s = np.zeros(8)
    whole = len(x) // 8 * 8
    for i in range(0, whole, 8):
        for k in range(8):
            s[k] += np.float64(x[i + k]) * np.float64(x[i + k])
    for i in range(whole, len(x)):
        s[0] += np.float64(x[i]) * np.float64(x[i])
    out = np.empty(1, x.dtype)
    out[0] = np.sqrt(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])))
    return out[0]


# -- passes over memory --------------------------------------------------------------------------
# Each: (param, grads, starts, scale, lr, hyper, *state), all flat and contiguous; scale and lr hold
# one element, hyper the formula's constants.


@jit
def sgd(param, grads, starts, scale, lr, hyper):
    rate = lr[0]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i] = sgd_rule(p[i], g[i], rate)


@jit
def momentum(param, grads, starts, scale, lr, hyper, velocity):
    rate = lr[0]
    mu = hyper[0]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        v = velocity[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], v[i] = momentum_rule(p[i], g[i], v[i], rate, mu)


@jit
def nesterov(param, grads, starts, scale, lr, hyper, velocity):
    rate = lr[0]
    mu = hyper[0]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        v = velocity[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], v[i] = nesterov_rule(p[i], g[i], v[i], rate, mu)


@jit
def adagrad(param, grads, starts, scale, lr, hyper, moment):
    rate = lr[0]
    epsilon = hyper[0]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        m = moment[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], m[i] = adagrad_rule(p[i], g[i], m[i], rate, epsilon)


@jit
def decayed_adagrad(param, grads, starts, scale, lr, hyper, moment):
    rate = lr[0]
    decay, rest, epsilon = hyper[0], hyper[1], hyper[2]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        m = moment[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], m[i] = decayed_adagrad_rule(p[i], g[i], m[i], rate, decay, rest, epsilon)


@jit
def adam(param, grads, starts, scale, lr, hyper, moment1, moment2, power1, power2):
    rate = adam_rate(lr[0], power1[0], power2[0])
    beta1, rest1, beta2, rest2, epsilon = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        m = moment1[begin : begin + CHUNK]
        v = moment2[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], m[i], v[i] = adam_rule(
                p[i], g[i], m[i], v[i], rate, beta1, rest1, beta2, rest2, epsilon
            )
    power1[0] *= beta1
    power2[0] *= beta2


@jit
def adamax(param, grads, starts, scale, lr, hyper, moment, inf_norm, power1):
    rate = adamax_rate(lr[0], power1[0])
    beta1, rest1, beta2, epsilon = hyper[0], hyper[1], hyper[2], hyper[3]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        m = moment[begin : begin + CHUNK]
        u = inf_norm[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], m[i], u[i] = adamax_rule(
                p[i], g[i], m[i], u[i], rate, beta1, rest1, beta2, epsilon
            )


@jit
def rmsprop(param, grads, starts, scale, lr, hyper, moment, mean_square, mean_grad):
    rate = lr[0]
    rho, rest, epsilon, momentum = hyper[0], hyper[1], hyper[2], hyper[3]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        mom = moment[begin : begin + CHUNK]
        ms = mean_square[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], mom[i], ms[i] = rmsprop_rule(
                p[i], g[i], mom[i], ms[i], rate, rho, rest, epsilon, momentum
            )


@jit
def centered_rmsprop(param, grads, starts, scale, lr, hyper, moment, mean_square, mean_grad):
    rate = lr[0]
    rho, rest, epsilon, momentum = hyper[0], hyper[1], hyper[2], hyper[3]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        mom = moment[begin : begin + CHUNK]
        ms = mean_square[begin : begin + CHUNK]
        mg = mean_grad[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], mom[i], ms[i], mg[i] = centered_rmsprop_rule(
                p[i], g[i], mom[i], ms[i], mg[i], rate, rho, rest, epsilon, momentum
            )


@jit
def ftrl(param, grads, starts, scale, lr, hyper, squared, linear):
    rate = lr[0]
    l1, twice_l2, power = hyper[0], hyper[1], hyper[2]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        n = squared[begin : begin + CHUNK]
        z = linear[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], n[i], z[i] = ftrl_rule(p[i], g[i], n[i], z[i], rate, l1, twice_l2, power)


@jit
def sqrt_ftrl(param, grads, starts, scale, lr, hyper, squared, linear):
    rate = lr[0]
    l1, twice_l2 = hyper[0], hyper[1]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        n = squared[begin : begin + CHUNK]
        z = linear[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], n[i], z[i] = sqrt_ftrl_rule(p[i], g[i], n[i], z[i], rate, l1, twice_l2)


@jit
def adadelta(param, grads, starts, scale, lr, hyper, squares, updates):
    rho, rest, epsilon = hyper[0], hyper[1], hyper[2]
    buffer = np.empty(CHUNK, param.dtype)
    for begin in range(0, len(param), CHUNK):
        p = param[begin : begin + CHUNK]
        s = squares[begin : begin + CHUNK]
        u = updates[begin : begin + CHUNK]
        g = _gradient(grads, starts, scale, begin, buffer[: len(p)])
        for i in range(len(p)):
            p[i], s[i], u[i] = adadelta_rule(p[i], g[i], s[i], u[i], rho, rest, epsilon)


@jit
def lars_momentum(param, grads, starts, scale, lr, hyper, velocity):
    mu, coeff, decay = hyper[0], hyper[1], hyper[2]
    g = _gradient(grads, starts, scale, 0, np.empty_like(param))
    rate = lars_rate(lr[0], coeff, decay, _norm(param), _norm(g))
    for i in range(len(param)):
        param[i], velocity[i] = lars_rule(param[i], g[i], velocity[i], rate, mu, decay)


@jit
def lamb(param, grads, starts, scale, lr, hyper, moment1, moment2, power1, power2):
    beta1, rest1, beta2, rest2 = hyper[0], hyper[1], hyper[2], hyper[3]
    epsilon, decay = hyper[4], hyper[5]
    g = _gradient(grads, starts, scale, 0, np.empty_like(param))
    for i in range(len(param)):
        g[i], moment1[i], moment2[i] = lamb_rule(
            param[i], g[i], moment1[i], moment2[i],
            beta1, rest1, beta2, rest2, epsilon, decay,
        )  # fmt: skip
    rate = lamb_rate(lr[0], _norm(param), _norm(g))
    for i in range(len(param)):
        param[i] -= rate * g[i]


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

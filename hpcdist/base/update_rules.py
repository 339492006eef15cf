"""The formulas of the optimizers, each once: (p, g, *state, lr, *constants) -> (p, *state).

They take and return numbers; called on arrays they work element by element too. All arithmetic is
in the parameter's element type, in Fluid's order (paddle/fluid/operators/optimizers of 1.8).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.extending import overload

from hpcdist.base.jit import inlined, jit

ONE = np.float32(1)  # as a literal, it would turn single precision into double


def where(condition, chosen, other):
    """Return ``chosen`` where the condition holds, else ``other``: of arrays or numbers."""
    return np.where(condition, chosen, other)


@overload(where)
def _where_of_numbers(condition, chosen, other):  # numba's np.where makes arrays of numbers
    return lambda condition, chosen, other: chosen if condition else other


@jit
def sgd_rule(p, g, lr):
    """p' = p - lr g."""
    return p - lr * g


@jit
def momentum_rule(p, g, v, lr, mu):
    """v' = mu v + g;  p' = p - lr v'."""
    v = v * mu + g
    return p - lr * v, v


@jit
def nesterov_rule(p, g, v, lr, mu):
    """v' = mu v + g;  p' = p - lr (g + mu v')."""
    v = v * mu + g
    return p - (g + v * mu) * lr, v


@jit
def adagrad_rule(p, g, m, lr, epsilon):
    """m' = m + g^2;  p' = p - lr g / (sqrt(m') + epsilon)  (Duchi et al., 2011)."""
    m = m + g * g
    return p - lr * g / (np.sqrt(m) + epsilon), m


@jit
def decayed_adagrad_rule(p, g, m, lr, decay, rest, epsilon):
    """m' = decay m + (1 - decay) g^2;  p' = p - lr g / (sqrt(m') + epsilon)."""
    m = decay * m + rest * g * g
    return p - lr * g / (np.sqrt(m) + epsilon), m


@jit
def adam_rate(lr, power1, power2):
    """lr sqrt(1 - beta2^t) / (1 - beta1^t); the powers are given  (Kingma and Ba, 2015)."""
    return lr * (np.sqrt(ONE - power2) / (ONE - power1))


@jit
def adam_epsilon(epsilon, power1, power2):
    """epsilon sqrt(1 - beta2^t): Paddle 2 adds epsilon to the root of the corrected moment."""
    return epsilon * np.sqrt(ONE - power2)


@jit
def adam_rule(p, g, m, v, lr, beta1, rest1, beta2, rest2, epsilon):
    """m' = b1 m + (1 - b1) g;  v' = b2 v + (1 - b2) g^2;  p' = p - lr m' / (sqrt(v') + epsilon)."""
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return p - lr * (m / (np.sqrt(v) + epsilon)), m, v


@jit
def adamax_rate(lr, power1):
    """lr / (1 - beta1^t); the power is given."""
    return lr / (ONE - power1)


@jit
def adamax_rule(p, g, m, u, lr, beta1, rest1, beta2, epsilon):
    """m' = b1 m + (1 - b1) g;  u' = max(|g|, b2 u + epsilon);  p' = p - lr m' / u'."""
    m = beta1 * m + rest1 * g
    u = np.maximum(np.abs(g), beta2 * u + epsilon)
    return p - lr * (m / u), m, u


@jit
def rmsprop_rule(p, g, mom, ms, lr, rho, rest, epsilon, momentum):
    """s' = rho s + (1 - rho) g^2;  v' = momentum v + lr g / sqrt(s' + epsilon);  p' = p - v'."""
    ms = rho * ms + rest * g * g
    mom = momentum * mom + lr * g / np.sqrt(ms + epsilon)
    return p - mom, mom, ms


@jit
def centered_rmsprop_rule(p, g, mom, ms, mg, lr, rho, rest, epsilon, momentum):
    """As rmsprop, with s' - (rho mean + (1 - rho) g)^2 in place of s'."""
    ms = rho * ms + rest * g * g
    mg = rho * mg + rest * g
    mom = momentum * mom + lr * g / np.sqrt(ms - mg * mg + epsilon)
    return p - mom, mom, ms, mg


@jit
def ftrl_rule(p, g, n, z, lr, l1, twice_l2, power):
    """n' = n + g^2;  z' = z + g - p (n'^power - n^power) / lr  (McMahan et al., 2013);
    p' = (l1 sign(z') - z') / (n'^power / lr + 2 l2) where |z'| > l1, else 0.

    ``power`` is minus Fluid's lr_power; 0.5 is the usual square root.
    """
    m = n + g * g
    root, new_root = n**power, m**power
    z = z + (g - (new_root - root) / lr * p)
    shrunk = (l1 * np.sign(z) - z) / (new_root / lr + twice_l2)
    return where(np.abs(z) > l1, shrunk, p - p), m, z


@jit
def sqrt_ftrl_rule(p, g, n, z, lr, l1, twice_l2):
    """ftrl with the power 1/2."""
    m = n + g * g
    new_root = np.sqrt(m)
    z = z + (g - (new_root - np.sqrt(n)) / lr * p)
    shrunk = (l1 * np.sign(z) - z) / (new_root / lr + twice_l2)
    return where(np.abs(z) > l1, shrunk, p - p), m, z


@jit
def lars_rate(lr, coeff, decay, p_norm, g_norm):
    """lr coeff |p| / (|g| + decay |p|);  lr itself while |p| or |g| is 0."""
    below = g_norm + decay * p_norm
    rate = lr * coeff * p_norm / where(below > 0, below, ONE)
    return where((p_norm > 0) & (g_norm > 0), rate, lr)


@jit
def lars_rule(p, g, v, lr, mu, decay):
    """v' = mu v + lr (g + decay p);  p' = p - v'  (You et al., 2017)."""
    v = v * mu + lr * (g + decay * p)
    return p - v, v


@jit
def lamb_rule(p, g, m, v, beta1, rest1, beta2, rest2, epsilon, decay):
    """m' = b1 m + (1 - b1) g;  v' = b2 v + (1 - b2) g^2;
    step = m' / (sqrt(v') + epsilon) + decay p  (You et al., 2020).

    The layer's rate multiplies the step. Fluid corrects no bias.
    """
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return m / (np.sqrt(v) + epsilon) + decay * p, m, v


@jit
def lamb_rate(lr, p_norm, step_norm):
    """lr |p| / |step|, each norm 1 if one of them is 0  (You et al., 2020)."""
    both_positive = (p_norm > 0) & (step_norm > 0)
    return lr * where(both_positive, p_norm, ONE) / where(both_positive, step_norm, ONE)


@jit
def adadelta_rule(p, g, squares, updates, lr, rho, rest, epsilon):
    """s' = rho s + (1 - rho) g^2;  d = -sqrt((u + epsilon) / (s' + epsilon)) g;
    u' = rho u + (1 - rho) d^2;  p' = p - sqrt((u' + epsilon) / (s' + epsilon)) g (Zeiler, 2012).
    With u' and not u, as Fluid's kernel, which writes it first. ``lr`` is not used.
    """
    squares = rho * squares + rest * g * g
    update = -np.sqrt((updates + epsilon) / (squares + epsilon)) * g
    updates = rho * updates + rest * update * update
    return p - np.sqrt((updates + epsilon) / (squares + epsilon)) * g, squares, updates


@dataclass(frozen=True)
class Rule:
    """A formula, how many states it moves, and the rate it takes: (lr, *powers of beta) -> rate."""

    formula: Any
    states: int
    rate: Any = None  # None: the learning rate itself
    last: Any = None  # what makes the last constant of a step from it and the powers of beta

    @property
    def powers(self) -> int:
        """How many powers of beta the rate is made from: states after those it moves."""
        return 0 if self.rate is None else len(inspect.signature(self.rate.py_func).parameters) - 1

    @property
    def constants(self) -> int:
        """How many constants the formula takes."""
        return len(inspect.signature(self.formula.py_func).parameters) - 3 - self.states


RULES = {
    "sgd": Rule(sgd_rule, 0),
    "momentum": Rule(momentum_rule, 1),
    "nesterov": Rule(nesterov_rule, 1),
    "adagrad": Rule(adagrad_rule, 1),
    "decayed_adagrad": Rule(decayed_adagrad_rule, 1),
    "adam": Rule(adam_rule, 2, adam_rate),
    "scaled_adam": Rule(adam_rule, 2, adam_rate, adam_epsilon),
    "adamax": Rule(adamax_rule, 2, adamax_rate),
    "rmsprop": Rule(rmsprop_rule, 2),
    "centered_rmsprop": Rule(centered_rmsprop_rule, 3),
    "ftrl": Rule(ftrl_rule, 2),
    "sqrt_ftrl": Rule(sqrt_ftrl_rule, 2),
    "adadelta": Rule(adadelta_rule, 2),
}


def elementwise(rule: Rule) -> Any:
    """Return the compiled loop (p, g, states, n, scale, rate, constants) that moves n elements.

    ``g`` is multiplied by ``scale``; ``states`` and ``constants`` are tuples.
    """
    formula = rule.formula

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

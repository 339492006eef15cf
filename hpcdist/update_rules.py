"""The formulas of the optimizers, each once: (p, g, *state, lr, *constants) -> (p, *state).

They take and return numbers; called on arrays they work element by element too. All arithmetic is
in the parameter's element type, in Fluid's order. numba does not notice that a formula has changed
when it looks for a pass that was compiled before: after a change here, clear __pycache__.
"""

from __future__ import annotations

import numpy as np

from hpcdist.jit import jit

ONE = np.float32(1)  # as a literal, it would turn single precision into double


@jit
def sgd_rule(p, g, lr):
    return p - lr * g


@jit
def momentum_rule(p, g, v, lr, mu):
    v = v * mu + g
    return p - lr * v, v


@jit
def nesterov_rule(p, g, v, lr, mu):
    v = v * mu + g
    return p - (g + v * mu) * lr, v


@jit
def adagrad_rule(p, g, m, lr, epsilon):
    m = m + g * g
    return p - lr * g / (np.sqrt(m) + epsilon), m


@jit
def decayed_adagrad_rule(p, g, m, lr, decay, rest, epsilon):
    m = decay * m + rest * g * g
    return p - lr * g / (np.sqrt(m) + epsilon), m


@jit
def adam_rate(lr, power1, power2):
    return lr * (np.sqrt(ONE - power2) / (ONE - power1))


@jit
def adam_rule(p, g, m, v, lr, beta1, rest1, beta2, rest2, epsilon):
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return p - lr * (m / (np.sqrt(v) + epsilon)), m, v


@jit
def adamax_rate(lr, power1):
    return lr / (ONE - power1)


@jit
def adamax_rule(p, g, m, u, lr, beta1, rest1, beta2, epsilon):
    m = beta1 * m + rest1 * g
    u = np.maximum(np.abs(g), beta2 * u + epsilon)
    return p - lr * (m / u), m, u


@jit
def rmsprop_rule(p, g, mom, ms, lr, rho, rest, epsilon, momentum):
    ms = rho * ms + rest * g * g
    mom = momentum * mom + lr * g / np.sqrt(ms + epsilon)
    return p - mom, mom, ms


@jit
def centered_rmsprop_rule(p, g, mom, ms, mg, lr, rho, rest, epsilon, momentum):
    ms = rho * ms + rest * g * g
    mg = rho * mg + rest * g
    mom = momentum * mom + lr * g / np.sqrt(ms - mg * mg + epsilon)
    return p - mom, mom, ms, mg


@jit
def ftrl_rule(p, g, n, z, lr, l1, twice_l2, power):
    """``power`` is minus Fluid's lr_power; 0.5 is the usual square root."""
    m = n + g * g
    root, new_root = n**power, m**power
    z = z + (g - (new_root - root) / lr * p)
    shrunk = (l1 * np.sign(z) - z) / (new_root / lr + twice_l2)
    return np.where(np.abs(z) > l1, shrunk, p - p), m, z


@jit
def sqrt_ftrl_rule(p, g, n, z, lr, l1, twice_l2):
    m = n + g * g
    new_root = np.sqrt(m)
    z = z + (g - (new_root - np.sqrt(n)) / lr * p)
    shrunk = (l1 * np.sign(z) - z) / (new_root / lr + twice_l2)
    return np.where(np.abs(z) > l1, shrunk, p - p), m, z


@jit
def lars_rate(lr, coeff, decay, p_norm, g_norm):
    """Return the layer's own rate: ``lr`` itself while parameter or gradient is zero."""
    below = g_norm + decay * p_norm
    own = lr * coeff * p_norm / np.where(below > 0, below, ONE)
    return np.where((p_norm > 0) & (g_norm > 0), own, lr)


@jit
def lars_rule(p, g, v, lr, mu, decay):
    v = v * mu + lr * (g + decay * p)
    return p - v, v


@jit
def lamb_rule(p, g, m, v, beta1, rest1, beta2, rest2, epsilon, decay):
    """Return the step before the layer's rate, and the moments; Fluid corrects no bias."""
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return m / (np.sqrt(v) + epsilon) + decay * p, m, v


@jit
def lamb_rate(lr, p_norm, step_norm):
    known = (p_norm > 0) & (step_norm > 0)
    return lr * np.where(known, p_norm, ONE) / np.where(known, step_norm, ONE)


@jit
def adadelta_rule(p, g, squares, updates, rho, rest, epsilon):
    squares = rho * squares + rest * g * g
    update = -np.sqrt((updates + epsilon) / (squares + epsilon)) * g
    updates = rho * updates + rest * update * update
    return p + update, squares, updates

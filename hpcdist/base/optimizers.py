"""The optimizers, each declared once: formula, state, arguments, and what it may move alone.

Formulas are (p, g, *state, lr, *constants) -> (p, *state). They take and return numbers; called on
arrays they work element by element too. All arithmetic is in the parameter's element type, in
Fluid's order (paddle/fluid/operators/optimizers of 1.8). `update_rules` compiles them; operators,
their forms, classes, servers and rows of tables read the declarations in `OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.optimizer_kind import Accumulator, Argument, Attrs, Formula, OptimizerKind

ONE = np.float32(1)  # as a literal, it would turn single precision into double
_VELOCITY = (Accumulator("Velocity", "velocity"),)
_EPSILON = {"epsilon": Argument(1e-6)}
_BETAS = {
    "beta1": Argument(0.9, below_1=True),
    "beta2": Argument(0.999, below_1=True),
    "epsilon": Argument(1e-8),
}
_GIVEN_BETAS = {f"beta{n}": replace(_BETAS[f"beta{n}"], given=f"Beta{n}Tensor") for n in (1, 2)}


def where(condition, chosen, other):
    """Return ``chosen`` where the condition holds, else ``other``: of arrays or numbers."""
    return np.where(condition, chosen, other)


def _always(value: str) -> Callable[[Attrs], str]:
    return lambda attrs: value


def _moments(a: Attrs, f: Any) -> Sequence[float]:
    beta1, beta2 = f(a["beta1"]), f(a["beta2"])
    return beta1, f(1) - beta1, beta2, f(1) - beta2, a["epsilon"]


def _adam_states(out: str | None) -> tuple[Accumulator, ...]:
    """Return Adam's moments and its powers of beta, which may be read only."""
    return (
        Accumulator("Moment1", "moment1"),
        Accumulator("Moment2", "moment2"),
        Accumulator("Beta1Pow", "beta1_pow_acc", out, power="beta1"),
        Accumulator("Beta2Pow", "beta2_pow_acc", out, power="beta2"),
    )


def sgd_rule(p, g, lr):
    """p' = p - lr g."""
    return p - lr * g


SGD = OptimizerKind(
    "sgd",
    "SGD",
    formulas={"sgd": Formula(sgd_rule, 0)},
    hyper=lambda a, f: (),
    sparse=_always("each"),
    rows=True,
)


def momentum_rule(p, g, v, lr, mu):
    """v' = mu v + g;  p' = p - lr v'."""
    v = v * mu + g
    return p - lr * v, v


def nesterov_rule(p, g, v, lr, mu):
    """v' = mu v + g;  p' = p - lr (g + mu v')."""
    v = v * mu + g
    return p - (g + v * mu) * lr, v


MOMENTUM = OptimizerKind(
    "momentum",
    "Momentum",
    states=_VELOCITY,
    arguments={"momentum": Argument(0.9, "mu", required=True), "use_nesterov": Argument(False)},
    formulas={"momentum": Formula(momentum_rule, 1), "nesterov": Formula(nesterov_rule, 1)},
    hyper=lambda a, f: (a["mu"],),
    choose=lambda a: "nesterov" if a["use_nesterov"] else "momentum",
    sparse=_always("all"),
    rows=True,
)


def adagrad_rule(p, g, m, lr, epsilon):
    """m' = m + g^2;  p' = p - lr g / (sqrt(m') + epsilon)  (Duchi et al., 2011)."""
    m = m + g * g
    return p - lr * g / (np.sqrt(m) + epsilon), m


ADAGRAD = OptimizerKind(
    "adagrad",
    "Adagrad",
    states=(Accumulator("Moment", "moment", first="initial_accumulator_value"),),
    arguments={
        **_EPSILON,
        "initial_accumulator_value": Argument(0.0, "initial_moment", of_operator=False),
    },
    formulas={"adagrad": Formula(adagrad_rule, 1)},
    hyper=lambda a, f: (a["epsilon"],),
    sparse=_always("listed"),
    rows=True,
)


def decayed_adagrad_rule(p, g, m, lr, decay, rest, epsilon):
    """m' = decay m + (1 - decay) g^2;  p' = p - lr g / (sqrt(m') + epsilon)."""
    m = decay * m + rest * g * g
    return p - lr * g / (np.sqrt(m) + epsilon), m


DECAYED_ADAGRAD = OptimizerKind(
    "decayed_adagrad",
    "DecayedAdagrad",
    states=(Accumulator("Moment", "moment"),),
    arguments={"decay": Argument(0.95), **_EPSILON},
    formulas={"decayed_adagrad": Formula(decayed_adagrad_rule, 1)},
    hyper=lambda a, f: (a["decay"], f(1) - f(a["decay"]), a["epsilon"]),
)


def adadelta_rule(p, g, squares, updates, lr, rho, rest, epsilon):
    """s' = rho s + (1 - rho) g^2;  d = -sqrt((u + epsilon) / (s' + epsilon)) g;
    u' = rho u + (1 - rho) d^2;  p' = p - sqrt((u' + epsilon) / (s' + epsilon)) g (Zeiler, 2012).
    With u' and not u, as Fluid's kernel, which writes it first. ``lr`` is not used.
    """
    squares = rho * squares + rest * g * g
    update = -np.sqrt((updates + epsilon) / (squares + epsilon)) * g
    updates = rho * updates + rest * update * update
    return p - np.sqrt((updates + epsilon) / (squares + epsilon)) * g, squares, updates


def rated_adadelta_rule(p, g, squares, updates, lr, rho, rest, epsilon):
    """As adadelta, with p' = p - lr sqrt((u + epsilon) / (s' + epsilon)) g: Paddle 2's kernel."""
    squares = rho * squares + rest * g * g
    update = np.sqrt((updates + epsilon) / (squares + epsilon)) * g
    return p - lr * update, squares, rho * updates + rest * update * update


ADADELTA = OptimizerKind(
    "adadelta",
    "Adadelta",
    states=(
        Accumulator("AvgSquaredGrad", "_avg_squared_grad"),
        Accumulator("AvgSquaredUpdate", "_avg_squared_update"),
    ),
    arguments={**_EPSILON, "rho": Argument(0.95)},
    formulas={"adadelta": Formula(adadelta_rule, 2)},
    hyper=lambda a, f: (a["rho"], f(1) - f(a["rho"]), a["epsilon"]),
    has_rate=False,
)
RATED_ADADELTA = replace(
    ADADELTA,
    type="rated_adadelta",
    name="RatedAdadelta",
    formulas={"rated_adadelta": Formula(rated_adadelta_rule, 2)},
    has_rate=True,
    of_fluid=False,
)


def adam_rate(lr, power1, power2):
    """lr sqrt(1 - beta2^t) / (1 - beta1^t); the powers are given  (Kingma and Ba, 2015)."""
    return lr * (np.sqrt(ONE - power2) / (ONE - power1))


def adam_epsilon(epsilon, power1, power2):
    """epsilon sqrt(1 - beta2^t): Paddle 2 adds epsilon to the root of the corrected moment."""
    return epsilon * np.sqrt(ONE - power2)


def adam_rule(p, g, m, v, lr, beta1, rest1, beta2, rest2, epsilon):
    """m' = b1 m + (1 - b1) g;  v' = b2 v + (1 - b2) g^2;  p' = p - lr m' / (sqrt(v') + epsilon)."""
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return p - lr * (m / (np.sqrt(v) + epsilon)), m, v


ADAM = OptimizerKind(
    "adam",
    "Adam",
    states=_adam_states(out=""),
    arguments={**_BETAS, **_GIVEN_BETAS, "lazy_mode": Argument(False)},
    more_attrs={"min_row_size_to_use_multithread": 1000, "scaled_epsilon": False},
    formulas={
        "adam": Formula(adam_rule, 2, adam_rate, times=(0, 2)),
        "scaled_adam": Formula(adam_rule, 2, adam_rate, adam_epsilon, times=(0, 2)),
    },
    hyper=_moments,
    choose=lambda a: "scaled_adam" if a["scaled_epsilon"] else "adam",
    sparse=lambda a: "listed" if a["lazy_mode"] else "all",
    rows=True,
)


def adamax_rate(lr, power1):
    """lr / (1 - beta1^t); the power is given."""
    return lr / (ONE - power1)


def adamax_rule(p, g, m, u, lr, beta1, rest1, beta2, epsilon):
    """m' = b1 m + (1 - b1) g;  u' = max(|g|, b2 u + epsilon);  p' = p - lr m' / u'."""
    m = beta1 * m + rest1 * g
    u = np.maximum(np.abs(g), beta2 * u + epsilon)
    return p - lr * (m / u), m, u


ADAMAX = OptimizerKind(
    "adamax",
    "Adamax",
    states=(
        Accumulator("Moment", "moment"),
        Accumulator("InfNorm", "inf_norm"),
        Accumulator("Beta1Pow", "beta1_pow_acc", out=None, power="beta1"),
    ),
    arguments=_BETAS,
    formulas={"adamax": Formula(adamax_rule, 2, adamax_rate)},
    hyper=lambda a, f: (f(a["beta1"]), f(1) - f(a["beta1"]), a["beta2"], a["epsilon"]),
    rows=True,
)


def rmsprop_rule(p, g, mom, ms, lr, rho, rest, epsilon, momentum):
    """s' = rho s + (1 - rho) g^2;  v' = momentum v + lr g / sqrt(s' + epsilon);  p' = p - v'."""
    ms = rho * ms + rest * g * g
    mom = momentum * mom + lr * g / np.sqrt(ms + epsilon)
    return p - mom, mom, ms


def centered_rmsprop_rule(p, g, mom, ms, mg, lr, rho, rest, epsilon, momentum):
    """As rmsprop, with s' - (rho mean + (1 - rho) g)^2 in place of s'."""
    ms = rho * ms + rest * g * g
    mg = rho * mg + rest * g
    mom = momentum * mom + lr * g / np.sqrt(ms - mg * mg + epsilon)
    return p - mom, mom, ms, mg


RMSPROP = OptimizerKind(
    "rmsprop",
    "RMSProp",
    states=(
        Accumulator("Moment", "momentum"),
        Accumulator("MeanSquare", "mean_square"),
        Accumulator("MeanGrad", "mean_grad", in_rows="mean_gradient", optional=True),
    ),
    arguments={
        "rho": Argument(0.95, "decay"),
        **_EPSILON,
        "momentum": Argument(0.0),
        "centered": Argument(False),
    },
    formulas={
        "rmsprop": Formula(rmsprop_rule, 2),
        "centered_rmsprop": Formula(centered_rmsprop_rule, 3),
    },
    hyper=lambda a, f: (a["decay"], f(1) - f(a["decay"]), a["epsilon"], a["momentum"]),
    choose=lambda a: "centered_rmsprop" if a["centered"] else "rmsprop",
    sparse=_always("all"),
    rows=True,
)


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


def sqrt_ftrl_rule(p, g, n, z, lr, l1, twice_l2):
    """ftrl with the power 1/2."""
    m = n + g * g
    new_root = np.sqrt(m)
    z = z + (g - (new_root - np.sqrt(n)) / lr * p)
    shrunk = (l1 * np.sign(z) - z) / (new_root / lr + twice_l2)
    return where(np.abs(z) > l1, shrunk, p - p), m, z


def _ftrl_hyper(a: Attrs, f: Any) -> Sequence[float]:
    constants = a["l1"], f(2) * f(a["l2"])
    return constants if a["lr_power"] == -0.5 else (*constants, -a["lr_power"])


FTRL = OptimizerKind(
    "ftrl",
    "Ftrl",
    states=(
        Accumulator("SquaredAccumulator", "squared", "SquaredAccumOut"),
        Accumulator("LinearAccumulator", "linear", "LinearAccumOut"),
    ),
    arguments={"l1": Argument(0.0), "l2": Argument(0.0), "lr_power": Argument(-0.5, any_sign=True)},
    formulas={"ftrl": Formula(ftrl_rule, 2), "sqrt_ftrl": Formula(sqrt_ftrl_rule, 2)},
    hyper=_ftrl_hyper,
    choose=lambda a: "sqrt_ftrl" if a["lr_power"] == -0.5 else "ftrl",
    rows=True,
)


def lamb_rule(p, g, m, v, whole1, whole2, beta1, rest1, beta2, rest2, epsilon, decay):
    """m' = b1 m + (1 - b1) g;  v' = b2 v + (1 - b2) g^2;
    step = m' / w1 / (sqrt(v' / w2) + epsilon) + decay p  (You et al., 2020).

    The layer's rate multiplies the step. ``whole1`` and ``whole2`` are 1 - beta^t, and 1 in Fluid's
    lamb, which corrects no bias.
    """
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return m / whole1 / (np.sqrt(v / whole2) + epsilon) + decay * p, m, v


def lamb_rate(lr, adapts, p_norm, step_norm):
    """lr |p| / |step|, each norm 1 if one of them is 0  (You et al., 2020); lr, if not adapts."""
    both_positive = (adapts > 0) & (p_norm > 0) & (step_norm > 0)
    return lr * where(both_positive, p_norm, ONE) / where(both_positive, step_norm, ONE)


LAMB = OptimizerKind(
    "lamb",
    "Lamb",
    states=_adam_states(out=None),
    arguments={"lamb_weight_decay": Argument(0.01, "weight_decay"), **_BETAS, **_EPSILON},
    hyper=lambda a, f: (*_moments(a, f), a["weight_decay"], 1),
    sparse=_always("all"),
    rows=True,
    whole=True,
)
UNBIASED_LAMB = replace(  # Paddle 2's: what does not decay has Adam's rate
    LAMB,
    type="unbiased_lamb",
    name="UnbiasedLamb",
    states=_adam_states(out=""),
    more_attrs={"always_adapt": False},
    of_fluid=False,
    hyper=lambda a, f: (
        *LAMB.hyper(a, f)[:-1],
        float(a["always_adapt"] or a["weight_decay"] > 0),
    ),
)


def lars_rate(lr, coeff, decay, p_norm, g_norm):
    """lr coeff |p| / (|g| + decay |p|);  lr itself while |p| or |g| is 0."""
    below = g_norm + decay * p_norm
    rate = lr * coeff * p_norm / where(below > 0, below, ONE)
    return where((p_norm > 0) & (g_norm > 0), rate, lr)


def lars_rule(p, g, v, lr, mu, decay):
    """v' = mu v + lr (g + decay p);  p' = p - v'  (You et al., 2017)."""
    v = v * mu + lr * (g + decay * p)
    return p - v, v


LARS_MOMENTUM = OptimizerKind(
    "lars_momentum",
    "LarsMomentum",
    states=_VELOCITY,
    arguments={
        "momentum": Argument(0.9, "mu", required=True),
        "lars_coeff": Argument(0.001),
        "lars_weight_decay": Argument(0.0005),
    },
    hyper=lambda a, f: (a["mu"], a["lars_coeff"], a["lars_weight_decay"]),
)
OPTIMIZERS = {  # by the type of the operator
    kind.type: kind
    for kind in (
        SGD,
        MOMENTUM,
        ADAGRAD,
        DECAYED_ADAGRAD,
        ADADELTA,
        RATED_ADADELTA,
        ADAM,
        ADAMAX,
        RMSPROP,
        FTRL,
        LAMB,
        UNBIASED_LAMB,
        LARS_MOMENTUM,
    )
}
FORMULAS = {
    name: formula for kind in OPTIMIZERS.values() for name, formula in kind.formulas.items()
}

"""The golden training runs: data and first weights as formulas, nets, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist import layers, optimizer
from hpcdist.clip import GradientClipByGlobalNorm, set_gradient_clip
from hpcdist.graph.names import guard
from hpcdist.graph.program import Program, program_guard
from hpcdist.graph.variable import Variable
from hpcdist.initializer import Constant, NumpyArrayInitializer
from hpcdist.layers.param_attr import ParamAttr
from hpcdist.regularizer import L2Decay

ROWS, FEATURES, STEPS = 16, 13, 20


def batch(step: int, vocabulary: int = 0) -> dict[str, np.ndarray]:
    """Return the global batch of a step: 16 rows of x and y, and ids if there is a vocabulary."""
    n = np.arange(ROWS * step, ROWS * step + ROWS, dtype=np.float64)[:, None]
    j = np.arange(FEATURES, dtype=np.float64)
    x = np.sin(0.37 * n + 0.91 * j)
    y = (x * np.cos(0.7 * j)).sum(1, keepdims=True) + 0.5
    fed = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    if vocabulary:
        a = 7 if vocabulary == 50 else 7919
        fed["id"] = (a * n.astype(np.int64) + 3) % vocabulary
    return fed


def weight(rows: int, columns: int) -> NumpyArrayInitializer:
    """Return W[i][j] = 0.1 sin(1 + i + 3 j)."""
    i, j = np.arange(rows)[:, None], np.arange(columns)[None, :]
    return NumpyArrayInitializer((0.1 * np.sin(1.0 + i + 3.0 * j)).astype(np.float32))


def _fc(x: Variable, size: int, w: str, b: str, init: Any, bias: float, **facts: Any) -> Variable:
    w_attr = ParamAttr(name=w, initializer=init)
    b_attr = ParamAttr(name=b, initializer=Constant(bias))
    return layers.fc(x, size, param_attr=w_attr, bias_attr=b_attr, **facts)


def _linreg(x: Variable, setting: Any) -> Variable:
    return _fc(x, 1, "w", "b", weight(13, 1), 0.05)


def _mlp(x: Variable, setting: Any) -> Variable:
    hidden = _fc(x, 10, "w1", "b1", weight(13, 10), 0.05, act="relu")
    return _fc(hidden, 1, "w2", "b2", weight(10, 1), 0.0)


def _wide(x: Variable, setting: Any) -> Variable:
    hidden = _fc(x, 150, "w1", "b1", Constant(0.02), 0.01, act="relu")
    hidden = _fc(hidden, 150, "w2", "b2", Constant(0.01), 0.01, act="relu")
    return _fc(hidden, 1, "w3", "b3", Constant(0.02), 0.0)


def _emb(x: Variable, setting: Any) -> Variable:
    vocabulary = setting["vocab"]
    first: Any = weight(50, 8) if vocabulary == 50 else Constant(0.1)
    rows = layers.embedding(
        layers.data("id", [1], dtype="int64"),
        [vocabulary, 8],
        is_sparse=setting["net"] == "emb",
        param_attr=ParamAttr(name="table", initializer=first),
    )
    return _fc(layers.concat([rows, x], axis=1), 1, "w", "b", weight(21, 1), 0.0)


NETS: dict[str, Callable[[Variable, Any], Variable]] = {
    "linreg": _linreg,
    "mlp": _mlp,
    "wide": _wide,
    "emb": _emb,
    "embdense": _emb,
}
OPTIMIZERS: dict[str, Callable[[], optimizer.Optimizer]] = {
    "sgd": lambda: optimizer.SGD(0.01),
    "momentum": lambda: optimizer.Momentum(0.01, 0.9),
    "nesterov": lambda: optimizer.Momentum(0.01, 0.9, use_nesterov=True),
    "adam": lambda: optimizer.Adam(0.01),
    "adagrad": lambda: optimizer.Adagrad(0.05),
    "adamax": lambda: optimizer.Adamax(0.01),
    "rmsprop": lambda: optimizer.RMSProp(0.01),
    "decayed_adagrad": lambda: optimizer.DecayedAdagrad(0.01),
    "ftrl": lambda: optimizer.Ftrl(0.05),
    "sgd_exp": lambda: optimizer.SGD(layers.exponential_decay(0.02, 5, 0.5, staircase=True)),
    "sgd_piece": lambda: optimizer.SGD(layers.piecewise_decay([5, 10], [0.02, 0.01, 0.005])),
    "adam_noam": lambda: optimizer.Adam(layers.noam_decay(64, 10)),
    "sgd_l2": lambda: optimizer.SGD(0.01, regularization=L2Decay(0.1)),
}


def build(setting: dict[str, Any]) -> tuple[Program, Program, Variable]:
    """Return main program, startup program and loss of a run's setting."""
    main, startup = Program(), Program()
    with guard(), program_guard(main, startup):
        x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
        prediction = NETS[setting["net"]](x, setting)
        loss = layers.mean(layers.square_error_cost(prediction, y))
        if setting["clip"]:
            set_gradient_clip(GradientClipByGlobalNorm(1.0))
        OPTIMIZERS[setting["optimizer"]]().minimize(loss)
    return main, startup, loss


def fed(setting: dict[str, Any], step: int) -> dict[str, np.ndarray]:
    """Return what a local run of this setting feeds in a step."""
    return batch(step, setting["vocab"] if setting["net"].startswith("emb") else 0)


def tolerance(setting: dict[str, Any]) -> float:
    """Return how far a loss may lie from Fluid's: Adam's powers are in single precision."""
    return 5e-5 if setting["optimizer"].startswith("adam") else 1e-5

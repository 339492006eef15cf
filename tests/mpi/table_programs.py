"""Programs with a distributed table, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import initializer, layers

ENDS = [-(2**63), 2**63 - 1, -1, 0]
PADDING, STEPS, ROWS = 3, 5, 6
ANY = -1  # rows of a table that may have any number of ids
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": fluid.optimizer.SGD,
    "momentum": lambda rate: fluid.optimizer.Momentum(rate, 0.9, use_nesterov=True),
    "adagrad": lambda rate: fluid.optimizer.Adagrad(rate, initial_accumulator_value=0.1),
    "adam": lambda rate: fluid.optimizer.Adam(rate, lazy_mode=True),
    "ftrl": lambda rate: fluid.optimizer.Ftrl(rate, l1=0.01, l2=0.01),
}
BEGINNINGS = {
    "uniform": initializer.Uniform(-0.5, 0.5),
    "normal": initializer.Normal(0.0, 0.5),
    "truncated": initializer.TruncatedNormal(0.0, 0.5),
    "constant": initializer.Constant(0.25),
    "xavier": None,
}


def table(ids: Any, name: str, width: int, rows: int, begin: Any, **how: Any) -> Any:
    attr = fluid.ParamAttr(name=name, initializer=begin)
    how = {"is_sparse": True, "is_distributed": True, "param_attr": attr, **how}
    return layers.embedding(ids, [rows, width], **how)


def net(rows: int, begin: Any) -> list[Any]:
    """Two tables, one of them looked up twice; return the loss and the guess."""
    a, b = (layers.data(name, [1], dtype="int64") for name in ("a", "b"))
    pair = layers.data("pair", [2], dtype="int64")
    attr = fluid.ParamAttr(name="narrow", initializer=begin)
    many = fluid.embedding(pair, [rows, 2], True, True, None, attr)
    parts = [
        table(a, "wide", 4, rows, begin, padding_idx=PADDING),
        table(b, "wide", 4, rows, begin, padding_idx=PADDING),
        layers.reduce_sum(many, dim=1),
        layers.data("x", [3]),
    ]
    guess = layers.fc(layers.concat(parts, axis=1), 1)
    cost = layers.square_error_cost(guess, layers.data("y", [1]))
    return [layers.mean(cost), guess]


def build(optimizer: str, rows: int = ANY, begin: str = "uniform") -> tuple[Any, ...]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 11
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        fetch = net(rows, BEGINNINGS[begin])
        test = main.clone(for_test=True)
        rate = layers.exponential_decay(0.2, 2, 0.5, staircase=True)
        OPTIMIZERS[optimizer](rate).minimize(fetch[0])
    return main, startup, test, fetch


def batch(step: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    pool = np.array([*ENDS, PADDING, 10**15, 5, 6], np.int64)
    feed = {name: rng.choice(pool, (rows, n)) for name, n in (("a", 1), ("b", 1), ("pair", 2))}
    feed["x"] = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    feed["y"] = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    return feed

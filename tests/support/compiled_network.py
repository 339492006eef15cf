"""A network for compiled programs, and its batches."""

from __future__ import annotations

from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers


def network(minimize: bool = True, vocabulary: int = 0) -> tuple[Any, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [3]), layers.data("y", [1])
        hidden = layers.fc(x, 4, act="relu")
        if vocabulary:
            ids = layers.data("ids", [1], dtype="int64")
            rows = layers.embedding(ids, [vocabulary, 2], is_sparse=True, param_attr="table")
            hidden = layers.concat([hidden, rows], axis=1)
        guess = layers.fc(hidden, 1)
        loss = layers.mean(layers.square_error_cost(guess, y))
        if minimize:
            fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, loss, guess


def batch(step: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "x": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "ids": rng.integers(0, 7, (rows, 1)),
    }

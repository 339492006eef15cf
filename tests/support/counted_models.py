"""Models that train, small: what a step of theirs asks of a GPU is counted over stand-ins."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hpcdist as fluid

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = 6

Built = tuple[Any, Callable[[np.random.Generator], dict[str, np.ndarray]]]


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name), run_name=name)


def mlp() -> Built:
    _, loss, _ = example("mnist_mlp.py")["network"](16)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return loss, lambda rng: {
        "image": rng.random((ROWS, 16), np.float32),
        "label": rng.integers(0, 10, (ROWS, 1)),
    }


def resnet50() -> Built:
    image, label = (
        fluid.data("image", [None, 3, 32, 32], "float32"),
        fluid.data("label", [None, 1], "int64"),
    )
    guess = example("resnet.py")["resnet"](image, 10, 50)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(guess, label))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return loss, lambda rng: {
        "image": rng.random((2, 3, 32, 32), np.float32),
        "label": rng.integers(0, 10, (2, 1)),
    }


def wide_and_deep() -> Built:
    slots = [9, 40]
    numbers = fluid.data("numbers", [None, 3], "float32")
    ids = [fluid.data(f"id{k}", [None, 1], "int64") for k in range(len(slots))]
    deep = [fluid.embedding(i, [n, 4], is_sparse=True) for i, n in zip(ids, slots)]
    wide = [fluid.embedding(i, [n, 1], is_sparse=True) for i, n in zip(ids, slots)]
    deep = [fluid.layers.reshape(v, [-1, 4]) for v in deep]
    wide = [fluid.layers.reshape(v, [-1, 1]) for v in wide]
    hidden = fluid.layers.fc(fluid.layers.concat([*deep, numbers], axis=1), 8, act="relu")
    score = fluid.layers.sums([fluid.layers.fc(hidden, 1), *wide])
    click = fluid.data("click", [None, 1], "float32")
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(score, click))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss, lambda rng: {
        "numbers": rng.random((ROWS, 3), np.float32),
        **{f"id{k}": rng.integers(0, n, (ROWS, 1)) for k, n in enumerate(slots)},
        "click": rng.integers(0, 2, (ROWS, 1)).astype(np.float32),
    }


def word2vec() -> Built:
    words, loss, *_ = example("word2vec.py")["network"](30, 4, 8, True)
    rate = fluid.layers.piecewise_decay([3], [0.1, 0.05])
    fluid.optimizer.SGD(rate).minimize(loss)
    return loss, lambda rng: {w.name: rng.integers(0, 30, (ROWS, 1)) for w in words}

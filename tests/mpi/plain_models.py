"""Small models that know nothing of ranks, trained by one process and by a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from tests.support.job import alone, run_job, values

ROWS = [7, 6, 7, 2, 1, 5]  # in each step: hardly any divides by the trainers

FEATURES, CLASSES, WORDS = 5, 3, 11


@dataclass(frozen=True)
class Model:
    """A net and what to minimize it with; ``net`` returns what to fetch, its loss first."""

    net: Callable[[], list[Any]]
    minimize: Callable[[Any], Any]
    near: float = 1e-5


def regression(*hidden: int) -> Callable[[], list[Any]]:
    def net() -> list[Any]:
        x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
        value = x
        for width in hidden:
            value = layers.fc(value, width, act="tanh")
        guess = layers.fc(value, 1)
        cost = layers.square_error_cost(guess, y)
        return [layers.mean(cost), guess, cost]

    return net


def classifier() -> list[Any]:
    x, label = layers.data("x", [FEATURES]), layers.data("label", [1], dtype="int64")
    guess = layers.fc(x, CLASSES, act="softmax")
    cost = layers.cross_entropy(guess, label)
    correct, total = (layers.create_tensor("int32") for _ in range(2))
    accuracy = layers.accuracy(guess, label, correct=correct, total=total)
    worst, shares = layers.reduce_max(cost), layers.reduce_mean(guess, dim=0)
    return [layers.mean(cost), accuracy, correct, total, worst, shares, guess]


def summed() -> list[Any]:
    x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
    cost = layers.square_error_cost(layers.fc(x, 1), y)
    loss = layers.scale(layers.reduce_sum(cost), 0.1)
    return [loss, layers.reduce_min(cost)]


def embedded() -> list[Any]:
    x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
    word = layers.data("word", [1], dtype="int64")
    rows = layers.embedding(word, [WORDS, 4], is_sparse=True, param_attr="table")
    guess = layers.fc(layers.concat([rows, x], axis=1), 1)
    return [layers.mean(layers.square_error_cost(guess, y)), guess]


def momentum_with_schedule(loss: Any) -> None:
    rate = layers.exponential_decay(0.1, 2, 0.5, staircase=True)
    fluid.optimizer.Momentum(rate, 0.9).minimize(loss)


def sgd(loss: Any) -> None:
    fluid.optimizer.SGD(0.1).minimize(loss)


def adam_with_decay(loss: Any) -> None:
    decay = fluid.regularizer.L2Decay(0.1)
    fluid.optimizer.Adam(0.05, regularization=decay).minimize(loss)


MODELS = {
    "linear": Model(regression(), sgd),
    "momentum": Model(regression(6, 4), momentum_with_schedule),
    "adam": Model(regression(6), adam_with_decay, near=5e-5),
    "softmax": Model(classifier, sgd),
    "sparse": Model(embedded, sgd),
    "sum": Model(summed, sgd),
}


def batch(step: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "x": rng.uniform(-1, 1, (rows, FEATURES)).astype(np.float32),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "label": rng.integers(0, CLASSES, (rows, 1)),
        "word": rng.integers(0, WORDS, (rows, 1)),
    }


def train(model: Model, place: Any = None) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """The script: return what was fetched in every step, and what the test program gave."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        fetch = model.net()
        test = main.clone(for_test=True)
        model.minimize(fetch[0])
    fed = [name for name, var in main.global_block().vars.items() if var.is_data]
    exe = fluid.Executor(place or fluid.CPUPlace())
    exe.run(startup)
    steps, tests = [], []
    for step, rows in enumerate(ROWS):
        feed = {name: value for name, value in batch(step, rows).items() if name in fed}
        steps.append(exe.run(main, feed=feed, fetch_list=fetch))
        whole = {name: value for name, value in batch(99, 7).items() if name in fed}
        tests.append(exe.run(test, feed=whole, fetch_list=fetch))
    return steps, tests


def check_job(model: Model, trainers: int, servers: int, place: Any = None) -> None:
    """Compare a job whose trainers compute on ``place`` with one process on the CPU."""
    with alone():
        steps, tests = train(model)

    def script(role: Any) -> Any:
        return train(model, place)

    for got_steps, got_tests in values(run_job(trainers, servers, script)):
        for step, (got, wanted) in enumerate(zip(got_steps, steps, strict=True)):
            assert_close(got, wanted, model.near, f"step {step}")
        for step, (got, wanted) in enumerate(zip(got_tests, tests, strict=True)):
            assert_close(got, wanted, model.near, f"test after step {step}")


def assert_close(got, wanted, near, where):
    assert [(v.shape, v.dtype) for v in got] == [(v.shape, v.dtype) for v in wanted], where
    for index, pair in enumerate(zip(got, wanted)):
        np.testing.assert_allclose(*pair, rtol=near, atol=near, err_msg=f"{where}, fetch {index}")

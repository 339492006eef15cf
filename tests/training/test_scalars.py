"""Values without dimensions, as Paddle 2's losses are, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.executor.scope import Scope
from hpcdist.fluid.compat import paddle2
from hpcdist.fluid.compat.paddle2 import metric
from hpcdist.fluid.compat.paddle2.nn import functional
from tests.support.thread_jobs import ranks_as_threads

FEED = {
    "x": np.random.default_rng(3).random((12, 3), np.float32),
    "y": np.random.default_rng(4).integers(0, 2, (12, 1)),
    "s": np.array(0.5, "float32"),
}


def _built() -> Any:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1], "int64")
        s = fluid.data("s", [])
        scores = fluid.layers.fc(x, 2)
        loss = functional.cross_entropy(scores, y)
        loss = paddle2.add(loss, paddle2.multiply(s, paddle2.mean(fluid.layers.square(scores))))
        share = metric.accuracy(scores, y)
        area = metric.auc(functional.softmax(scores), y)[0]
        largest = paddle2.max(x)
        both = paddle2.stack([largest, s])
        scaled = paddle2.multiply(fluid.layers.reduce_mean(scores, [1]), largest)
        total = paddle2.sum(scaled)
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, [loss, share, area, largest, both, total]


def _trained(main: Any, startup: Any, fetched: Any) -> list[list[np.ndarray]]:
    exe, scope = fluid.Executor(), Scope()
    exe.run(startup, scope=scope)
    steps = [exe.run(main, feed=FEED, fetch_list=fetched, scope=scope) for _ in range(3)]
    exe.close()
    return steps


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 2)])
def test_values_without_dimensions_are_those_of_one_process(trainers: int, servers: int) -> None:
    wanted = _trained(*_built())
    assert [value.shape for value in wanted[0]] == [(), (), (), (), (2,), ()]
    assert wanted[0][0] > wanted[2][0]
    built = [_built() for _ in range(trainers + servers)]
    with ranks_as_threads() as run:
        told = run(trainers, servers, [lambda one=one: _trained(*one) for one in built])
    for steps in told:
        for values, expected in zip(steps, wanted):
            for value, number in zip(values, expected):
                assert value.shape == number.shape
                np.testing.assert_allclose(value, number, 1e-5)


WRAPPED: dict[str, Callable[[], Any]] = {
    "plain": lambda: fluid.optimizer.SGD(0.5),
    "merged": lambda: fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.5), 2),
    "scaled": lambda: fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.5)),
    "bfloat16": lambda: fluid.contrib.mixed_precision.decorate_bf16(fluid.optimizer.SGD(0.5)),
    "clipped": lambda: fluid.optimizer.SGD(
        0.5, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.01)
    ),
}


def _losses(optimizer: str, shape: list[int]) -> Callable[[], list[float]]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        loss = paddle2.mean(fluid.layers.square(fluid.layers.fc(x, 2)))
        loss = paddle2.reshape(loss, shape) if shape else loss
        WRAPPED[optimizer]().minimize(loss)

    def script() -> list[float]:
        exe, scope = fluid.Executor(), Scope()
        exe.run(startup, scope=scope)
        fed = {"x": FEED["x"]}
        steps = [exe.run(main, feed=fed, fetch_list=[loss], scope=scope)[0] for _ in range(5)]
        exe.close()
        return [step.item() for step in steps]

    return script


@pytest.mark.parametrize("optimizer", WRAPPED)
def test_a_loss_without_dimensions_trains_as_one_that_has_some(optimizer: str) -> None:
    wanted = _losses(optimizer, [1])()
    assert wanted[0] > wanted[4]
    np.testing.assert_allclose(_losses(optimizer, [])(), wanted, rtol=1e-6)
    with ranks_as_threads() as run:
        with_one, without = (
            run(2, 0, [_losses(optimizer, shape) for _ in range(2)]) for shape in ([1], [])
        )
    np.testing.assert_allclose(without, with_one, rtol=1e-6)

"""Rates that a script of Paddle 2 steps by what it fetches, on ranks with and without servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.executor.scope import Scope
from hpcdist.fluid.compat.paddle2 import optimizer
from hpcdist.fluid.compat.paddle2.static.executor import StaticExecutor
from tests.support.thread_jobs import ranks_as_threads

SCHEDULES = {
    "plateau": lambda: optimizer.lr.ReduceOnPlateau(0.1, factor=0.5, patience=0, threshold=0.5),
    "steps": lambda: optimizer.lr.StepDecay(0.1, step_size=2),
    "never stepped": lambda: optimizer.lr.ExponentialDecay(0.1, 0.5),
}


def built(name: str) -> Any:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1])
        scores = fluid.layers.fc(x, 1)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(scores, y))
        rate = SCHEDULES[name]()
        optimizer.Momentum(rate, 0.9).minimize(loss)
    return main, startup, loss, rate


def trained(main: Any, startup: Any, loss: Any, rate: Any) -> list[tuple[float, float]]:
    exe, scope, rng = StaticExecutor(), Scope(), np.random.default_rng(3)
    exe.run(startup, scope=scope)
    seen = []
    for _ in range(6):
        x = rng.random((12, 3), np.float32)
        fed = {"x": x, "y": x.sum(1, keepdims=True)}
        (value,) = exe.run(main, [fed], [loss], scope=scope)  # as from a DataLoader
        if isinstance(rate, optimizer.lr.ReduceOnPlateau):
            rate.step(float(value[0]))
        elif isinstance(rate, optimizer.lr.StepDecay):
            rate.step()
        seen.append((float(value[0]), rate.last_lr))
    exe.close()
    return seen


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 2)])
def test_rates_that_are_stepped_are_those_of_one_process(
    name: str, trainers: int, servers: int
) -> None:
    wanted = trained(*built(name))
    assert (len({rate for _, rate in wanted}) > 1) == (name != "never stepped")
    scripts = [built(name) for _ in range(trainers + servers)]
    with ranks_as_threads() as run:
        told = run(trainers, servers, [lambda one=one: trained(*one) for one in scripts])
    for seen in told:
        np.testing.assert_allclose(seen, wanted, 1e-5)

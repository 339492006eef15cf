"""A small training without servers, on one device for each trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hpcdist as fluid
from hpcdist import layers
from tests.support.job import alone, run_job, values

ROWS, STEPS = 4, 6


def check_losses(trainers: int, place_of: Callable[[int], Any], **config: Any) -> None:
    """Check that a job on these places has the losses of one process on the CPU."""
    names = [f"trainer{k}:6174" for k in range(trainers)]

    def script(role: Any) -> list[float]:
        main, startup, loss = network()
        settings = fluid.DistributeTranspilerConfig(mode="nccl2", **config)
        fluid.DistributeTranspiler(settings).transpile(
            role.index,
            program=main,
            startup_program=startup,
            trainers=",".join(names),
            current_endpoint=names[role.index],
        )
        exe = fluid.Executor(place_of(role.index))
        exe.run(startup)
        return run(exe, main, loss, slice(role.index * ROWS, (role.index + 1) * ROWS), trainers)

    with alone():
        main, startup, loss = network()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        expected = run(exe, main, loss, slice(None), trainers)
    found = values(run_job(trainers, 0, script))
    np.testing.assert_allclose(np.mean(found, axis=0), expected, rtol=1e-5, atol=1e-5)


def network() -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [6]), layers.data("y", [1])
        hidden = layers.fc(layers.fc(x, 5, act="tanh"), 7, act="relu")
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, loss


def run(exe: Any, main: Any, loss: Any, rows: slice, trainers: int) -> list[float]:
    losses = []
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        x = rng.uniform(-1, 1, (ROWS * trainers, 6)).astype(np.float32)
        feed = {"x": x[rows], "y": x[rows, :1] * 2 + 1}
        losses.append(float(np.ravel(exe.run(main, feed=feed, fetch_list=[loss])[0])[0]))
    return losses

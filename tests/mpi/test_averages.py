"""Averages of parameters that servers move: those of one process, applied, saved and undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint, io, layers
from hpcdist.errors import HpcdistError
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

STEPS, ROWS, FEATURES, HIDDEN = 4, 6, 130, 130  # a weight that is cut over two servers


def build() -> tuple[Any, Any, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
        loss = layers.mean(layers.square_error_cost(layers.fc(layers.fc(x, HIDDEN), 1), y))
        fluid.optimizer.Momentum(layers.exponential_decay(0.01, 2, 0.5), 0.9).minimize(loss)
        steps = layers.learning_rate_scheduler._decay_step_counter()
        moving = fluid.optimizer.ExponentialMovingAverage(0.9, thres_steps=steps)
        moving.update()
        mean = fluid.optimizer.ModelAverage(0.5, min_average_window=1, max_average_window=3)
    return main, startup, loss, moving, mean


def batch(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "x": rng.uniform(-1, 1, (ROWS, FEATURES)).astype(np.float32),
        "y": rng.uniform(-1, 1, (ROWS, 1)).astype(np.float32),
    }


def parameters(main: Any) -> list[np.ndarray]:
    scope = fluid.global_scope()
    return [np.array(scope.find_var(p.name).get_tensor()) for p in main.all_parameters()]


def train(directory: Path) -> list[np.ndarray]:
    """A plain script: return losses, averages of both kinds between steps, and what is saved."""
    main, startup, loss, moving, mean = build()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    found: list[Any] = []
    for step in range(STEPS):
        found += exe.run(main, feed=batch(step), fetch_list=[loss])
        for average in (moving, mean) if step in (0, STEPS - 2) else ():
            before = parameters(main)
            with average.apply(exe):
                found += parameters(main)
            assert [a.tobytes() for a in parameters(main)] == [b.tobytes() for b in before]
    with moving.apply(exe):
        io.save_params(exe, str(directory), main)
    saved = io.load_program_state(str(directory))
    return [*found, *(saved[p.name] for p in main.all_parameters())]


@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 0)])
def test_averages_are_those_of_one_process(
    trainers: int, servers: int, tmp_path: Path, mpi_tmp_path: Path
) -> None:
    with alone():
        wanted = train(tmp_path)
    jobs = values(run_job(trainers, servers, lambda role: train(mpi_tmp_path)))
    for found in jobs:
        for ours, theirs in zip(found, wanted, strict=True):
            if trainers == 1:
                assert ours.tobytes() == theirs.tobytes()
            np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6)


def test_what_servers_do_not_know_of_averages_is_refused(mpi_tmp_path: Path) -> None:
    def script(role: Any) -> list[str]:
        main, startup, _, moving, _ = build()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        exe.run(main, feed=batch(0))
        told = []
        with moving.apply(exe, need_restore=False):
            saves = (
                lambda: io.save_persistables(exe, str(mpi_tmp_path / "all"), main),
                lambda: checkpoint.save(exe, mpi_tmp_path / "job", 1, main),
            )
            for save in (*saves, lambda: exe.run(main, feed=batch(1))):
                with pytest.raises(HpcdistError, match="parameters have their averages") as said:
                    save()
                told.append(str(said.value))
        return told

    ((saved, job, step),) = values(run_job(1, 1, script, aborts=False))
    assert "save_params and save_inference_model" in saved and saved == job
    assert "restore(exe)" in step

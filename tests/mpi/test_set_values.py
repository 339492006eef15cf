"""What a plain script changes between steps: a job goes on with it, or refuses to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (3, 0), (2, 1), (2, 2)]  # trainers, servers
STEPS = 3


class Training:
    """A plain script that trains, does ``between``, and trains on."""

    def __init__(self, between: Callable[[Training], None], before: int = STEPS) -> None:
        self.between, self.before = between, before
        self.trainer = 0

    def __call__(self, role: Any = None) -> list[np.ndarray]:
        self.trainer = 0 if role is None else role.index
        self.main, self.startup = fluid.Program(), fluid.Program()
        self.startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(self.main, self.startup):
            x, y = layers.data("x", [4]), layers.data("y", [1])
            loss = layers.mean(layers.square_error_cost(layers.fc(x, 1, param_attr="w"), y))
            self.test = self.main.clone(for_test=True)
            optimizer = fluid.optimizer.Momentum(0.1, 0.9)
            optimizer.minimize(loss)
            self.rate = optimizer._global_learning_rate().name
        self.exe = fluid.Executor(fluid.CPUPlace())
        self.exe.run(self.startup)
        losses = [
            self.exe.run(self.main, feed=batch(s), fetch_list=[loss]) for s in range(self.before)
        ]
        self.between(self)
        losses += [self.exe.run(self.main, feed=batch(s), fetch_list=[loss]) for s in range(STEPS)]
        losses.append(self.exe.run(self.test, feed=batch(9), fetch_list=[loss, "w"]))
        return [np.array(value) for fetched in losses for value in fetched]


def batch(step: int, rows: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "x": rng.uniform(-1, 1, (rows, 4)).astype(np.float32),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
    }


def by_hand(training: Training) -> None:
    tensor = fluid.global_scope().find_var("w").get_tensor()
    tensor.set(np.full((4, 1), 0.25, np.float32), fluid.CPUPlace())


def by_a_state(training: Training) -> None:
    fluid.set_program_state(training.main, {"w": np.full((4, 1), 0.25, np.float32)})


def by_a_program(training: Training) -> None:
    """Clip the weights, as a critic's are."""
    clip = fluid.Program()
    with fluid.program_guard(clip, fluid.Program()):
        w = clip.global_block().create_var("w", shape=(4, 1), dtype="float32", persistable=True)
        layers.assign(layers.clip(w, -0.01, 0.01), w)
    training.exe.run(clip)


def by_a_feed(training: Training) -> None:
    """Feed weights to the test Program: they stay, as whatever is fed and persistable does."""
    w = np.full((4, 1), 0.25, np.float32)
    training.exe.run(training.test, feed={**batch(7), "w": w}, fetch_list=["w"])


def a_rate_by_a_program(training: Training) -> None:
    slower = fluid.Program()
    with fluid.program_guard(slower, fluid.Program()):
        facts = {"shape": (1,), "dtype": "float32", "persistable": True}
        rate = slower.global_block().create_var(training.rate, **facts)
        layers.fill_constant([1], "float32", 0.01, out=rate)
    training.exe.run(slower)


def a_rate_by_hand(training: Training) -> None:
    tensor = fluid.global_scope().var(training.rate).get_tensor()
    tensor.set(np.full(1, 0.01, np.float32), fluid.CPUPlace())


def to_what_it_was(training: Training) -> None:
    tensor = fluid.global_scope().find_var("w").get_tensor()
    tensor.set(np.array(tensor))


def anew(training: Training) -> None:
    training.exe.run(training.startup)


def check_equal(training: Training, trainers: int, servers: int) -> None:
    with alone():
        wanted = training()
    for got in values(run_job(trainers, servers, training)):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize(
    ("between", "before"),
    [(by_hand, 0), (by_hand, STEPS), (by_a_state, 0), (by_a_program, STEPS), (by_a_feed, STEPS)],
)
def test_a_changed_parameter_is_gone_on_with(between, before, trainers, servers):
    check_equal(Training(between, before), trainers, servers)


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1), (2, 2)])
@pytest.mark.parametrize("between", [a_rate_by_hand, a_rate_by_a_program])
def test_a_changed_rate_is_gone_on_with_or_refused(between, trainers, servers):
    training = Training(between)
    if not servers or between is a_rate_by_hand:
        check_equal(training, trainers, servers)
        return
    errors = [o.error for o in run_job(trainers, servers, training) if "PlanError" in o.error_types]
    assert errors and all("'learning_rate_0' was changed on a trainer" in error for error in errors)
    assert all("only the parameter servers" in error for error in errors)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_a_parameter_that_is_set_to_what_it_was_is_gone_on_with(trainers, servers):
    check_equal(Training(to_what_it_was), trainers, servers)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_a_second_startup_begins_anew_or_is_refused(trainers, servers):
    training = Training(anew)
    if not servers:
        check_equal(training, trainers, servers)
        return
    errors = [o.error for o in run_job(trainers, servers, training) if "PlanError" in o.error_types]
    assert errors and all("startup program is run again" in error for error in errors)


@pytest.mark.parametrize("local_feed", [False, True])
@pytest.mark.parametrize("before", [0, STEPS])
@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (3, 0), (2, 1)])
def test_other_values_on_one_trainer_are_named(trainers, servers, before, local_feed):
    def between(training: Training) -> None:
        value = np.full((4, 1), float(training.trainer == 1), np.float32)
        fluid.global_scope().find_var("w").get_tensor().set(value)

    outcomes = run_job(trainers, servers, Training(between, before), local_feed=local_feed)
    errors = [o.error for o in outcomes if "FeedError" in o.error_types]
    assert errors
    for error in errors:
        assert error.startswith(f"step {before + 1}: before this step trainer ")
        assert "has set 'w' by hand" in error and "(rank 1)" in error


def training_with_rows(role: Any = None, saved: str = "") -> list[np.ndarray]:
    """A table of which servers send rows, set before the first step and between two: then saved,
    looked up by a test, and trained."""
    main, startup, rng = fluid.Program(), fluid.Program(), np.random.default_rng(4)
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids, y = fluid.data("ids", [None, 1], "int64"), fluid.data("y", [None, 1])
        rows = fluid.embedding(ids, [3000, 4], is_sparse=True, param_attr="table")
        out = layers.fc(layers.reshape(rows, [-1, 4]), 1)
        loss = layers.mean(layers.square_error_cost(out, y))
        test = main.clone(for_test=True)
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    exe, table = fluid.Executor(fluid.CPUPlace()), fluid.global_scope().var("table")
    exe.run(startup)
    found = []
    for step in range(5):
        if step in (0, 3):
            table.get_tensor().set(rng.normal(size=(3000, 4)).astype(np.float32))
            if saved:
                fluid.io.save_persistables(exe, saved, main)
        fed = {"ids": rng.integers(0, 9, (8, 1)), "y": rng.random((8, 1), np.float32)}
        found += [np.array(exe.run(program, fed, [loss])[0]) for program in (test, main)]
    return [*found, np.array(table.get_tensor())]


@pytest.mark.parametrize(("trainers", "servers"), [*SHAPES, (1, 2)])
def test_rows_that_are_set_are_those_of_the_servers(mpi_tmp_path, trainers, servers):
    job = functools.partial(training_with_rows, saved=str(mpi_tmp_path / "model"))
    with alone():
        wanted = training_with_rows()
    for got in values(run_job(trainers, servers, job)):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    saved = fluid.load_program_state(str(mpi_tmp_path / "model"))["table"]
    rng = np.random.default_rng(4)
    first = rng.normal(size=(3000, 4)).astype(np.float32)
    assert not np.array_equal(saved, first) and 0.9 < saved.std() < 1.1  # the second ones


def a_count_by_hand(training: Training) -> None:
    fluid.global_scope().var("@LR_DECAY_COUNTER@").get_tensor().set(np.array([0], np.int64))


@pytest.mark.parametrize("servers", [1, 2])
def test_a_count_that_a_schedule_moves_is_refused(monkeypatch, servers):
    def by_a_schedule(rate: float, momentum: float) -> Any:
        return fluid.optimizer.SGD(layers.exponential_decay(rate, 2, 0.5))

    monkeypatch.setattr(fluid.optimizer, "Momentum", by_a_schedule)
    outcomes = run_job(2, servers, Training(a_count_by_hand))
    errors = [o.error for o in outcomes if "PlanError" in o.error_types]
    assert errors and all("COUNTER@' was changed on a trainer" in error for error in errors)

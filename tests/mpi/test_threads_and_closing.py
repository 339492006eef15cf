"""Jobs whose scripts have several threads, or several Executors: right, or refused by name."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import PSERVER
from tests.support.job import alone, begin, run_job, values
from tests.support.threads import LIMIT_S

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (1, 1), (2, 1), (2, 2)]  # trainers, servers
FEED = {"x": np.random.RandomState(0).rand(8, 4).astype("float32")}


def network(cut: bool = False) -> Any:
    """Return main and startup Program, loss and test Program."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        hidden = layers.fc(fluid.data("x", [None, 4]), 6, act="tanh")
        loss = layers.mean(layers.square(layers.fc(hidden, 1)))
        test = main.clone(for_test=True)
        sgd = fluid.optimizer.SGD(0.1)
        whole = fluid.optimizer.PipelineOptimizer(sgd, cut_list=[[hidden], [loss]]) if cut else sgd
        whole.minimize(loss)
    return main, startup, loss, test


def in_thread(work: Any) -> list[str]:
    """Run ``work`` in a thread of its own until it ends; return what it was refused."""
    errors: list[str] = []

    def guarded() -> None:
        try:
            work()
        except fluid.HpcdistError as error:
            errors.append(str(error))

    thread = threading.Thread(target=guarded, name="another", daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    return errors


# -- threads -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize("executors", [1, 2])
@pytest.mark.parametrize("programs", [1, 2])
def test_two_threads_that_train_are_refused(trainers, servers, executors, programs):
    """Both of them, wherever their steps lie: what comes of one alone is not what was asked for."""

    def script(role: Any) -> list[str]:
        nets = [network() for _ in range(programs)]
        exes = [fluid.Executor() for _ in range(executors)]
        exes[0].run(nets[0][1])
        main, _, loss, _ = nets[0]
        exes[0].run(main, feed=FEED, fetch_list=[loss])  # the main thread may be followed
        second, _, other, _ = nets[-1]
        waits, goes = threading.Event(), threading.Event()
        found: list[list[str]] = []

        def first_thread() -> None:
            exes[0].run(main, feed=FEED, fetch_list=[loss])
            waits.set()
            assert goes.wait(LIMIT_S)
            exes[0].run(main, feed=FEED, fetch_list=[loss])

        first = threading.Thread(target=lambda: found.append(in_thread(first_thread)))
        first.start()
        assert waits.wait(LIMIT_S)
        refused = in_thread(lambda: exes[-1].run(second, feed=FEED, fetch_list=[other]))
        goes.set()
        first.join(LIMIT_S)
        with pytest.raises(fluid.HpcdistError, match="two threads"):
            exes[0].run(main, feed=FEED, fetch_list=[loss])
        return [*refused, *found[0]]

    for told in values(run_job(trainers, servers, script)):
        assert len(told) == 2
        assert all("two threads" in text and "join()" in text for text in told)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_threads_that_follow_one_another_train_as_one(trainers, servers):
    def steps(role: Any, threads: bool) -> list[float]:
        main, startup, loss, _ = network()
        exe = fluid.Executor()
        exe.run(startup)
        found: list[float] = []

        def train() -> None:
            for _ in range(2):
                (value,) = exe.run(main, feed=FEED, fetch_list=[loss])
                found.append(float(value[0]))

        train()
        for _ in range(2):
            assert not (in_thread(train) if threads else train())
        train()
        return found

    with alone():
        expected = steps(None, threads=False)
    for found in values(run_job(trainers, servers, lambda role: steps(role, threads=True))):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_a_test_runs_in_another_thread_while_the_job_trains(trainers, servers):
    def script(role: Any) -> bool:
        main, startup, loss, test = network()
        exe, done = fluid.Executor(), threading.Event()
        exe.run(startup)
        losses: set[float] = set()
        tested: list[float] = []
        errors: list[list[str]] = []

        def evaluate() -> None:
            while not done.is_set() or not tested:
                (value,) = exe.run(test, feed=FEED, fetch_list=[loss.name])
                tested.append(float(value[0]))

        other = threading.Thread(target=lambda: errors.append(in_thread(evaluate)))
        other.start()
        for _ in range(20):
            (value,) = exe.run(main, feed=FEED, fetch_list=[loss])
            losses.add(float(value[0]))
        done.set()
        other.join(LIMIT_S)
        assert errors == [[]]
        (last,) = exe.run(test, feed=FEED, fetch_list=[loss.name])
        known = np.array([*losses, float(last[0])])
        return all(np.isclose(known, value, rtol=1e-5).any() for value in tested)

    assert all(values(run_job(trainers, servers, script)))


# -- Executors ---------------------------------------------------------------------------------
def closing(which: str, cut: bool = False) -> list[float]:
    """Train, close an Executor in between, go on with one that is left or with a new one."""
    main, startup, loss, test = network(cut)
    exe = fluid.Executor()
    exe.run(startup)
    found = []

    def train() -> None:
        for _ in range(2):
            (value,) = exe.run(main, feed=FEED, fetch_list=[loss])
            found.append(float(value[0]))

    train()
    if which == "tests":
        other = fluid.Executor()
        other.run(test, feed=FEED, fetch_list=[loss.name])
        other.close()
    elif which == "has not run":
        fluid.Executor().close()
    elif which == "trains too":
        other = fluid.Executor()
        other.run(main, feed=FEED, fetch_list=[loss])
        other.close()
    elif which == "the last":
        exe.close()
        exe.close()
        exe = fluid.Executor()
    train()
    exe.close()
    return found


CLOSED = ["tests", "has not run", "trains too", "the last"]


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize("which", CLOSED)
def test_training_goes_on_after_an_executor_was_closed(trainers, servers, which):
    with alone():
        expected = closing(which)
    for found in values(run_job(trainers, servers, lambda role: closing(which))):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("which", CLOSED)
def test_a_pipeline_goes_on_after_an_executor_was_closed(which):
    with alone():
        expected = closing(which)
    for found in values(run_job(2, 0, lambda role: closing(which, cut=True))):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("which", ["another", "the last"])
def test_who_transpiles_and_closes_the_last_executor_is_told_that_it_has_left(which):
    """Trainers with data of their own may have unequal numbers of steps: closing one leaves."""

    def script(role: Any) -> str:
        main, startup, loss, test = network()
        exe, program = begin(role, 2, 1, main, startup)
        exe.run(program, feed=FEED, fetch_list=[loss])
        if which == "another":
            other = fluid.Executor()
            other.run(test, feed=FEED, fetch_list=[loss.name])
            other.close()
            exe.run(program, feed=FEED, fetch_list=[loss])
        exe.close()
        exe = fluid.Executor()
        exe.run(test, feed=FEED, fetch_list=[loss.name])  # needs nobody
        with pytest.raises(fluid.HpcdistError, match="has left the job, after step") as info:
            exe.run(program, feed=FEED, fetch_list=[loss])
        return str(info.value)

    outcomes = run_job(2, 1, script)
    assert [o for o in outcomes if o.role.kind == PSERVER]
    assert all("close Executors after the last step" in told for told in values(outcomes))


def test_who_trains_with_fleet_goes_on_until_it_stops(monkeypatch):
    def script(role: Any) -> float:
        from hpcdist.incubate.fleet.base import role_maker
        from hpcdist.incubate.fleet.collective import fleet

        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            monkeypatch.setenv("PADDLE_TRAINER_ID", str(role.index))
            monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "a:1,b:1")
            monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", ["a:1", "b:1"][role.index])
            fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
            loss = layers.mean(layers.square(layers.fc(fluid.data("x", [None, 4]), 1)))
            fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(loss)
        exe = fluid.Executor()
        exe.run(fleet.startup_program)
        exe.run(fleet.main_program, feed=FEED, fetch_list=[loss])
        fluid.Executor().close()
        (value,) = exe.run(fleet.main_program, feed=FEED, fetch_list=[loss])
        fleet.stop_worker()
        with pytest.raises(fluid.HpcdistError, match="has left the job"):
            exe.run(fleet.main_program, feed=FEED, fetch_list=[loss])
        return float(value[0])

    first, second = values(run_job(2, 0, script))
    assert first == second

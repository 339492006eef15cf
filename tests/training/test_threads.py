"""Threads that run Programs at once: each step is whole, whatever they share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.threads import LIMIT_S

STEPS = 60
X = np.random.RandomState(0).rand(32, 4).astype("float32")
FEED = {"x": X, "y": X.sum(1, keepdims=True)}


def network() -> Any:
    """Return main and startup Program, loss and test Program; all that are made begin alike."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1])
        guess = layers.fc(layers.fc(x, 16, act="tanh"), 1)
        loss = layers.mean(layers.square_error_cost(guess, y))
        test = main.clone(for_test=True)
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return main, startup, loss, test


def together(*works: Callable[[], None]) -> None:
    errors: list[BaseException] = []
    begin = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            begin.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def parameters(main: Any, scope: Any) -> list[np.ndarray]:
    return [np.array(scope.find_var(p.name).get_tensor()) for p in main.all_parameters()]


def trained_alone(steps: int) -> list[np.ndarray]:
    main, startup, loss, _ = network()
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    for _ in range(steps):
        exe.run(main, feed=FEED, fetch_list=[loss], scope=scope)
    return parameters(main, scope)


@pytest.mark.parametrize("executors", [1, 2])
@pytest.mark.parametrize("scopes", [1, 2])
@pytest.mark.parametrize("programs", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_two_threads_train_as_one_after_the_other(
    executors: int, scopes: int, programs: int, compiled: bool, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CPU_NUM", "1")
    nets = [network() for _ in range(programs)]
    mains = [
        fluid.CompiledProgram(main).with_data_parallel(loss_name=loss.name) if compiled else main
        for main, _, loss, _ in nets
    ]
    exes = [fluid.Executor() for _ in range(executors)]
    places = [fluid.Scope() for _ in range(scopes)]
    for place in places:
        exes[0].run(nets[0][1], scope=place)

    def train(k: int) -> Callable[[], None]:
        exe, scope = exes[k % executors], places[k % scopes]
        main, loss = mains[k % programs], nets[k % programs][2]

        def run() -> None:
            for _ in range(STEPS):
                (value,) = exe.run(main, feed=FEED, fetch_list=[loss], scope=scope)
                assert np.isfinite(value).all()

        return run

    together(train(0), train(1))
    expected = trained_alone(STEPS if scopes == 2 else 2 * STEPS)
    for place in places:
        for value, right in zip(parameters(nets[0][0], place), expected, strict=True):
            np.testing.assert_array_equal(value, right)


@pytest.mark.parametrize("executors", [1, 2])
def test_a_thread_evaluates_between_steps(executors: int) -> None:
    """Its loss is one that training has between two steps, and training knows nothing of it."""
    main, startup, loss, test = network()
    scope = fluid.Scope()
    exes = [fluid.Executor() for _ in range(executors)]
    exes[0].run(startup, scope=scope)
    done = threading.Event()
    losses: set[float] = set()
    found: list[float] = []

    def train() -> None:
        for _ in range(STEPS):
            (value,) = exes[0].run(main, feed=FEED, fetch_list=[loss], scope=scope)
            losses.add(float(value[0]))
        done.set()

    def evaluate() -> None:
        while not done.is_set():
            (value,) = exes[-1].run(test, feed=FEED, fetch_list=[loss.name], scope=scope)
            found.append(float(value[0]))

    together(train, evaluate)
    (last,) = exes[0].run(test, feed=FEED, fetch_list=[loss.name], scope=scope)
    assert found and set(found) <= {*losses, float(last[0])}
    for value, right in zip(parameters(main, scope), trained_alone(STEPS), strict=True):
        np.testing.assert_array_equal(value, right)


def test_an_executor_that_another_thread_closes_says_so() -> None:
    main, startup, loss, _ = network()
    scope, exe = fluid.Scope(), fluid.Executor()
    exe.run(startup, scope=scope)
    first = threading.Event()

    def train() -> None:
        with pytest.raises(fluid.HpcdistError, match="was closed"):
            for _ in range(10**6):
                exe.run(main, feed=FEED, fetch_list=[loss], scope=scope)
                first.set()

    def close() -> None:
        assert first.wait(LIMIT_S)
        exe.close()

    together(train, close)

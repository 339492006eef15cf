"""Trainers that share batches feed the same ones, or say that each feeds rows of its own."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, runtime
from hpcdist.comm.cluster import RankRole
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (3, 0), (2, 1), (2, 2), (3, 1)]  # trainers, servers
STEPS = 4


def network() -> tuple[Any, Any, list[Any]]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [5]), layers.data("y", [1])
        guess = layers.fc(layers.fc(x, 4, act="tanh"), 1)
        loss = layers.mean(layers.square_error_cost(guess, y))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, [loss, guess]


def batch(step: int, rows: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        "x": rng.uniform(-1, 1, (rows, 5)).astype(np.float32),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
    }


def train(feeds: Any, fetch: bool = True) -> list[list[np.ndarray]]:
    main, startup, fetches = network()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    return [exe.run(main, feed=f, fetch_list=fetches if fetch else None) for f in feeds]


def told(trainers: int, servers: int, feeds: Any, fetch: bool = True, **asked: Any) -> list[str]:
    """Return the messages of the trainers that noticed by themselves."""

    def script(role: Any) -> None:
        train(feeds(role.index), fetch)
        runtime.end_together()  # as the launcher does after a script

    outcomes = run_job(trainers, servers, script, **asked)
    return [o.error for o in outcomes if "FeedError" in o.error_types]


@pytest.mark.parametrize("fetch", [True, False])
@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_another_value_on_one_trainer_is_named_with_step_rank_and_variable(
    trainers, servers, fetch
):
    def feeds(trainer: int) -> Any:
        for step in range(STEPS):
            feed = batch(step)
            if step == 2 and trainer == 1:
                feed["y"][6] += 1
            yield feed

    errors = told(trainers, servers, feeds, fetch)
    assert errors
    for error in errors:
        assert error.startswith("step 3: trainer ")
        assert "feeds another 'y' than trainer" in error
        assert "(rank 1)" in error
        assert "reader.shard" in error and "--feed local" in error


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1)])
def test_a_sharded_reader_is_noticed_in_the_first_step(trainers, servers):
    def feeds(trainer: int) -> Any:
        samples = [tuple(batch(0, 32)[name][i] for name in "xy") for i in range(32)]
        part = fluid.reader.shard(lambda: iter(samples), trainers, trainer)
        for rows in fluid.batch(part, 4)():
            yield {name: np.stack([row[k] for row in rows]) for k, name in enumerate("xy")}

    errors = told(trainers, servers, feeds, fetch=False)
    assert errors and all("step 1: " in e and "feeds another 'x', 'y'" in e for e in errors)


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1), (3, 1)])
def test_more_rows_other_names_and_fewer_batches_are_named(trainers, servers):
    more = told(trainers, servers, lambda k: [batch(0, 7 + (k == 1))])
    assert more and any("rows where this one has" in error for error in more)
    if not servers:
        return  # the sums of gradients notice a trainer that has ended by themselves
    ended = told(trainers, servers, lambda k: [batch(s) for s in range(STEPS - (k == 1))])
    assert any("the script of trainer 1 (rank 1) has ended" in error for error in ended)


@pytest.mark.parametrize("fetch", [True, False])
@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_local_rows_make_the_step_of_one_process_on_all_of_them(trainers, servers, fetch):
    counts = [[3, 1, 4], [1, 5, 2], [2, 2, 9], [6, 1, 1]]

    def parts(step: int) -> list[dict[str, np.ndarray]]:
        ends = np.cumsum(counts[step][:trainers])
        whole = batch(step, int(ends[-1]))
        return [
            {name: np.split(value, ends[:-1])[k] for name, value in whole.items()}
            for k in range(trainers)
        ]

    with alone():
        expected = train([batch(s, sum(counts[s][:trainers])) for s in range(STEPS)])

    def script(role: Any) -> Any:
        own = [parts(step)[role.index] for step in range(STEPS)]
        steps = train(own, fetch)
        return steps, fluid.global_scope().find_var("fc_0.w_0").get_tensor().__array__().copy()

    outcomes = values(run_job(trainers, servers, script, local_feed=True))
    weights = [weight for _, weight in outcomes]
    assert all((weight == weights[0]).all() for weight in weights)
    for steps, _ in outcomes if fetch else []:
        for got, wanted in zip(steps, expected, strict=True):
            for value, whole in zip(got, wanted, strict=True):
                np.testing.assert_allclose(value, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1)])
def test_that_each_trainer_evaluates_rows_of_its_own_is_said_once(trainers, servers, caplog):
    caplog.set_level(logging.WARNING, "hpcdist")

    def script(role: Any) -> list[str]:
        main, startup, (loss, _) = network()
        test = main.clone(for_test=True)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(2):
            exe.run(main, feed=batch(step, 3), fetch_list=[loss])
            assert len(caplog.messages) == (step and role.index == 0)
            exe.run(test, feed=batch(role.index, 2), fetch_list=[loss.name])
        return list(caplog.messages)

    first, second = values(run_job(trainers, servers, script, local_feed=True))
    assert len(first) == 1 and second == []
    assert "what is fetched is of these alone" in first[0]


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1)])
def test_a_trainer_without_local_rows_is_named(trainers, servers):
    def feeds(trainer: int) -> Any:
        return [batch(step) for step in range(STEPS - (trainer == 1))]

    errors = told(trainers, servers, feeds, local_feed=True)
    assert any("step 4" in e and "[7, 0]" in e and "even_batches" in e for e in errors)


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1), (3, 1)])
def test_fetching_on_one_trainer_only_is_named(trainers, servers):
    def script(role: Any) -> None:
        main, startup, fetches = network()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(STEPS):
            asked = fetches if step < 2 or role.index == 0 else None
            exe.run(main, feed=batch(step), fetch_list=asked)

    outcomes = run_job(trainers, servers, script)
    errors = [o.error for o in outcomes if "FeedError" in o.error_types]
    assert errors
    for error in errors:
        assert error.startswith("step 3: trainer ") and "fetches different values from" in error


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_values_of_all_kinds_are_joined_wherever_they_are_computed(trainers, servers):
    """Small ones travel while gradients do; those after the update, and large ones, later."""

    def model() -> tuple[Any, Any, list[list[Any]]]:
        main, startup, (loss, guess) = network()
        with fluid.unique_name.guard("more_"), fluid.program_guard(main, startup):
            behind = layers.scale(loss, 3.0)
            total, most = layers.reduce_sum(guess), layers.reduce_max(guess)
            columns = layers.reduce_mean(layers.fc(guess, 40, name="wide"), dim=0)
        few = [loss, behind, total, most]
        return main, startup, [[loss], few, [columns], [guess], [*few, columns, guess], []]

    def script() -> list[list[np.ndarray]]:
        main, startup, lists = model()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [
            exe.run(main, feed=batch(step, rows), fetch_list=lists[step % len(lists)])
            for step, rows in enumerate([7, 7, 2, 1, 6, 7, 5, 7, 1])
        ]

    with alone():
        expected = script()
    for steps in values(run_job(trainers, servers, lambda role: script())):
        for got, wanted in zip(steps, expected, strict=True):
            for value, whole in zip(got, wanted, strict=True):
                assert value.shape == whole.shape and value.dtype == whole.dtype
                np.testing.assert_allclose(value, whole, rtol=1e-5, atol=1e-6)


def test_what_fc_flattens_is_the_same_batch_with_any_number_of_dimensions():
    """Also where one trainer takes a step from its beginning, and the other as it took the last."""

    def script(role: Any = None) -> list[list[np.ndarray]]:
        feeds = [batch(step) for step in range(2 * STEPS)]
        short = isinstance(role, RankRole) and role.index == 1
        main, startup, fetches = network()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step, feed in enumerate(feeds):
            if not (short and step % 2):
                feed["x"] = feed["x"][:, None]
        return [exe.run(main, feed=feed, fetch_list=fetches) for feed in feeds]

    with alone():
        expected = script()
    for got in values(run_job(2, 0, script)):
        for step, want in zip(got, expected, strict=True):
            for value, one in zip(step, want, strict=True):
                np.testing.assert_allclose(value, one, rtol=1e-5, atol=1e-6)

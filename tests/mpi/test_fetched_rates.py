"""Learning rates fetched with the loss: a job with servers gives what one process gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.world import mpi_world
from hpcdist.errors import FeedError
from hpcdist.ps.client import PsClient
from tests.mpi.plain_models import batch, embedded, regression
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

STEPS, COUNTER = 6, "@LR_DECAY_COUNTER@"


def warming_up() -> Any:
    return layers.linear_lr_warmup(layers.cosine_decay(0.1, 2, 3), 3, 0.01, 0.1)


RATES: dict[str, Callable[[], Any]] = {
    "constant": lambda: 0.1,
    "cosine": lambda: layers.cosine_decay(0.1, 2, 3),
    "exponential": lambda: layers.exponential_decay(0.1, 2, 0.5),
    "noam": lambda: layers.noam_decay(16, 4),
    "piecewise": lambda: layers.piecewise_decay([2, 4], [0.1, 0.03, 0.01]),
    "warming up": warming_up,
}


def built(rate: Callable[[], Any]) -> tuple[Any, Any, Any, Any]:
    """Build a program with one more rate; return it, its startup, the loss and the rate."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = regression(6)()[0]
        optimizer = fluid.optimizer.Momentum(rate(), 0.9)
        optimizer.minimize(loss)
        return main, startup, loss, optimizer._global_learning_rate()


def fed(step: int, rows: int = 5) -> dict[str, Any]:
    return {name: value for name, value in batch(step, rows).items() if name in ("x", "y")}


def train(rate: Callable[[], Any], every: int = 1) -> list[Any]:
    """The script: fetch the loss, and in every n-th step the rate, between others and twice."""
    main, startup, loss, fetched = built(rate)
    exe = fluid.Executor()
    exe.run(startup)
    counter = [COUNTER] if main.global_block().has_var(COUNTER) else []
    found = []
    for step in range(STEPS):
        asked = [fetched, loss, *counter, fetched.name] if (step + 1) % every == 0 else [loss]
        found.append(exe.run(main, feed=fed(step), fetch_list=asked))
    found.append(exe.run(main, feed=fed(STEPS), fetch_list=[fetched]))
    return found


def assert_alike(got: list[Any], wanted: list[Any]) -> None:
    assert len(got) == len(wanted)
    for step, (ours, theirs) in enumerate(zip(got, wanted)):
        facts = [[(v.shape, v.dtype) for v in values] for values in (ours, theirs)]
        assert facts[0] == facts[1], step
        for mine, other in zip(ours, theirs):
            np.testing.assert_allclose(mine, other, rtol=1e-5, err_msg=f"step {step}")


@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("name", sorted(RATES))
def test_rates_are_those_of_one_process(name, trainers, servers):
    with alone():
        wanted = train(RATES[name])
    rates = [step[0].item() for step in wanted]
    assert (len(set(rates)) > 1) == (name != "constant")
    for got in values(run_job(trainers, servers, lambda role: train(RATES[name]))):
        assert_alike(got, wanted)
        assert [step[0].item() for step in got] == rates  # the same bits


@pytest.mark.parametrize(("trainers", "servers"), [(2, 1), (1, 3)])  # a server without parameters
def test_rates_may_be_fetched_now_and_then(trainers, servers):
    with alone():
        wanted = train(warming_up, every=3)
    for got in values(run_job(trainers, servers, lambda role: train(warming_up, every=3))):
        assert_alike(got, wanted)


def test_rates_are_those_of_the_step_where_rows_are_pushed():
    def script() -> list[Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = embedded()[0]
            rate = layers.exponential_decay(0.1, 1, 0.5)
            fluid.optimizer.SGD(rate).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        feeds = [{n: v for n, v in batch(s, 6).items() if n != "label"} for s in range(STEPS)]
        return [exe.run(main, feed=feed, fetch_list=[loss, rate]) for feed in feeds]

    with alone():
        wanted = script()
    for got in values(run_job(2, 2, lambda role: script())):
        assert_alike(got, wanted)


def test_a_rate_is_of_this_step_though_another_trainer_pushes_its_rows_late(monkeypatch):
    push = PsClient.push_rows

    def late(*args: Any, **how: Any) -> None:
        time.sleep(0.1)  # while trainer 0 asks
        push(*args, **how)

    def script(role: Any = None) -> list[Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            word, y = layers.data("word", [1], dtype="int64"), layers.data("y", [1])
            guess = layers.embedding(word, [11, 1], is_sparse=True)  # the server's only parameter
            loss = layers.mean(layers.square_error_cost(guess, y))
            rate = layers.exponential_decay(0.1, 1, 0.5)
            fluid.optimizer.SGD(rate).minimize(loss)
        if role is not None and role.index == 1:
            monkeypatch.setattr(PsClient, "push_rows", late)
        exe = fluid.Executor()
        exe.run(startup)
        feeds = [{n: v for n, v in batch(s, 6).items() if n in ("word", "y")} for s in range(2)]
        return [exe.run(main, feed=feed, fetch_list=[loss, rate]) for feed in feeds]

    with alone():
        wanted = script()
    for got in values(run_job(2, 1, script)):
        assert_alike(got, wanted)


def transpiled(role: Any, trainers: int, servers: int, **asked: Any) -> list[Any]:
    """A script that transpiles itself: trainer 0 alone fetches the rate."""
    main, startup, loss, rate = built(warming_up)
    exe, program = begin(role, trainers, servers, main, startup, **asked)
    found = []
    for step in range(STEPS):
        names = [loss, rate, COUNTER] if role.index == 0 else [loss]
        found.append(exe.run(program, feed=fed(step), fetch_list=names)[1:])
    return found


def test_a_script_that_transpiles_itself_fetches_rates_too():
    with alone():
        wanted = [[step[0], step[2]] for step in train(warming_up)[:STEPS]]
    got = values(run_job(2, 1, lambda role: transpiled(role, 2, 1)))
    assert_alike(got[0], wanted)
    assert_alike(got[1], [[] for _ in range(STEPS)])


def test_in_asynchronous_modes_they_are_refused_by_name():
    outcomes = run_job(1, 1, lambda role: transpiled(role, 1, 1, sync_mode=False))
    errors = [o.error for o in outcomes if "FeedError" in o.error_types]
    assert errors and all("belongs to no step of one trainer" in error for error in errors)


def test_while_gradients_are_merged_they_are_refused_by_name():
    def script() -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = regression(6)()[0]
            rate = warming_up()
            inner = fluid.optimizer.SGD(rate)
            fluid.optimizer.GradientMergeOptimizer(inner, k_steps=2).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(main, feed=fed(0), fetch_list=[loss, rate])

    outcomes = run_job(1, 1, lambda role: script(), aborts=True)
    errors = [o.error for o in outcomes if "FeedError" in o.error_types]
    assert errors and all("while gradients are merged" in error for error in errors)


def test_a_checkpoint_brings_them_back(tmp_path):
    def script(folder: Any) -> list[Any]:
        """Train, save, train on, go back, and train again."""
        main, startup, loss, rate = built(RATES["exponential"])
        exe = fluid.Executor()
        exe.run(startup)
        saver = fluid.checkpoint.Saver(exe, folder, main_program=main)
        found = [exe.run(main, feed=fed(step), fetch_list=[loss, rate]) for step in range(2)]
        saver.save()
        found += [exe.run(main, feed=fed(step), fetch_list=[loss]) for step in range(2, 4)]
        fluid.checkpoint.restore(exe, folder, main_program=main)
        found += [exe.run(main, feed=fed(step), fetch_list=[loss, rate]) for step in range(2, 4)]
        return found

    folder = mpi_world().allgather_bytes(str(tmp_path).encode())[0].decode()
    with alone():
        wanted = script(tmp_path / "alone")
    for got in values(run_job(2, 2, lambda role: script(f"{folder}/job"))):
        assert_alike(got, wanted)


@pytest.mark.parametrize("decays", [False, True])
def test_programs_in_turns_have_rates_of_their_own(decays):
    def rate(number: int) -> Any:
        if not decays:
            return 0.1 * (number + 1)
        piecewise = layers.piecewise_decay([3, 6], [0.1, 0.05, 0.02])
        return piecewise if number else layers.exponential_decay(0.1, 2, 0.5)

    def script() -> list[Any]:
        mains, startup, fetched = [fluid.Program(), fluid.Program()], fluid.Program(), []
        startup.random_seed = 3
        with fluid.unique_name.guard():
            for number, main in enumerate(mains):
                with fluid.program_guard(main, startup):
                    loss = regression()()[0]
                    optimizer = fluid.optimizer.SGD(rate(number))
                    optimizer.minimize(loss)
                    fetched.append([loss, optimizer._global_learning_rate()])
        exe = fluid.Executor()
        exe.run(startup)
        turns = [(step, turn) for step in range(3) for turn in (0, 1)]
        return [exe.run(mains[t], feed=fed(s), fetch_list=fetched[t]) for s, t in turns]

    with alone():
        wanted = script()
    for got in values(run_job(2, 2, lambda role: script())):
        assert_alike(got, wanted)


@pytest.mark.parametrize("name", ["constant", "piecewise"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_the_scope_has_rates_that_servers_compute(name, by_hand):
    def read(variable: str) -> Any:
        return np.array(fluid.global_scope().find_var(variable).get_tensor())

    def script(role: Any = None) -> list[Any]:
        main, startup, _, rate = built(RATES[name])
        if role is not None and by_hand:
            exe, main = begin(role, 1, 1, main, startup)
        else:
            exe = fluid.Executor()
            exe.run(startup)
        found = [read(rate.name)] if name == "constant" else []
        for step in range(STEPS):
            exe.run(main, feed=fed(step))
            found.append(read(rate.name))
        if role is not None:
            assert fluid.global_scope().find_var(rate.name).get_tensor().shape() == [1]
            with pytest.raises(FeedError, match=r"velocity.* is on the parameter servers only"):
                read("fc_0.w_0_velocity_0")
        return found

    with alone():
        wanted = script()
    np.testing.assert_allclose(values(run_job(1, 1, script))[0], wanted, rtol=1e-6)


def test_the_scope_has_the_rows_of_a_sparse_table():
    def script(role: Any = None) -> list[Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = embedded()[0]
            fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        found = []
        for step in range(3):
            feed = {n: v for n, v in batch(step, 6).items() if main.global_block().has_var(n)}
            exe.run(main, feed=feed)
            found.append(np.array(fluid.global_scope().find_var("table").get_tensor()))
        return found

    with alone():
        wanted = script()
    np.testing.assert_allclose(values(run_job(1, 1, script))[0], wanted, rtol=1e-5)

"""Hybrid jobs: servers keep distributed tables, trainers sum the gradients of all else."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import HpcdistError, PlanError
from hpcdist.executor import control, executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.transpiler import GeoSgdTranspiler
from tests.support.thread_jobs import ranks_as_threads

STEPS, ROWS, BOTH_ENDS = 4, 8, [-(2**63), 2**63 - 1]


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDIST_DENSE", "collective")


def build(
    rate: Any = 0.1, table: bool = True, make: Any = fluid.optimizer.Adagrad
) -> tuple[fluid.Program, fluid.Program, fluid.Program, Any]:
    """Return a model with a table of any ids: main, startup and test Program, and the loss."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = layers.data("ids", [2], dtype="int64")
        y = layers.data("y", [1])
        attr = fluid.ParamAttr("table", initializer=fluid.initializer.Normal(0.0, 0.3))
        rows = fluid.embedding(ids, [-1 if table else 40, 4], table, table, None, attr)
        hidden = layers.fc(layers.reduce_sum(rows, dim=1), 5, act="tanh", name="wide")
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1, name="last"), y))
        test = main.clone(for_test=True)
        make(rate() if callable(rate) else rate).minimize(loss)
    return main, startup, test, loss


def batch(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    pool = np.array([*BOTH_ENDS, *range(6)])
    y = random.normal(size=(ROWS, 1)).astype(np.float32)
    return {"ids": random.choice(pool, (ROWS, 2)), "y": y}


def train(built: Any, feeds: Any = None) -> list[float]:
    """A plain script: return its losses, and those of its test Program."""
    main, startup, test, loss = built
    exe = fluid.Executor()
    exe.run(startup)
    told = []
    for step in range(STEPS):
        feed = {**batch(step), **(feeds(step, main) if feeds else {})}
        told.append(exe.run(main, feed=feed, fetch_list=[loss])[0].item())
        told.append(exe.run(test, feed=batch(50 + step), fetch_list=[loss])[0].item())
    return told


def alone(feeds: Any = None, **how: Any) -> list[float]:
    with scope_guard(Scope()):
        return train(build(**how), feeds)


def job(trainers: int, servers: int, script: Any, make: Any = build) -> list[Any]:
    """Run a script on all ranks, each with what ``make`` has built for it; return trainers' values.

    It is built before ranks are threads, which share the default programs.
    """
    scripts = [functools.partial(script, make()) for _ in range(trainers + servers)]
    with ranks_as_threads() as run:
        return run(trainers, servers, scripts)


def in_job(trainers: int, servers: int, feeds: Any = None, **how: Any) -> list[float]:
    make = functools.partial(build, **how)
    first, *others = job(trainers, servers, functools.partial(train, feeds=feeds), make)
    assert all(other == first for other in others)
    return first


def decayed() -> Any:
    return layers.exponential_decay(0.1, 2, 0.5, staircase=True)


@pytest.mark.usefixtures("hybrid")
@pytest.mark.parametrize("make", [fluid.optimizer.Adagrad, fluid.optimizer.SGD])
def test_any_number_of_servers_gives_the_bits_of_none(make: Any) -> None:
    how = {"rate": decayed, "make": make}
    wanted = alone(**how)
    assert wanted[0] != wanted[-2]
    assert in_job(1, 1, **how) == wanted
    without = in_job(2, 0, **how)
    np.testing.assert_allclose(without, wanted, 1e-5)
    for servers in (1, 2, 3):
        assert in_job(2, servers, **how) == without


@pytest.mark.usefixtures("hybrid")
def test_dense_parameters_are_on_trainers_and_rows_on_servers() -> None:
    def script(built: Any) -> Any:
        main, startup, _, loss = built
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(main, feed=batch(0), fetch_list=[loss])
        peers = control.installed().peers()
        ran = [op.type for op in peers.program(main).global_block().ops]
        return peers.ask({"do": "list"}) if peers.trainer == 0 else [], ran

    (listed, types), _ = job(2, 2, script)
    assert listed == [[], []], "servers write rows only"
    assert types.count("c_allreduce_sum") == 4 and "pull_sparse" in types
    assert "adagrad" in types and not {"send", "recv", "make_table"}.intersection(types)


@pytest.mark.usefixtures("hybrid")
def test_what_clips_looks_at_summed_gradients_of_dense_parameters() -> None:
    def clipped(rate: Any) -> Any:
        return fluid.optimizer.SGD(rate, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.05))

    wanted = alone(make=clipped, rate=0.5)
    assert wanted != alone(make=fluid.optimizer.SGD, rate=0.5)
    np.testing.assert_allclose(in_job(2, 1, make=clipped, rate=0.5), wanted, 1e-5)


@pytest.mark.usefixtures("hybrid")
def test_rows_that_are_counted_as_gradients_are_refused() -> None:
    def counted() -> Any:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            ids, y = layers.data("ids", [1], dtype="int64"), layers.data("y", [1])
            rows = fluid.embedding(ids, [-1, 4], True, True)
            hidden = layers.data_norm(layers.reduce_sum(rows, dim=1))
            loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
            fluid.optimizer.SGD(0.1).minimize(loss)
        return main, startup, main, loss

    with pytest.raises(PlanError, match="gives numbers of rows as gradients"):
        job(2, 1, train, counted)


# -- learning rates, which trainers and servers both have -------------------------------------
def fed_rate() -> Any:
    return layers.create_global_var([1], 0.1, "float32", persistable=True, name="rate")


def rate_of(step: int, main: fluid.Program) -> dict[str, np.ndarray]:
    return {"rate": np.array([0.2 / (1 + step)], np.float32)}


@pytest.mark.usefixtures("hybrid")
def test_a_rate_that_is_fed_moves_rows_and_dense_parameters() -> None:
    wanted = alone(rate=fed_rate, feeds=rate_of)
    assert wanted != alone(rate=fed_rate)
    for servers in (1, 2):
        np.testing.assert_allclose(in_job(2, servers, rate=fed_rate, feeds=rate_of), wanted, 1e-5)


@pytest.mark.usefixtures("hybrid")
def test_a_rate_that_a_trainer_sets_is_refused() -> None:
    def set_rate(step: int, main: fluid.Program) -> dict[str, np.ndarray]:
        if step == 2:
            found = executor.global_scope().find_var("rate")
            found.get_tensor().set(np.array([0.5], np.float32), fluid.CPUPlace())
        return {}

    with pytest.raises(PlanError, match="'rate' was changed on the trainer.*feed a learning rate"):
        in_job(2, 1, rate=fed_rate, feeds=set_rate)


# -- scripts that transpile -------------------------------------------------------------------
def transpiled(config: Any, trainer: int = 0, **how: Any) -> Any:
    main, startup, _, loss = build(**how)
    made = fluid.DistributeTranspiler(config)
    made.transpile(trainer, main, "ps0:1,ps1:1", trainers=2, startup_program=startup)
    return made, main, startup, loss


def summing(**facts: Any) -> fluid.DistributeTranspilerConfig:
    config = fluid.DistributeTranspilerConfig()
    config.dense = "collective"
    for name, value in facts.items():
        setattr(config, name, value)
    return config


def test_the_programs_say_who_has_what() -> None:
    made, main, _, _ = transpiled(summing(), rate=decayed)
    assert not any("allreduce" in op.type for op in main.global_block().ops), "stays as it was"
    trainer = made.get_trainer_program()
    summed = [op for op in trainer.global_block().ops if op.type == "c_allreduce_sum"]
    assert {name for op in summed for name in op.input("X")} == {
        f"{layer}.{part}@GRAD" for layer in ("wide", "last") for part in ("w_0", "b_0")
    }
    for endpoint in ("ps0:1", "ps1:1"):
        server, startup = made.get_pserver_programs(endpoint)
        held = {v.name for v in startup.list_vars() if v.persistable and "GRAD" not in v.name}
        assert "table" in held and not any("wide" in n or "last" in n for n in held)
        assert made.vars_overview.distributed_vars == ()
        assert [op.type for op in server.global_block().ops] == ["listen_and_serv"]
    assert trainer._is_distributed and trainer._endpoints == ["ps0:1", "ps1:1"]


@pytest.mark.parametrize(
    ("facts", "how", "words"),
    [
        ({}, {"table": False}, "servers keep distributed tables, and this program has none"),
        ({"dense": "nccl2"}, {}, "config.dense: expected one of pserver, collective, got 'nccl2'"),
    ],
)
def test_what_makes_no_sense_is_refused(facts: Any, how: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        transpiled(summing(**facts), **how)


def test_trainers_that_do_not_wait_for_each_other_are_refused() -> None:
    main, startup, _, _ = build()
    made = fluid.DistributeTranspiler(summing())
    with pytest.raises(PlanError, match="sync_mode=False: with dense = 'collective' trainers sum"):
        made.transpile(0, main, "ps0:1", 2, sync_mode=False, startup_program=startup)
    geo = GeoSgdTranspiler(summing(geo_sgd_mode=True, sync_mode=False))
    with pytest.raises(PlanError, match="GEO mode: with dense = 'collective'"):
        geo.transpile(0, main, "ps0:1", 2, startup_program=startup)


@pytest.mark.usefixtures("hybrid")
def test_a_second_program_that_trains_tables_otherwise_is_refused() -> None:
    def make() -> Any:
        return [build(make=make) for make in (fluid.optimizer.Adagrad, fluid.optimizer.SGD)]

    def script(built: Any) -> None:
        exe = fluid.Executor()
        for main, startup, _, loss in built:
            exe.run(startup)
            exe.run(main, feed=batch(0), fetch_list=[loss])

    with pytest.raises(HpcdistError, match="a program other than the first"):
        job(1, 1, script, make)


@pytest.mark.usefixtures("hybrid")
@pytest.mark.parametrize("last", [False, True])
def test_a_program_without_tables_may_share_the_startup_program(last: bool) -> None:
    def make() -> Any:
        mains, startup = [], fluid.Program()
        startup.random_seed = 5
        with fluid.unique_name.guard():
            for table in (last, not last):
                mains.append(add(startup, table))
        return mains, startup

    def add(startup: fluid.Program, table: bool) -> Any:
        main = fluid.Program()
        with fluid.program_guard(main, startup):
            ids, y = layers.data("ids", [2], dtype="int64"), layers.data("y", [1])
            values = layers.cast(ids % 7, "float32")
            if table:
                values = layers.reduce_sum(fluid.embedding(ids, [-1, 4], True, True), dim=1)
            guess = layers.fc(values, 1)
            loss = layers.mean(layers.square_error_cost(guess, y))
            fluid.optimizer.SGD(0.01).minimize(loss)
        return main, loss

    def script(built: Any) -> list[float]:
        mains, startup = built
        exe = fluid.Executor()
        exe.run(startup)
        fed = (batch(step) for step in range(STEPS))
        return [exe.run(m, feed=f, fetch_list=[v])[0].item() for f in fed for m, v in mains]

    with scope_guard(Scope()):
        wanted = script(make())
    for told in job(2, 1, script, make):
        np.testing.assert_allclose(told, wanted, 1e-4)


@pytest.mark.usefixtures("hybrid")
@pytest.mark.parametrize("fed", [False, True])
def test_a_program_without_tables_that_changes_their_rate_is_refused(fed: bool) -> None:
    def make() -> Any:
        main, startup, _, loss = build(rate=fed_rate)
        other = fluid.Program()
        with fluid.program_guard(other, startup), fluid.unique_name.guard("other"):
            guess = layers.fc(layers.data("y", [1]), 1)
            rate = other.global_block().create_var(
                name="rate", shape=[1], dtype="float32", persistable=True
            )
            fluid.optimizer.SGD(rate).minimize(layers.mean(guess))
            if not fed:
                layers.assign(rate * 0.5, rate)
        return main, startup, loss, other

    def script(built: Any) -> None:
        main, startup, loss, other = built
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(main, feed=batch(0), fetch_list=[loss])
        exe.run(other, feed={"y": batch(0)["y"], **(rate_of(1, other) if fed else {})})

    with pytest.raises(HpcdistError, match="'rate'.*servers"):
        job(2, 1, script, make)


@pytest.mark.usefixtures("hybrid")
def test_a_table_that_servers_do_not_have_is_refused() -> None:
    def make() -> Any:
        test = fluid.Program()
        with fluid.program_guard(test, fluid.Program()), fluid.unique_name.guard():
            ids = layers.data("ids", [1], dtype="int64")
            rows = fluid.embedding(ids, [-1, 4], True, True, None, fluid.ParamAttr("other"))
        return build()[1], test, rows

    def script(built: Any) -> None:
        startup, test, rows = built
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(test, feed={"ids": np.zeros((1, 1), np.int64)}, fetch_list=[rows])

    with pytest.raises(HpcdistError, match="table 'other' is not on the servers"):
        job(1, 1, script, make)


@pytest.mark.usefixtures("hybrid")
def test_one_trainer_may_look_rows_up_by_itself() -> None:
    """Without servers all would have to."""

    def script(built: Any) -> list[float]:
        main, startup, test, loss = built
        exe = fluid.Executor()
        exe.run(startup)
        told = []
        for step in range(STEPS):
            exe.run(main, feed=batch(step), fetch_list=[loss])
            if step % 2 and control.installed().role.index == 0:
                told.append(exe.run(test, feed=batch(50 + step), fetch_list=[loss])[0].item())
        return told

    first, second = job(2, 1, script)
    np.testing.assert_allclose(first, alone()[3::4], 1e-5)
    assert second == []

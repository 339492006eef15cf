"""Tables that live on servers only: jobs compute what one process computes, on any servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import PSERVER
from hpcdist.ps.table import SparseTable
from tests.mpi.table_programs import (
    ANY,
    BEGINNINGS,
    ENDS,
    OPTIMIZERS,
    STEPS,
    batch,
    build,
    table,
)
from tests.support.device import install
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
SHAPES = [(1, 1), (2, 1), (3, 1), (2, 2), (1, 3), (2, 0), (3, 0)]  # trainers, servers


def train(optimizer: str, place: Any = None, **how: Any) -> list[list[np.ndarray]]:
    """A plain script: return what is fetched in each step, and from the test program."""
    main, startup, test, fetch = build(optimizer, **how)
    exe = fluid.Executor(place or fluid.CPUPlace())
    exe.run(startup)
    told = [exe.run(test, feed=batch(50), fetch_list=fetch[1:])]
    for step in range(STEPS):
        told.append(exe.run(main, feed=batch(step), fetch_list=fetch))
        told.append(exe.run(test, feed=batch(50 + step), fetch_list=fetch[1:]))
    return told


def assert_close(got: Any, wanted: Any, near: float) -> None:
    for step, pair in enumerate(zip(got, wanted, strict=True)):
        for ours, theirs in zip(*pair, strict=True):
            np.testing.assert_allclose(ours, theirs, near, near, err_msg=f"fetch {step}")


# -- plain scripts ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_a_job_computes_what_one_process_computes(trainers: int, servers: int) -> None:
    with alone():
        wanted = train("adagrad")
    for got in values(run_job(trainers, servers, lambda role: train("adagrad"))):
        assert_close(got, wanted, 1e-5)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_any_optimizer_moves_rows_with_its_schedule(optimizer: str) -> None:
    with alone():
        wanted = train(optimizer)
    assert not np.array_equal(wanted[1][0], wanted[3][0])
    near = 5e-5 if optimizer == "adam" else 1e-5
    for servers in (1, 0):
        if fluid_world() < servers + 2:
            continue
        for got in values(run_job(2, servers, lambda role: train(optimizer))):
            assert_close(got, wanted, near)


@pytest.mark.parametrize("begin", sorted(BEGINNINGS))
def test_rows_begin_as_their_initializer_says(begin: str) -> None:
    with alone():
        wanted = train("sgd", begin=begin, rows=100)
    for got in values(run_job(1, 2, lambda role: train("sgd", begin=begin, rows=100))):
        assert [v.tobytes() for step in got for v in step] == [
            v.tobytes() for step in wanted for v in step
        ]


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_one_trainer_gets_the_same_bits_from_any_number_of_servers(optimizer: str) -> None:
    with alone():
        wanted = train(optimizer)
    for servers in (1, 2, 3):
        if fluid_world() < servers + 1:
            continue
        (got,) = values(run_job(1, servers, lambda role: train(optimizer)))
        assert [v.tobytes() for step in got for v in step] == [
            v.tobytes() for step in wanted for v in step
        ], f"{servers} servers"


def test_trainers_may_compute_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a stand-in for cupy: rows arrive in, and leave from, host memory."""
    with alone():
        wanted = train("adam")
    install(monkeypatch)
    for got in values(run_job(1, 1, lambda role: train("adam", fluid.CUDAPlace(0)))):
        assert_close(got, wanted, 5e-5)


def fluid_world() -> int:
    from hpcdist.comm.world import mpi_world

    return mpi_world().size


# -- scripts that transpile themselves -------------------------------------------------------------
def script(trainers: int, servers: int, optimizer: str, *, sync_mode: bool, config: Any = None):
    """Return a Fluid script; every trainer trains on rows of its own."""

    def run(role: Any) -> list[list[np.ndarray]]:
        main, startup, _, fetch = build(optimizer, rows=10**11)
        transpiler = fluid.DistributeTranspiler(config)
        exe, program = begin(
            role, trainers, servers, main, startup, transpiler, sync_mode=sync_mode
        )
        told = []
        for step in range(STEPS):
            feed = {n: v[role.index :: trainers] for n, v in batch(step).items()}
            told.append(exe.run(program, feed=feed, fetch_list=fetch[:1]))
        exe.close()
        return told

    return run


def local(optimizer: str) -> list[list[np.ndarray]]:
    with alone():
        main, startup, _, fetch = build(optimizer, rows=10**11)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [exe.run(main, feed=batch(s), fetch_list=fetch[:1]) for s in range(STEPS)]


@pytest.mark.parametrize(
    ("servers", "dense"), [(1, "pserver"), (2, "pserver"), (1, "collective"), (2, "collective")]
)
def test_synchronous_trainers_average(servers: int, dense: str) -> None:
    wanted = local("adam")
    config = fluid.DistributeTranspilerConfig()
    config.dense = dense
    told = values(run_job(2, servers, script(2, servers, "adam", sync_mode=True, config=config)))
    means = [[(a[0] + b[0]) / 2] for a, b in zip(*told)]
    assert_close(means, wanted, 5e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_asynchronous_trainer_is_local_training_bit_for_bit(optimizer: str) -> None:
    wanted = local(optimizer)
    (got,) = values(run_job(1, 1, script(1, 1, optimizer, sync_mode=False)))
    assert [v[0].tobytes() for v in got] == [v[0].tobytes() for v in wanted]


def communicating(*, half: bool = False, lockstep: bool = False) -> Any:
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode, config.runtime_split_send_recv = False, True
    config.half_async, config.completely_not_async = half, lockstep
    return config


@pytest.mark.parametrize("half", [False, True])
def test_a_communicator_takes_tables_along(half: bool) -> None:
    wanted = local("sgd")
    config = communicating(half=half)
    (got,) = values(run_job(1, 1, script(1, 1, "sgd", sync_mode=False, config=config)))
    assert_close(got, wanted, 1e-6)


def test_a_communicator_in_lockstep_averages() -> None:
    wanted = local("adam")
    config = communicating(half=True, lockstep=True)
    told = values(run_job(2, 2, script(2, 2, "adam", sync_mode=False, config=config)))
    means = [[(a[0] + b[0]) / 2] for a, b in zip(*told)]
    assert_close(means, wanted, 5e-5)


def test_asynchronous_trainers_share_tables() -> None:
    told = values(run_job(2, 1, script(2, 1, "adagrad", sync_mode=False)))
    assert all(np.isfinite(v[0]).all() for trainer in told for v in trainer)


def test_gradients_that_wait_are_refused_beside_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "4")
    config = communicating()
    outcomes = run_job(1, 1, script(1, 1, "sgd", sync_mode=False, config=config))
    assert "set CPU_NUM or FLAGS_communicator_send_queue_size to 1" in outcomes[0].error


@pytest.mark.parametrize("mode", ["nccl2", "grad_allreduce"])
def test_trainers_that_sum_gradients_share_tables_out(mode: str) -> None:
    """Each feeds rows of its own; no rank has all rows of a table."""

    def run(role: Any) -> Any:
        main, startup, _, fetch = build("adam", rows=10**11)
        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2" if mode == "nccl2" else "collective"
        config.collective_mode = None if mode == "nccl2" else mode
        names = ",".join(f"t{k}:1" for k in range(2))
        fluid.DistributeTranspiler(config).transpile(
            role.index, main, trainers=names, startup_program=startup, current_endpoint="t0:1"
        )
        exe = fluid.Executor()
        exe.run(startup)
        told = []
        for step in range(STEPS):
            feed = {n: v[role.index :: 2] for n, v in batch(step).items()}
            told.append(exe.run(main, feed=feed, fetch_list=fetch[:1]))
        return told, len(fluid.global_scope().find_var("wide").value)

    wanted = local("adam")
    (first, here), (second, there) = values(run_job(2, 0, run))
    assert_close([[(a[0] + b[0]) / 2] for a, b in zip(first, second)], wanted, 5e-5)
    used = {*ENDS, 10**15, 5, 6}
    assert here + there == len(used) and here and there


def test_a_trainer_that_tests_when_others_have_ended_is_told_so() -> None:
    def run(role: Any) -> None:
        main, startup, test, fetch = build("sgd")
        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2"
        fluid.DistributeTranspiler(config).transpile(
            role.index, main, trainers="t0:1,t1:1", startup_program=startup, current_endpoint="t0:1"
        )
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(main, feed=batch(0), fetch_list=fetch[:1])
        if role.index == 0:
            exe.run(test, feed=batch(1), fetch_list=fetch[1:])
        exe.close()

    error = first_error(run_job(2, 0, run))
    assert (
        "the script of trainer 1 has ended after 1 steps" in error and "for evaluation too" in error
    )


# -- what there is, and is not ---------------------------------------------------------------------
def test_no_trainer_has_a_table_and_servers_have_what_was_asked_for() -> None:
    def run(role: Any) -> Any:
        try:
            train("adam", rows=10**11)
        finally:
            scope = fluid.global_scope()
            held = {n: scope.find_var(n).value for n in scope.local_var_names()}
            tables = {n: v for n, v in held.items() if isinstance(v, SparseTable)}
            biggest = max((v.nbytes for v in held.values() if isinstance(v, np.ndarray)), default=0)
            assert biggest < 10000
            assert bool(tables) == (role.kind == PSERVER)
        return True

    values(run_job(1, 1, run))


def test_a_model_may_be_nothing_but_a_table() -> None:
    def run(role: Any = None) -> list[list[np.ndarray]]:
        main, startup = fluid.Program(), fluid.Program()
        startup.random_seed = 2
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            rows = table(layers.data("a", [1], dtype="int64"), "t", 1, ANY, None)
            cost = layers.square_error_cost(rows, layers.data("y", [1]))
            loss = layers.mean(cost)
            fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        feeds = [{n: v for n, v in batch(s).items() if n in ("a", "y")} for s in range(STEPS)]
        return [exe.run(main, feed=feed, fetch_list=[loss]) for feed in feeds]

    with alone():
        wanted = run()
    for servers in (1, 0):
        if fluid_world() < servers + 2:
            continue
        for got in values(run_job(2, servers, run)):
            assert_close(got, wanted, 1e-5)


# -- refusals --------------------------------------------------------------------------------------
def failing(feeds: list[dict[str, Any]], rows: int = ANY) -> Callable[[Any], None]:
    def run(role: Any) -> None:
        main, startup, _, fetch = build("sgd", rows=rows)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for feed in feeds:
            exe.run(main, feed=feed, fetch_list=fetch[:1])

    return run


def first_error(outcomes: list[Any]) -> str:
    errors = [o.error for o in outcomes if o.error and "Aborted" not in o.error_types]
    assert errors
    return errors[0]


def test_a_full_table_ends_the_job_with_one_error() -> None:
    feed = batch(0, 20)
    feed["a"] = np.arange(20, dtype=np.int64).reshape(-1, 1) * 7919
    error = first_error(run_job(1, 1, failing([feed], rows=12)))
    assert "table 'wide'" in error and "full" in error and "12" in error


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_no_number_names_table_and_id(value: float) -> None:
    feed = batch(1)
    feed["x"][2, 1] = value
    error = first_error(run_job(1, 1, failing([batch(0), feed])))
    assert (
        "table 'narrow': the gradient of id" in error
        and "no table is changed in this step" in error
    )


def test_malformed_ids_are_refused_when_fed() -> None:
    for ids in (np.zeros((6, 1), np.int32), np.zeros((6, 2), np.int64), np.zeros((6, 1))):
        outcomes = run_job(1, 1, failing([{**batch(0), "a": ids}]))
        assert "feed 'a': expected int64[-1, 1]" in first_error(outcomes)

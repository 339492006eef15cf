"""Tables that live on servers only: jobs compute what one process computes, on any servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import initializer, layers
from hpcdist.comm.cluster import PSERVER
from hpcdist.ps.table import SparseTable
from tests.support_device import install
from tests.support_job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

ENDS = [-(2**63), 2**63 - 1, -1, 0]
PADDING, STEPS, ROWS = 3, 5, 6
ANY = -1  # rows of a table that may have any number of ids
SHAPES = [(1, 1), (2, 1), (3, 1), (2, 2), (1, 3), (2, 0), (3, 0)]  # trainers, servers
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": fluid.optimizer.SGD,
    "momentum": lambda rate: fluid.optimizer.Momentum(rate, 0.9, use_nesterov=True),
    "adagrad": lambda rate: fluid.optimizer.Adagrad(rate, initial_accumulator_value=0.1),
    "adam": lambda rate: fluid.optimizer.Adam(rate, lazy_mode=True),
    "ftrl": lambda rate: fluid.optimizer.Ftrl(rate, l1=0.01, l2=0.01),
}
BEGINNINGS = {
    "uniform": initializer.Uniform(-0.5, 0.5),
    "normal": initializer.Normal(0.0, 0.5),
    "truncated": initializer.TruncatedNormal(0.0, 0.5),
    "constant": initializer.Constant(0.25),
    "xavier": None,
}


def table(ids: Any, name: str, width: int, rows: int, begin: Any, **how: Any) -> Any:
    attr = fluid.ParamAttr(name=name, initializer=begin)
    how = {"is_sparse": True, "is_distributed": True, "param_attr": attr, **how}
    return layers.embedding(ids, [rows, width], **how)


def net(rows: int, begin: Any) -> list[Any]:
    """Two tables, one of them looked up twice; return the loss and the guess."""
    a, b = (layers.data(name, [1], dtype="int64") for name in ("a", "b"))
    pair = layers.data("pair", [2], dtype="int64")
    attr = fluid.ParamAttr(name="narrow", initializer=begin)
    many = fluid.embedding(pair, [rows, 2], True, True, None, attr)
    parts = [
        table(a, "wide", 4, rows, begin, padding_idx=PADDING),
        table(b, "wide", 4, rows, begin, padding_idx=PADDING),
        layers.reduce_sum(many, dim=1),
        layers.data("x", [3]),
    ]
    guess = layers.fc(layers.concat(parts, axis=1), 1)
    cost = layers.square_error_cost(guess, layers.data("y", [1]))
    return [layers.mean(cost), guess]


def build(optimizer: str, rows: int = ANY, begin: str = "uniform") -> tuple[Any, ...]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 11
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        fetch = net(rows, BEGINNINGS[begin])
        test = main.clone(for_test=True)
        rate = layers.exponential_decay(0.2, 2, 0.5, staircase=True)
        OPTIMIZERS[optimizer](rate).minimize(fetch[0])
    return main, startup, test, fetch


def batch(step: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    pool = np.array([*ENDS, PADDING, 10**15, 5, 6], np.int64)
    feed = {name: rng.choice(pool, (rows, n)) for name, n in (("a", 1), ("b", 1), ("pair", 2))}
    feed["x"] = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    feed["y"] = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    return feed


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


# -- looking ahead ---------------------------------------------------------------------------------
def looking_ahead(feeds: list[dict[str, Any]], told: list[dict[str, Any]], *, sync_mode: bool):
    """Return a script that trains on ``feeds``, and says that they would be those ``told``."""

    def run(role: Any) -> list[bytes]:
        main, startup, _, fetch = build("sgd")
        exe, program = begin(role, 1, 1, main, startup, sync_mode=sync_mode)
        losses = [
            exe.run(program, feed=feed, fetch_list=fetch[:1])[0].tobytes()
            for feed, _ in zip(feeds, fluid.rows_ahead(told))
        ]
        exe.close()
        return losses

    return run


def apart(step: int) -> dict[str, Any]:
    """Return a batch of ids that the batches beside it do not have."""
    feed = batch(step)
    return feed | {name: feed[name] // 100 * 10 + step % 2 for name in ("a", "b", "pair")}


def local_losses(feeds: list[dict[str, Any]]) -> list[bytes]:
    with alone():
        main, startup, _, fetch = build("sgd")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [exe.run(main, feed=f, fetch_list=fetch[:1])[0].tobytes() for f in feeds]


def test_rows_ahead_are_those_of_one_step_before() -> None:
    feeds = [apart(step) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, feeds, sync_mode=False)))
    assert got == wanted, "rows that no step between has moved"
    feeds = [batch(step) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, feeds, sync_mode=False)))
    assert got[0] == wanted[0] and got[1:] != wanted[1:]


def test_rows_ahead_that_are_not_wanted_are_not_used() -> None:
    feeds = [batch(step) for step in range(STEPS)]
    told = [batch(step + 70) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, told, sync_mode=False)))
    assert got == wanted


def test_synchronous_trainers_do_not_look_ahead() -> None:
    feeds = [batch(step) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, feeds, sync_mode=True)))
    assert got == wanted


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

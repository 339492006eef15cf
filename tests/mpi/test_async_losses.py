"""Asynchronous servers: one trainer is local training, several converge, staleness is bounded."""

import time

import numpy as np
import pytest

from hpcdist import runtime
from hpcdist.comm.cluster import PSERVER
from hpcdist.comm.mpi import MpiTransport
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.golden.loader import golden
from tests.golden.loss_runs import STEPS, build, fed, tolerance
from tests.mpi.test_sync_losses import cluster_of, rows_of
from tests.mpi_ranks import run_ranks

RUNS = golden("losses.json")["runs"]
TURN, STOP = 77, object()  # a tag; the end of a trainer's turns
LOCAL = [n for n, run in RUNS.items() if not run["setting"]["clip"]]


def take_turns(transport, order, trainer):
    """Yield when it is a trainer's turn to step; the next one's comes when this one goes on."""
    token = np.zeros(1)
    for turn, who in enumerate(order):
        before, after = order[turn - 1], (*order, who)[turn + 1]
        if who == trainer:
            if turn and before != who:
                transport.wait_all([transport.irecv(token, before, TURN)], lambda: "a turn")
            yield
            if after != who:
                transport.wait_all([transport.isend(token, after, TURN)], lambda: "the next turn")


def train_async(
    transport, trainers, servers, setting, *, steps=STEPS, slow=None, order=None, **fields
):
    """Train asynchronously on this rank; return losses, parameters, and staleness per step.

    With an ``order`` trainers step one after the other, and begin when it is first their turn.
    """
    cluster = cluster_of(trainers, servers)
    role = cluster.role_of(transport.rank)
    config = DistributeTranspilerConfig()
    for name, value in fields.items():
        setattr(config, name, value)
    main, startup, loss = build(setting)
    transpiler = DistributeTranspiler(config)
    transpiler.transpile(
        role.index if role.kind != PSERVER else 0,
        program=main,
        pservers=",".join(cluster.endpoints),
        trainers=trainers,
        sync_mode=False,
        startup_program=startup,
    )
    runtime.start(transport, cluster)
    try:
        exe, scope = Executor(), Scope()
        if role.kind == PSERVER:
            program, first = transpiler.get_pserver_programs(cluster.endpoints[role.index])
            exe.run(first, scope=scope)
            exe.run(program, scope=scope)
            return [], {}, []
        program = transpiler.get_trainer_program()
        turns = take_turns(transport, order, role.index) if order else iter(range(steps))
        more = next(turns, STOP)
        exe.run(startup, scope=scope)
        losses, stale = [], []
        while more is not STOP:
            step = len(losses)
            feed = rows_of(fed(setting, step % STEPS), role.index, trainers)
            losses.append(float(exe.run(program, feed, [loss], scope=scope)[0][0]))
            stale.append(runtime.staleness())
            if slow == role.index:
                time.sleep(0.005)
            more = next(turns, STOP)
        names = [p.name for p in main.all_parameters() if p.name != "table"]
        values = {n: np.array(scope.find_var(n).get_tensor()) for n in names}
        exe.close()
        return losses, values, stale
    finally:
        runtime.finish()


def converged(losses, name):
    """Tell whether losses end far below what an untrained model has.

    A trainer's own first losses say little: the other one may have trained for a while by then.
    """
    untrained = RUNS[name]["local"]["loss"][0]
    return np.isfinite(losses).all() and np.mean(losses[-20:]) < 0.1 * untrained


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", LOCAL)
def test_one_trainer_is_local_training(name):
    """The same losses as one process, schedules and sparse tables included, on 1 to 3 servers."""
    assert_local(RUNS[name]["setting"])


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop"])
def test_one_trainer_of_a_cut_table_is_local_training_if_no_row_is_lost(monkeypatch, optimizer):
    """By default these lose rows as Fluid does: others, where a server has a part of the table."""
    monkeypatch.setenv("HPCDIST_SPARSE_ROWS", "exact")
    assert_local(RUNS["emb_sparse_sliced_sgd"]["setting"] | {"optimizer": optimizer})


def assert_local(setting):
    """Train alone and as one trainer, and compare the losses, bit for bit."""
    servers = min(MpiTransport.world().size - 1, 3)

    def local():
        main, startup, loss = build(setting)
        exe, scope = Executor(), Scope()
        exe.run(startup, scope=scope)
        return [
            exe.run(main, fed(setting, step), [loss], scope=scope)[0][0] for step in range(STEPS)
        ]

    def body(transport):
        fields = {"slice_var_up": setting["config"].get("slice_var_up", True)}
        losses, _, stale = train_async(transport, 1, servers, setting, **fields)
        if losses:
            assert np.array_equal(np.float32(losses), np.float32(local())), "not bit for bit"
            assert stale == [0] * STEPS

    run_ranks(1 + servers, body)


@pytest.mark.mpi(min_size=2)
def test_one_trainer_with_delay_compensation_is_local_training():
    """What the lone trainer read is what is there: nothing is compensated."""
    run = RUNS["mlp_sgd"]

    def body(transport):
        fields = {"enable_dc_asgd": True}
        losses, _, _ = train_async(transport, 1, 1, run["setting"], **fields)
        if losses:
            near = tolerance(run["setting"])
            np.testing.assert_allclose(losses, run["local"]["loss"], rtol=near, atol=near)

    run_ranks(2, body)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("dc", [False, True])
@pytest.mark.parametrize("name", ["linreg_sgd", "mlp_sgd", "mlp_adagrad"])
def test_several_trainers_converge(name, dc):
    setting = RUNS[name]["setting"]
    servers = min(MpiTransport.world().size - 2, 2)

    def body(transport):
        losses, _, _ = train_async(
            transport, 2, servers, setting, steps=100, enable_dc_asgd=dc, slice_var_up=True
        )
        if losses:
            assert converged(losses, name)

    run_ranks(2 + servers, body)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_staleness_is_bounded_when_asked(bound):
    """Two trainers, one slow: neither is more than ``bound`` answered steps ahead of the other.

    From ``bound`` behind when one reads, the other gets at most to ``bound`` + 1 sent ahead.
    """
    setting = RUNS["linreg_sgd"]["setting"]

    def body(transport):
        losses, _, stale = train_async(
            transport, 2, 1, setting, steps=30, slow=1, max_staleness=bound
        )
        if losses:
            assert max(stale) <= 2 * bound + 1

    run_ranks(3, body)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("order", [(0, 0, 1, 0, 1, 1, 0), (1, 1, 1, 0)])
@pytest.mark.parametrize("dc", [False, True])
def test_trainers_begin_one_by_one_and_nobody_waits(order, dc):
    """Each update by numbers, w -= rate (g + g g (w - what its trainer had read)), g of own rows.

    A trainer that comes late reads what others have made by then, and is not stale.
    """
    setting = RUNS["linreg_sgd"]["setting"]

    def numbers():
        made = {0: ([], []), 1: ([], [])}
        w = np.vstack([0.1 * np.sin(1.0 + np.arange(13.0))[:, None], [[0.05]]])
        read, version = {}, {}
        for turn, who in enumerate(order):
            losses, stale = made[who]
            if not losses:
                read[who], version[who] = w, turn
            fed_here = rows_of(fed(setting, len(losses)), who, 2)
            x = np.hstack([fed_here["x"], np.ones((len(fed_here["x"]), 1))])
            error = x @ read[who] - fed_here["y"]
            losses.append(float(np.mean(error**2)))
            stale.append(turn - version[who])
            g = 2 * x.T @ error / len(x)
            w = w - 0.01 * (g + dc * g * g * (w - read[who]))
            read[who], version[who] = w, turn + 1
        return made

    def body(transport):
        losses, _, stale = train_async(transport, 2, 1, setting, order=order, enable_dc_asgd=dc)
        if losses:
            wanted, staleness = numbers()[transport.rank]
            np.testing.assert_allclose(losses, wanted, rtol=1e-5)
            assert stale == staleness

    run_ranks(3, body)

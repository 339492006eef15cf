"""Asynchronous servers: one trainer is local training, several converge, staleness is bounded."""

import numpy as np
import pytest

from hpcdist.comm.world import mpi_world
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from tests.golden.loss_runs import STEPS, build, fed, tolerance
from tests.mpi.golden_jobs import LOCAL, RUNS, converged, rows_of, train_async
from tests.support.mpi_ranks import run_ranks


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", LOCAL)
def test_one_trainer_is_local_training(name):
    """The same losses as one process, schedules and sparse tables included, on 1 to 3 servers."""
    assert_local(RUNS[name]["setting"])


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop"])
def test_one_trainer_of_a_cut_table_is_local_training(optimizer):
    """Where servers have a part of the table each, no row is lost either."""
    assert_local(RUNS["emb_sparse_sliced_sgd"]["setting"] | {"optimizer": optimizer})


def assert_local(setting):
    """Train alone and as one trainer, and compare the losses, bit for bit."""
    servers = min(mpi_world().size - 1, 3)

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
    servers = min(mpi_world().size - 2, 2)

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

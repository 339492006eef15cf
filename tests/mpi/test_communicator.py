"""Programs whose send and recv hold whole variables: the communicator cuts, queues and merges."""

import numpy as np
import pytest

from hpcdist.comm.world import mpi_world
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from tests.golden.loader import golden
from tests.golden.loss_runs import STEPS, build, fed, tolerance
from tests.mpi.golden_jobs import LOCAL, RUNS, SHAPES, converged, train_async
from tests.support.mpi_ranks import run_ranks

SPLIT = {"sync_mode": False, "runtime_split_send_recv": True}
HALF = {**SPLIT, "half_async": True}
AVERAGED = {**HALF, "completely_not_async": True}
ASYNC_RUNS = {n: r for n, r in golden("losses.json")["runs"].items() if not r["setting"]["clip"]}


def local_losses(setting):
    main, startup, loss = build(setting)
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    runs = (exe.run(main, fed(setting, step), [loss], scope=scope) for step in range(STEPS))
    return [run[0][0] for run in runs]


@pytest.fixture
def flags(monkeypatch):
    """Return what sets FLAGS_communicator_*."""

    def set_flags(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"FLAGS_communicator_{name}", str(value))

    return set_flags


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("fields", [SPLIT, HALF, AVERAGED], ids=["async", "half", "averaged"])
@pytest.mark.parametrize("name", LOCAL)
def test_one_trainer_is_local_training(name, fields):
    """With the default flags nothing is merged: the losses of one process, bit for bit."""
    setting = RUNS[name]["setting"]
    servers = min(mpi_world().size - 1, 3)

    def body(transport):
        cut = {"slice_var_up": setting["config"].get("slice_var_up", True)}
        losses, _, stale = train_async(transport, 1, servers, setting, **fields, **cut)
        if losses:
            expected = np.float32(local_losses(setting))
            assert np.array_equal(np.float32(losses), expected), "not bit for bit"
            assert stale == [0] * STEPS

    run_ranks(1 + servers, body)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", sorted(ASYNC_RUNS))
def test_averaged_trainers_have_the_losses_of_synchronous_mode(name, monkeypatch):
    monkeypatch.setenv("HPCDIST_SPARSE_ROWS", "fluid")  # Fluid's Momentum misses rows
    run = ASYNC_RUNS[name]
    setting = run["setting"]
    size = mpi_world().size
    if size not in SHAPES:
        pytest.skip(f"no golden shape for {size} ranks")
    trainers, servers = SHAPES[size]

    def body(transport):
        cut = {"slice_var_up": setting["config"].get("slice_var_up", True)}
        losses, _, _ = train_async(transport, trainers, servers, setting, **AVERAGED, **cut)
        gathered = transport.allgather_bytes(np.array(losses, np.float64).tobytes())
        mine = [np.frombuffer(g, np.float64) for g in gathered][:trainers]
        near = tolerance(setting)
        np.testing.assert_allclose(np.mean(mine, 0), run["local"]["loss"], rtol=near, atol=near)

    run_ranks(size, body)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("fields", [SPLIT, HALF], ids=["async", "half"])
@pytest.mark.parametrize("name", ["linreg_sgd", "mlp_sgd", "mlp_adagrad"])
def test_several_trainers_converge(name, fields):
    setting = RUNS[name]["setting"]
    servers = min(mpi_world().size - 2, 2)

    def body(transport):
        losses, _, _ = train_async(transport, 2, servers, setting, steps=100, **fields)
        if losses:
            assert converged(losses, name)

    run_ranks(2 + servers, body)


@pytest.mark.mpi(min_size=3)
def test_delay_compensation_through_a_communicator():
    setting = RUNS["mlp_sgd"]["setting"]

    def body(transport):
        fields = {**SPLIT, "enable_dc_asgd": True}
        losses, _, _ = train_async(transport, 2, 1, setting, steps=100, **fields)
        if losses:
            assert converged(losses, "mlp_sgd")

    run_ranks(3, body)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sgd", [1, 0], ids=["sum", "mean"])
def test_merged_gradients_by_numbers(flags, sgd):
    """Two steps' gradients are taken at the same parameters, and make one update of both."""
    setting = RUNS["linreg_sgd"]["setting"]
    flags(max_merge_var_num=2, send_queue_size=2, send_wait_times=10**6, is_sgd_optimizer=sgd)
    steps = 5  # the last gradient is alone, and sent when the trainer leaves

    def body(transport):
        losses, _, _ = train_async(transport, 1, 1, setting, steps=steps, **SPLIT)
        if losses:
            expected = merged_by_hand(setting, steps, 2, mean=not sgd)
            np.testing.assert_allclose(losses, expected, rtol=1e-5)

    run_ranks(2, body)


def merged_by_hand(setting, steps, merge, *, mean, rates=()):
    """Return the losses of SGD on y = x w + b that updates after every ``merge`` steps."""
    rate = iter(rates or [0.01] * steps)
    i = np.arange(13)
    w, b = 0.1 * np.sin(1.0 + i)[:, None], 0.05
    losses, grads = [], []
    for step in range(steps):
        batch = fed(setting, step % STEPS)
        x, y = batch["x"].astype(np.float64), batch["y"].astype(np.float64)
        error = x @ w + b - y
        losses.append(float((error**2).mean()))
        grads.append((2 * x.T @ error / len(x), 2 * error.mean()))
        if len(grads) == merge:
            share = next(rate) / (merge if mean else 1)
            w, b = w - share * sum(g for g, _ in grads), b - share * sum(g for _, g in grads)
            grads = []
    return losses


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize("name", ["mlp_sgd", "emb_sparse_sgd"])
def test_a_longer_queue_converges_too(flags, name, merge):
    """Exchanges go on while later steps compute; sparse tables and dense ones alike."""
    setting = RUNS[name]["setting"]
    flags(max_merge_var_num=merge, send_queue_size=3, is_sgd_optimizer=0)

    def body(transport):
        losses, _, _ = train_async(transport, 2, 1, setting, steps=120, **SPLIT)
        if losses:
            assert converged(losses, name)

    run_ranks(3, body)


@pytest.mark.mpi(min_size=2)
def test_a_schedule_counts_merged_steps(flags):
    """The rate halves every five steps: with five merged in each exchange, at every exchange."""
    setting = {**RUNS["linreg_sgd"]["setting"], "optimizer": "sgd_exp"}
    flags(max_merge_var_num=5, send_queue_size=5, send_wait_times=10**6, is_sgd_optimizer=0)

    def body(transport):
        losses, _, _ = train_async(transport, 1, 1, setting, steps=16, **SPLIT)
        if losses:
            rates = [0.02, 0.01, 0.005]
            expected = merged_by_hand(setting, 16, 5, mean=True, rates=rates)
            np.testing.assert_allclose(losses, expected, rtol=1e-5)

    run_ranks(2, body)

"""Checkpoints in every way of training: saved, restored, and going on as if nothing had been."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import Checkpoint
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.world import mpi_world
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.launch import environment
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig, GeoSgdTranspiler
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
STEPS, SAVED = 9, 4
SPLIT = {"sync_mode": False, "runtime_split_send_recv": True}
MODES = {  # fields of the transpiler's configuration
    "async": {},
    "async, bounded": {"max_staleness": 2},
    "async, compensated": {"enable_dc_asgd": True},
    "communicator": SPLIT,
    "communicator, compensated": {**SPLIT, "enable_dc_asgd": True},
    "half async": {**SPLIT, "half_async": True},
    "averaged": {**SPLIT, "half_async": True, "completely_not_async": True},
    "GEO every step": {"geo_sgd_need_push_nums": 1},
    "GEO every 3 steps": {"geo_sgd_need_push_nums": 3},
}


def batch(step, trainer):
    random = np.random.default_rng([step, trainer])
    x = random.random((6, 13), dtype=np.float32)
    return {"x": x, "ids": random.integers(0, 300, (6, 1))}


def build(optimizer, *, sparse=True, normalized=False):
    fluid.default_startup_program().random_seed = 3
    x = fluid.data(name="x", shape=[None, 13], dtype="float32")
    ids = fluid.data(name="ids", shape=[None, 1], dtype="int64")
    hidden = fluid.layers.fc(x, size=900, act="relu")
    if normalized:
        hidden = fluid.layers.batch_norm(hidden)
    looked_up = fluid.layers.embedding(ids, size=[300, 12], is_sparse=sparse)
    missing = fluid.layers.scale(fluid.layers.fc(hidden, size=12) + looked_up, bias=-1.0)
    loss = fluid.layers.mean(fluid.layers.square(missing))
    optimizer.minimize(loss)
    return loss


def train(exe, program, loss, role, root, begin, save):
    """Train from step ``begin`` on, and save at SAVED; return losses, and all that is kept then."""
    if begin:
        assert fluid.checkpoint.restore(exe, root).step == SAVED
    losses = []
    for step in range(begin, STEPS):
        (value,) = exe.run(program, feed=batch(step, role.index), fetch_list=[loss])
        losses.append(float(value.reshape(-1)[0]))
        if step + 1 == SAVED and save:
            fluid.checkpoint.save(exe, root, SAVED, asynchronous=save == "beside")
            fluid.checkpoint.wait()
    scope = fluid.global_scope()
    kept = [var.name for var in program.list_vars() if var.persistable]
    found = {name: scope.find_var(name) for name in sorted(kept)}
    held = {name: v for name, v in found.items() if v and v.elsewhere is None}
    return losses, {name: np.array(v.get_tensor()).tobytes() for name, v in held.items()}


def by_servers(root, trainers, servers, fields, begin=0, save=False, optimizer=None):
    """Return a script that trains with servers, in the mode that ``fields`` ask for."""

    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            rate = fluid.layers.exponential_decay(0.02, 2, 0.8)
            # The delay of rows that are looked up cannot be compensated.
            sparse = not fields.get("enable_dc_asgd")
            chosen = optimizer(rate) if optimizer else fluid.optimizer.SGD(rate)
            loss = build(chosen, sparse=sparse)
            config = DistributeTranspilerConfig(min_block_size=8192, **fields)
            geo = "geo_sgd_need_push_nums" in fields
            made = (GeoSgdTranspiler if geo else DistributeTranspiler)(config)
            endpoints = [f"ps{k}:6174" for k in range(servers)]
            here = 0 if role.kind == "PSERVER" else role.index
            made.transpile(here, pservers=",".join(endpoints), trainers=trainers, sync_mode=False)
            exe = fluid.Executor()
            if role.kind == "PSERVER":
                main, startup = made.get_pserver_programs(endpoints[role.index])
                exe.run(startup)
                exe.run(main)
                raise SystemExit(0)
            exe.run(fluid.default_startup_program())
            return train(exe, made.get_trainer_program(), loss, role, root, begin, save)[0]

    return script


def momentum(rate):
    return fluid.optimizer.Momentum(rate, 0.9)


@pytest.mark.parametrize("name", MODES)
def test_one_trainer_goes_on_with_the_bits_of_one_that_was_never_saved(mpi_tmp_path, name):
    fields, save = MODES[name], "beside" if "every 3" in name else "at once"
    how = {"optimizer": momentum if "GEO" in name else None}  # its state is the trainer's there
    shape = (1, min(mpi_world().size - 1, 2))
    whole = values(run_job(*shape, by_servers(mpi_tmp_path, *shape, fields, **how)))
    saved = values(run_job(*shape, by_servers(mpi_tmp_path, *shape, fields, save=save, **how)))
    rest = values(run_job(*shape, by_servers(mpi_tmp_path, *shape, fields, SAVED, **how)))
    assert saved == whole
    assert rest == [losses[SAVED:] for losses in whole]


@pytest.mark.parametrize("thread", [True, False], ids=["in a thread", "in the step"])
def test_what_is_queued_is_sent_before_it_is_saved(mpi_tmp_path, monkeypatch, thread):
    """Saving sends what waits: training goes on from there, and so does the restored job."""
    flags = {"max_merge_var_num": 3, "send_queue_size": 3, "min_send_grad_num_before_recv": 2}
    for name, value in {**flags, "independent_recv_thread": int(thread)}.items():
        monkeypatch.setenv(f"FLAGS_communicator_{name}", str(value))

    run = values(run_job(1, 1, by_servers(mpi_tmp_path, 1, 1, SPLIT, save="at once")))
    with Checkpoint(mpi_tmp_path / f"step-{SAVED:06d}") as saved:
        assert saved.read("@LR_DECAY_COUNTER@.trainer_0") == SAVED
    assert np.isfinite(run).all()


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("name", MODES)
def test_two_trainers_go_on(mpi_tmp_path, name):
    """On more servers than had saved it."""
    fields = MODES[name]
    before = values(run_job(2, 1, by_servers(mpi_tmp_path, 2, 1, fields, save="beside")))
    servers = min(mpi_world().size - 2, 2)
    rest = values(run_job(2, servers, by_servers(mpi_tmp_path, 2, servers, fields, SAVED)))
    for losses, earlier in zip(rest, before):
        assert len(losses) == STEPS - SAVED
        assert max(losses) < earlier[0]  # of a net that has learnt


def without_servers(role, monkeypatch, root, begin=0, save=False, *, k_steps=None):
    """Train with fleet without servers; with ``k_steps`` average parameters in some steps only.

    "adaptive": the loss decides in which.
    """
    cluster = Cluster(tuple(range(2)), ())
    for name, value in environment.variables(cluster, role.index).items():
        monkeypatch.setenv(name, value)
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        fleet, strategy = Fleet(), DistributedStrategy()
        fleet.init(is_collective=True)
        if k_steps == "adaptive":
            strategy.adaptive_localsgd = True
            strategy.adaptive_localsgd_configs = {"init_k_steps": 3, "begin_step": 2}
        elif k_steps is not None:
            strategy.localsgd = True
            strategy.localsgd_configs = {"k_steps": k_steps, "begin_step": 2}
        adam = fleet.distributed_optimizer(fluid.optimizer.Adam(0.01), strategy)
        loss = build(adam, sparse=False, normalized=True)
        fluid.optimizer.ExponentialMovingAverage(0.9).update()
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        main = fluid.default_main_program()
        return train(exe, main, loss, role, root, begin, save)


@pytest.mark.parametrize("k_steps", [None, 1, 3, "adaptive"])
def test_trainers_that_differ_go_on_each_with_its_own_bits(mpi_tmp_path, monkeypatch, k_steps):
    """Between averages of local SGD, in moving averages of batch_norm, and averages of these."""

    def job(**how):
        return values(
            run_job(
                2,
                0,
                lambda role: without_servers(
                    role, monkeypatch, mpi_tmp_path, k_steps=k_steps, **how
                ),
            )
        )

    whole = job()
    assert job(save="beside") == whole
    rest = job(begin=SAVED)
    for (losses, kept), (before, kept_before) in zip(rest, whole):
        assert losses == before[SAVED:]
        assert kept == kept_before
    with Checkpoint(mpi_tmp_path / f"step-{SAVED:06d}") as saved:
        moving = [name for name in saved.variables if name.startswith("batch_norm_0.w_1")]
        means = "batch_norm_0.w_1", "batch_norm_0.w_1_ema_0"
        assert sorted(moving) == sorted(n + own for n in means for own in ("", "@trainer_1"))
        for name in means:
            assert (saved.read(name) != saved.read(f"{name}@trainer_1")).any()
        differ = saved.has("fc_0.w_0@trainer_1")
        assert differ == (k_steps is not None)
        if k_steps in (3, "adaptive"):  # step 4 is between the averages of steps 2 and 5
            assert (saved.read("fc_0.w_0") != saved.read("fc_0.w_0@trainer_1")).any()


def test_one_process_goes_on_as_trainer_0_was(mpi_tmp_path, monkeypatch):
    def script(role):
        return without_servers(role, monkeypatch, mpi_tmp_path, save="at once", k_steps=3)

    values(run_job(2, 0, script))

    def lone(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            loss = build(fluid.optimizer.Adam(0.01), sparse=False, normalized=True)
            exe, main = fluid.Executor(), fluid.default_main_program()
            exe.run(fluid.default_startup_program())
            fluid.checkpoint.restore(exe, mpi_tmp_path)
            with Checkpoint(mpi_tmp_path / f"step-{SAVED:06d}") as saved:
                for var in main.list_vars():
                    if var.persistable:
                        held = np.array(fluid.global_scope().find_var(var.name).get_tensor())
                        assert held.tobytes() == saved.read(var.name).tobytes(), var.name
            return train(exe, main, loss, role, mpi_tmp_path, 0, False)[0]

    (losses,) = values(run_job(1, 0, lone))
    assert losses[-1] < losses[0]

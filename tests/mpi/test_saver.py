"""Saver: jobs that are warned stop all together, and go on as if nothing had been."""

import random

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint, layers
from hpcdist.checkpoint import preemption
from hpcdist.checkpoint.directories import steps
from hpcdist.checkpoint.preemption import AGAIN
from hpcdist.errors import NotFiniteError
from tests.support.job import alone, run_job, values

EPOCHS = 4
ROWS = np.random.RandomState(5).rand(48, 5).astype(np.float32)


def train(folder, warn_at=None, every=None):
    """Train until the end, or until a warning; return the losses of this run by step."""
    random.seed(1)  # of the shuffle
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [4]), layers.data("y", [1])
        hidden = layers.dropout(layers.fc(x, 8, act="tanh"), 0.2)
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        fluid.optimizer.Momentum(layers.exponential_decay(0.1, 5, 0.9), 0.9).minimize(loss)
    exe = fluid.Executor()
    exe.run(startup)
    batches = fluid.batch(fluid.reader.shuffle(lambda: iter(ROWS), 20), 12)
    reader = checkpoint.resumable(batches)
    saver = checkpoint.Saver(exe, folder, every=every, reader=reader, main_program=main)
    saver.restore()
    losses = {}
    try:
        while reader.epoch < EPOCHS:
            for rows in reader():
                feed = {"x": np.stack(rows)[:, :4], "y": np.stack(rows)[:, 4:]}
                (value,) = exe.run(main, feed=feed, fetch_list=[loss])
                losses[saver.step] = float(value[0])
                if saver.step == warn_at:
                    preemption.told.set()
                saver.after_step()
    except SystemExit as end:
        assert end.code == AGAIN
    finally:
        preemption.told.clear()
    exe.close()
    return losses


@pytest.fixture
def folder(tmp_path_factory):
    """Return a directory that all ranks see."""
    from hpcdist.comm.world import mpi_world

    world = mpi_world()
    own = str(tmp_path_factory.mktemp("checkpoints")).encode()
    return world.broadcast_bytes(own if world.rank == 0 else None).decode()


def test_a_process_that_is_warned_goes_on(tmp_path):
    with alone():
        whole = train(tmp_path / "whole")
    pieces = {}
    for warn_at in (3, 4, 9, None):
        with alone():
            part = train(tmp_path / "parts", warn_at, every=5)
            assert not set(part) & set(pieces), "a step was made twice"
            pieces |= part
    assert pieces == whole


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 0), (2, 1), (2, 2), (3, 0)])
def test_one_warned_trainer_stops_all_after_the_same_step(monkeypatch, folder, trainers, servers):
    monkeypatch.setattr("hpcdist.checkpoint.saver.LOOK_S", 0.0)  # ask after every step
    expected = values(run_job(trainers, servers, lambda role: train(f"{folder}/whole")))

    def warned(role):
        return train(f"{folder}/parts", 4 if role.index == trainers - 1 else None)

    first = values(run_job(trainers, servers, warned))
    steps = {tuple(part) for part in first}
    assert len(steps) == 1 and 5 <= len(first[0]) < len(expected[0])
    second = values(run_job(trainers, servers, lambda role: train(f"{folder}/parts")))
    for whole, before, after in zip(expected, first, second):
        assert before | after == whole


@pytest.mark.mpi(min_size=1)
def test_every_must_be_a_number_of_steps(tmp_path):
    with pytest.raises(fluid.errors.CheckpointError, match="every: expected at least 1 step"):
        checkpoint.Saver(fluid.Executor(), tmp_path, every=0)


# -- when to save ----------------------------------------------------------------------------------
def started():
    """Build a small program and run its startup; return the executor, the program and the loss."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = layers.data("x", [4])
        loss = layers.mean(layers.fc(x, 3))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    exe = fluid.Executor()
    exe.run(startup)
    return exe, main, loss


def loop(folder, until, each, **how):
    """Run ``each(saver, step, program)`` in ``until`` steps; return the saved steps, best apart."""
    exe, main, loss = started()
    with checkpoint.Saver(exe, folder, main_program=main, **how) as saver:
        saver.restore()
        while saver.step < until:
            exe.run(main, feed={"x": np.ones((4, 4), np.float32)}, fetch_list=[loss])
            saver.after_step()
            each(saver, saver.step, main)
    exe.close()
    return [[step for step, _ in steps(f"{folder}{below}")] for below in ("", "/best")]


def nothing(saver, step, main):
    """Do nothing after a step."""


def test_the_end_is_saved_and_what_is_asked_for(tmp_path):
    with alone():
        found = loop(tmp_path, 7, lambda s, step, _: step == 3 and s.save(), every=5, keep=9)
    assert found == [[3, 5, 7], []]
    with alone():
        assert loop(tmp_path, 7, nothing, keep=9) == [[3, 5, 7], []]


def test_the_best_is_kept_apart_from_the_last(tmp_path):
    metrics = {1: 0.5, 2: 0.9, 3: float("nan"), 4: 0.7, 5: 0.95, 6: 0.1}
    told = {}

    def each(saver, step, main):
        told[step] = saver.save_best(metrics[step], extra=step)

    with alone():
        assert loop(tmp_path, 4, each, every=1, keep=2, best="max") == [[3, 4], [2]]
    with alone():  # what was best is known in the next job
        assert loop(tmp_path, 6, each, every=1, keep=2, best="max") == [[5, 6], [5]]
    assert told == {1: True, 2: True, 3: False, 4: False, 5: True, 6: False}
    with alone():
        saver = checkpoint.Saver(fluid.Executor(), tmp_path, main_program=fluid.Program())
        found = saver.restore(best=True)
    assert (found.step, found.extra, saver.step) == (5, 5, 5)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 0), (2, 1), (3, 0)])
def test_trainers_save_by_time_after_the_same_step(monkeypatch, folder, trainers, servers):
    monkeypatch.setattr("hpcdist.checkpoint.saver.LOOK_S", 0.0)

    def script(role):
        return loop(folder, 6, nothing, every_s=1e-6, keep=9)

    for found in values(run_job(trainers, servers, script)):
        assert found[0][-1] == 6 and len(found[0]) > 2


# -- NaN -------------------------------------------------------------------------------------------
@pytest.mark.mpi(min_size=1)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("trainers", "servers"), [(1, 0), (2, 0), (1, 1), (2, 2)])
def test_the_last_finite_checkpoint_stays(folder, caplog, trainers, servers, asynchronous):
    def script(role):
        exe, main, loss = started()
        saver = checkpoint.Saver(exe, folder, every=1 if asynchronous else None, main_program=main)
        for step in range(1, 7):
            value = np.nan if step > 3 else step
            exe.run(main, feed={"x": np.full((4, 4), value, np.float32)}, fetch_list=[loss])
            saver.after_step()
            if not asynchronous:
                saver.save()
            saver.save_best(-step)
        saver.close()
        ending = checkpoint.Saver(exe, folder, main_program=main, on_nan="end")
        with pytest.raises(NotFiniteError, match="fc_0.* holds NaN or infinity"):
            ending.save()
        return [[step for step, _ in steps(f"{folder}{below}")] for below in ("", "/best")]

    for found in values(run_job(trainers, servers, script)):
        assert found == [[2, 3], [3]]
    for path in checkpoint.latest(folder), checkpoint.latest(f"{folder}/best"):
        with checkpoint.Checkpoint(path) as saved:
            assert all(np.isfinite(saved.read(name)).all() for name in saved.variables)


@pytest.mark.mpi(min_size=1)
@pytest.mark.parametrize(("trainers", "servers"), [(1, 0), (2, 0), (1, 1)])
def test_merged_gradients_that_are_not_finite_are_not_saved(folder, trainers, servers):
    """Parameters are finite as yet: the next update would read these."""

    def script(role):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = layers.mean(layers.fc(layers.data("x", [4]), 3))
            sgd = fluid.optimizer.SGD(0.1)
            fluid.optimizer.GradientMergeOptimizer(sgd, k_steps=2).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        saver = checkpoint.Saver(exe, folder, every=1, keep=1, main_program=main)
        for step in range(1, 4):
            value = np.nan if step == 3 else step
            exe.run(main, feed={"x": np.full((4, 4), value, np.float32)}, fetch_list=[loss])
            saver.after_step()
        saver.close()
        return [step for step, _ in steps(folder)]

    assert values(run_job(trainers, servers, script)) == [[2]] * trainers

"""Saver: jobs that are warned stop all together, and go on as if nothing had been."""

import random

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint, layers
from hpcdist.checkpoint import preemption
from hpcdist.checkpoint.preemption import AGAIN
from tests.support_job import alone, run_job, values

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
                    preemption._told.set()
                saver.after_step()
    except SystemExit as end:
        assert end.code == AGAIN
    finally:
        preemption._told.clear()
    exe.close()
    return losses


@pytest.fixture
def folder(tmp_path_factory):
    """Return a directory that all ranks see."""
    from hpcdist.comm.mpi import MpiTransport

    world = MpiTransport.world()
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

"""Restoring in the middle of training: the bits that were saved, or an error and no change."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import Checkpoint
from hpcdist.errors import CheckpointError
from hpcdist.transpiler import DistributeTranspiler
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
SAVED, STEPS = 3, 8


def batch(step):
    """Return ids of which every step has some that none had before."""
    random = np.random.default_rng(step)
    old, new = random.integers(0, 30, (12, 1)), random.integers(0, 9, (4, 1)) + 100 * (step + 1)
    return {"ids": np.concatenate([old, new]) * 10**12}


def build():
    ids = fluid.data("ids", [None, 1], "int64")
    rows = fluid.layers.embedding(ids, [-1, 8], is_sparse=True, is_distributed=True)
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 900)) + 1.0)
    fluid.optimizer.Adam(0.05, lazy_mode=True).minimize(loss)
    return loss


def again_and_again(times):
    """Yield (step, batch) of the steps that follow; the rows of each are asked for ahead."""
    numbers = [*range(SAVED, STEPS)] * times
    return zip(numbers, fluid.rows_ahead(batch(step) for step in numbers))


def script(root, *, damage=False, sync=True, trainers=1, back=True):
    """Train, save, train on, restore and train the same steps again."""

    def run(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.default_startup_program().random_seed = 2
            loss, exe, program = build(), fluid.Executor(), None
            if not sync:
                made = DistributeTranspiler()
                serves = role.kind == "PSERVER"
                index = 0 if serves else role.index
                made.transpile(index, pservers="ps0:6174", trainers=trainers, sync_mode=False)
                if serves:
                    program, startup = made.get_pserver_programs("ps0:6174")
                    exe.run(startup)
                    exe.run(program)
                    raise SystemExit(0)
                program = made.get_trainer_program()
            exe.run(fluid.default_startup_program())
            first = [
                exe.run(program, feed=batch(step), fetch_list=[loss])[0].item()
                for step in range(SAVED)
            ]
            fluid.checkpoint.save(exe, root, SAVED)
            if damage:
                spoil(root, role)
            losses = []
            for step, feed in again_and_again(2 if back else 1):
                if step == SAVED and losses:
                    assert fluid.checkpoint.restore(exe, root).step == SAVED
                losses.append(exe.run(program, feed=feed, fetch_list=[loss])[0].item())
                if step == SAVED + 2 and damage:
                    with pytest.raises(CheckpointError, match="is damaged"):
                        fluid.checkpoint.restore(exe, root / f"step-{SAVED:06d}")
            return first, losses[: STEPS - SAVED], losses[STEPS - SAVED :]

    return run


def spoil(root, role):
    """Change a byte of the last rows' data in what a server has written."""
    if role.index:
        return
    with Checkpoint(root / f"step-{SAVED:06d}") as checkpoint:
        file = checkpoint.files[checkpoint.facts.table_homes[-1]]
        offset = file.stored(f"{checkpoint.facts.tables[-1].path}/rows").offsets[-1]
    with open(file.path, "r+b") as raw:
        raw.seek(offset)
        (byte,) = raw.read(1)
        raw.seek(offset)
        raw.write(bytes([byte ^ 64]))


@pytest.mark.parametrize("sync", [True, False])
def test_the_same_steps_again_give_the_same_bits(mpi_tmp_path, sync):
    """Rows that the abandoned steps have made are gone, those moved are back."""
    servers = 2 if sync else 1
    for _, abandoned, again in values(run_job(1, servers, script(mpi_tmp_path, sync=sync))):
        assert again == abandoned


def test_two_trainers_go_back_together(mpi_tmp_path):
    for _, abandoned, again in values(run_job(2, 2, script(mpi_tmp_path))):
        assert again == abandoned


@pytest.mark.parametrize("servers", [1, 2])
def test_a_damaged_checkpoint_leaves_training_as_it_was(mpi_tmp_path, servers):
    whole = values(run_job(1, servers, script(mpi_tmp_path / "whole", back=False)))
    tried = values(run_job(1, servers, script(mpi_tmp_path / "bad", damage=True, back=False)))
    assert tried == whole

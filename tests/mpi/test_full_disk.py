"""A disk that is full: the same CheckpointError on all trainers, and training goes on."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import latest
from hpcdist.errors import CheckpointError
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=1)
MiB = 1 << 20


@pytest.fixture
def small_disk(mpi_tmp_path):
    """Return a directory of 8 MiB that all ranks see."""
    from hpcdist.comm.world import mpi_world

    world, said = mpi_world(), b""
    if world.rank == 0:
        command = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(mpi_tmp_path)]
        said = b"%d" % subprocess.run(command, capture_output=True, check=False).returncode
    if world.broadcast_bytes(said) != b"0":
        pytest.skip("needs the right to mount a tmpfs")
    yield mpi_tmp_path
    world.barrier()
    if world.rank == 0:
        subprocess.run(["umount", str(mpi_tmp_path)], check=True)


def train(root, asynchronous, compression):
    """Return what saving said: at first there is room, then there is none, then there is again."""

    def script(role):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            fluid.default_startup_program().random_seed = 2
            x = fluid.data("x", [None, 200])
            loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(x, 3000), 1))
            fluid.optimizer.SGD(0.1).minimize(loss)
            exe, said, losses = fluid.Executor(), [], []
            exe.run(fluid.default_startup_program())
            for step in (1, 2, 3, 4, 5):
                feed = {"x": np.full((4, 200), step, np.float32)}
                losses.append(float(exe.run(feed=feed, fetch_list=[loss])[0].reshape(-1)[0]))
                if step == 2 and role.index == 0:
                    (root / "filler").write_bytes(bytes(5 * MiB))
                if step == 5 and role.index == 0:
                    os.unlink(root / "filler")
                try:
                    fluid.checkpoint.save(
                        exe, root, step, keep=1, asynchronous=asynchronous, compression=compression
                    )
                    fluid.checkpoint.wait()
                    said.append("saved")
                except CheckpointError as error:
                    said.append(str(error))
            return said, losses

    return script


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("trainers", "servers", "compression"),
    [(1, 0, "zstd"), (1, 0, None), (3, 0, None), (2, 2, None)],
)
def test_training_goes_on(small_disk, trainers, servers, compression, asynchronous):
    if compression:
        pytest.importorskip("hdf5plugin")
    found = values(run_job(trainers, servers, train(small_disk, asynchronous, compression)))
    for said, losses in found:
        assert [words == "saved" for words in said] == [True, False, False, False, True], said
        assert all("cannot be written" in words for words in said[1:4]), said
        assert np.isfinite(losses).all()
    assert latest(small_disk).name == "step-000005"
    assert sorted(p.name for p in small_disk.iterdir()) == [".lock", "step-000005"]

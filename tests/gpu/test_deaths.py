"""On real GPUs: a rank that dies within sums over NCCL ends the job, by name."""

from __future__ import annotations

import os
import signal

import pytest

from tests.gpu.gpus import missing, needs_nccl_for
from tests.support.jobs import ROOT, TRAIN, Job, needs_mpirun

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing() or "never"), needs_mpirun]

ON_GPU = TRAIN.replace("fluid.CPUPlace()", 'fluid.place("gpu")')


def test_a_rank_killed_within_sums_over_nccl(tmp_path):
    needs_nccl_for(2)
    path = os.environ.get("PYTHONPATH", str(ROOT))
    job = Job(tmp_path, ON_GPU + "train(10**9)", "--quiet", ranks=2, env={"PYTHONPATH": path})
    job.await_step(1, 50)
    os.kill(job.pid(1), signal.SIGKILL)
    ended = job.end()
    assert ended.code != 0
    assert any("rank 1" in message and "died" in message for message in ended.messages), ended

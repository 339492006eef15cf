"""Jobs whose parameters are on servers."""

from __future__ import annotations

import re

import pytest

from tests.scripts import read_script
from tests.support.jobs import Job, can_be_tolerant, needs_mpirun, needs_torch

pytestmark = [needs_mpirun, needs_torch]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


# A table, and dense parameters on servers; ``ddp``: these by DistributedDataParallel and torch's
# optimizer.
SERVED = read_script("torch_served")


def served(tmp_path, mode, servers):
    options = ("--as-torchrun", *(("--pservers", str(servers)) if servers else ()))
    ended = Job(tmp_path, SERVED, *options, ranks=2 + servers, args=(mode,), env=ONE_THREAD).end()
    assert ended.code == 0, ended
    ((bits, loss),) = re.findall(r"bits (\w+) loss ([\d.e-]+)", ended.out)
    return bits, float(loss)


def test_parameters_and_rows_have_the_same_bits_on_any_servers_and_train_as_by_torch(tmp_path):
    one = served(tmp_path, "sync", 1)
    assert served(tmp_path, "sync", 3) == one
    assert one[1] == pytest.approx(served(tmp_path, "ddp", 0)[1], rel=1e-3)


# Trainers take turns, so that what servers have is known: compared with the formula, and saved.
DELAYED = read_script("torch_delayed")


@pytest.mark.parametrize("mode", ["half_async", "dc_asgd"])
def test_parameters_on_servers_train_by_the_formula_and_go_on_on_others(tmp_path, mode):
    for first, servers in ((0, 2), (6, 1)) if mode == "dc_asgd" else ((0, 1),):
        options, args = ("--as-torchrun", "--pservers", str(servers)), (mode, str(first))
        job = Job(tmp_path, DELAYED, *options, ranks=2 + servers, args=args, env=ONE_THREAD)
        ended = job.end()
        assert ended.code == 0, ended


# Each trainer by itself, with torch's Adam; exchanges in turns, so that servers' sums are known.
GEO = read_script("torch_geo") + read_script("loads_no_programs")


def test_trainers_that_exchange_differences_train_by_the_formula_and_go_on(tmp_path):
    for first, trainers, servers in ((0, 2, 2), (4, 1, 1)):
        options, args = ("--as-torchrun", "--pservers", str(servers)), (str(first),)
        job = Job(tmp_path, GEO, *options, ranks=trainers + servers, args=args, env=ONE_THREAD)
        ended = job.end()
        assert ended.code == 0, ended


# A table, a layer and a head, each with an optimizer; then what servers would do otherwise.
SEVERAL = read_script("torch_several")


def test_several_optimizers_train_as_torchs_and_refuse_what_these_would_do(tmp_path):
    options = ("--as-torchrun", "--pservers", "1")
    ended = Job(tmp_path, SEVERAL, *options, ranks=3, env=ONE_THREAD).end()
    assert ended.code == 0, ended


BEGINS = """
import os, signal, time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(100)
dist.barrier()
"""


@pytest.mark.skipif(needs_mpirun.args[0] or not can_be_tolerant(), reason="needs Open MPI 5")
def test_a_job_ends_at_once_with_a_trainer_that_leaves_before_anything_is_on_servers(tmp_path):
    options = ("--as-torchrun", "--pservers", "1", "--quiet")
    ended = Job(tmp_path, BEGINS, *options, ranks=3, env=ONE_THREAD, tolerant=True).end()
    assert ended.code, ended
    (message,) = ended.messages  # not that it died: it need not wait until MPI has noticed that
    assert "rank 1 (trainer 1, " in message and "got SIGTERM, the rest of the job did" in message

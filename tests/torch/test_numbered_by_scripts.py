"""Worlds whose ranks a script numbers itself, of one rank or some, and ranks that never meet."""

from __future__ import annotations

import re

import pytest

from tests.scripts import read_script
from tests.support.jobs import Ended, Job, needs_mpirun, needs_torch

pytestmark = [needs_mpirun, needs_torch]
BEGIN = "import os, torch, torch.distributed as dist\nmpi = int(os.environ['RANK'])\n"
IN_A_FILE = "file://' + os.path.join(os.getcwd(), 'met')"


def ended(tmp_path, script: str, *options: str, ranks: int = 3) -> Ended:
    """Return how a job of a script ended that sums in worlds of its own."""
    env = {"OMP_NUM_THREADS": "1"}
    return Job(tmp_path, script, "--as-torchrun", *options, ranks=ranks, env=env).end()


@pytest.mark.parametrize(
    "ranks, arguments",
    [
        (3, "init_method='" + IN_A_FILE),
        (2, "store=dist.FileStore('met', size)"),
        (3, "init_method='tcp://localhost:29511'"),
    ],
)
def test_ranks_have_the_numbers_that_their_script_gives_them(tmp_path, ranks, arguments):
    world = f"dist.init_process_group('gloo', {arguments}, rank=me, world_size=size)"
    script = read_script("torch_numbers_its_ranks").replace("MAKE_WORLD", world)
    job = ended(tmp_path, script, ranks=ranks)
    assert job.code == 0, job.err
    assert job.out.count("as numbered") == ranks


def test_each_rank_may_be_a_world_and_then_all_of_them(tmp_path):
    script = BEGIN + (
        "for world in ({'store': dist.HashStore()}, {'init_method': 'tcp://localhost:1'}):\n"
        "    dist.init_process_group('gloo', **world, rank=0, world_size=1)\n"
        "    t = torch.ones(1); dist.all_reduce(t); print('alone', t.item())\n"
        "    dist.destroy_process_group()\n"
        "dist.init_process_group('gloo')\n"
        "t = torch.ones(1); dist.all_reduce(t); print('all', t.item())\n"
    )
    job = ended(tmp_path, script, ranks=2)
    assert job.code == 0, job.err
    assert sorted(job.out.split("\n")) == ["", *["all 2.0"] * 2, *["alone 1.0"] * 4]


def test_some_ranks_make_a_world_without_the_others(tmp_path):
    script = BEGIN + (
        "if mpi:\n"
        f"    dist.init_process_group('gloo', '{IN_A_FILE}, rank=2 - mpi, world_size=2)\n"
        "    t = torch.tensor([float(mpi)]); dist.broadcast(t, 0); print('from', int(t))\n"
    )
    job = ended(tmp_path, script)
    assert job.code == 0, job.err
    assert job.out.split() == ["from", "2"] * 2


def test_two_ranks_of_one_number_are_refused(tmp_path):
    script = BEGIN + "dist.init_process_group('gloo', 'tcp://h:1', rank=0, world_size=2)\n"
    job = ended(tmp_path, script, ranks=2)
    assert job.code == 1
    assert re.search(
        r"rank ([01]) under MPI asks torch to be rank 0 of 2, which rank (?!\1)[01] is", job.err
    ), job.err


def test_a_rank_that_is_missing_from_a_world_of_the_scripts_is_named(tmp_path):
    script = BEGIN + (
        "def stuck_here():\n    import time; time.sleep(60)\n"
        "if mpi == 2:\n    stuck_here()\n"
        f"dist.init_process_group('gloo', '{IN_A_FILE}, rank=2 - mpi, world_size=3)\n"
    )
    job = ended(tmp_path, script, "--deadline", "2000")
    assert job.code == 1
    assert "of ranks [0, 1, 2] and rank 0 has not within 2 s" in job.err, job.err
    assert "rank 2 (trainer 2" in job.err and "in stuck_here" in job.err


def test_tables_are_refused_where_the_world_is_of_some_ranks(tmp_path):
    script = BEGIN + (
        "import hpcdist.torch\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "words = hpcdist.torch.Embedding(None, 4)\n"
        "tables = hpcdist.torch.TableOptimizer(words, 'SGD', lr=0.1)\n"
        "words(torch.arange(3))\n"
    )
    job = ended(tmp_path, script, ranks=2)
    assert job.code == 1
    assert "are for all 2 ranks of the job, and the script's default group has 1" in job.err


@pytest.mark.parametrize(
    "script, warns",
    [
        ("print(mpi)\n", True),
        ("dist.init_process_group('gloo'); dist.barrier()\n", False),
    ],
)
def test_ranks_that_never_meet_are_told_once(tmp_path, script, warns):
    job = ended(tmp_path, BEGIN + script, "--quiet", ranks=2)
    assert job.code == 0
    assert job.err.count("the 2 ranks of this job never met") == warns, job.err
    assert ("accelerate" in job.err) == warns


def test_waits_last_as_long_as_torchs_unless_the_command_line_says_otherwise(tmp_path):
    script = BEGIN + "print(os.environ['FLAGS_rpc_deadline'])"
    assert ended(tmp_path, script, ranks=1).out.split() == ["1800000"]
    assert ended(tmp_path, script, "--deadline", "7000", ranks=1).out.split() == ["7000"]

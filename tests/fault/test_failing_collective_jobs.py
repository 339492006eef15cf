"""Jobs without servers that cannot go on: all ranks end, and one message says why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.scripts import read_script
from tests.support.jobs import (
    MPIRUN,
    ROOT,
    TRAIN,
    Job,
    clean_environment,
    kills_survivors,
    needs_mpirun,
)

pytestmark = needs_mpirun


def test_a_killed_trainer_ends_the_job(tmp_path):
    job = Job(tmp_path, TRAIN + "train(100_000, 0.01)", "--quiet", ranks=3)
    for rank in range(3):
        job.await_step(rank, 3)
    os.kill(job.pid(1), signal.SIGKILL)
    ended = job.end()
    assert ended.code != 0
    if not kills_survivors():
        assert len(ended.messages) == 1
        assert "rank 1 (trainer 1" in ended.messages[0]


@pytest.mark.parametrize("fetches", [True, False])
def test_a_trainer_with_more_batches_ends_the_job_at_once(tmp_path, fetches):
    if fetches:
        script = TRAIN + "train(3 + RANK)"
    else:
        script = TRAIN + (
            "for step in range(3 + RANK):\n    exe.run(feed={'x': rows[:, :4], 'y': rows[:, 4:]})\n"
        )
    ended = Job(tmp_path, script, "--quiet", ranks=2).end()
    assert ended.code == 1
    assert len(ended.messages) == 1
    assert "the script of trainer 0 has ended after 3 steps" in ended.err


def test_the_same_losses_as_alone(tmp_path):
    outs = []
    for ranks in (0, 2, 3):
        directory = tmp_path / str(ranks)
        directory.mkdir()
        script = TRAIN + "print(f'{train(20):.6f}')"
        job = (
            Job(directory, script, "--quiet", ranks=ranks)
            if ranks
            else Job(directory, script, mpirun=False)
        )
        ended = job.end()
        assert ended.code == 0, ended.err
        outs.append(float(ended.out.split()[0]))
    assert outs == pytest.approx([outs[0]] * 3, rel=1e-5)


def test_scripts_for_servers_say_how_to_start_them(tmp_path):
    script = TRAIN.replace("exe.run(fluid.default_startup_program())", "") + (
        "t = fluid.DistributeTranspiler()\n"
        "t.transpile(RANK, pservers='ps0:6174', trainers=2)\n"
        "exe.run(fluid.default_startup_program())\n"
    )
    ended = Job(tmp_path, script, "--quiet", ranks=2).end()
    assert ended.code == 1
    assert len(ended.messages) == 1
    assert "this job has none: start it with --pservers P" in ended.err


# MPI's own waits of ranks that make a communicator have no deadline.
def test_a_rank_that_is_stuck_while_others_make_a_group_is_named_with_its_stack(tmp_path):
    script = read_script("stuck_before_a_group")
    ended = Job(tmp_path, script, "--quiet", "--deadline", "1000", ranks=3).end()
    assert ended.code == 1
    (told,) = ended.messages
    assert re.search(r"rank [02] waiting for all ranks to make groups$", told)
    assert "nothing came within 5 s" in ended.err
    assert "rank 1 (trainer 1" in ended.err and "in stuck_here" in ended.err


def test_a_job_without_our_launcher_ends_too_when_a_rank_is_stuck_while_others_make_a_group():
    words = [MPIRUN, "-n", "2", sys.executable, str(ROOT / "tests/scripts/stuck_before_a_group.py")]
    env = clean_environment() | {"FLAGS_rpc_deadline": "1000"}
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "rank 0 waiting for all ranks to make groups: nothing came within 5 s" in ended.stderr

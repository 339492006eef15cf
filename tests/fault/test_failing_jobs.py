"""However one rank fails, all end soon, one message says which, and nothing stays."""

from __future__ import annotations

import os
import signal

import pytest

from tests.scripts import read_script
from tests.support.jobs import TRAIN, Job, kills_survivors, needs_mpirun

pytestmark = needs_mpirun

PSERVERS = ("--quiet", "--pservers", "2")


def only_message(ended):
    assert len(ended.messages) == 1, ended.err
    return ended.messages[0]


@pytest.mark.parametrize(
    ("rank", "role", "survivor"),
    [(1, "trainer 1", "was here"), (3, "server 1", "step"), (0, "trainer 0", "was here")],
)
def test_a_killed_rank_is_named_by_a_survivor(tmp_path, rank, role, survivor):
    job = Job(tmp_path, TRAIN + "train(100_000, 0.01)", *PSERVERS)
    job.await_step(0, 5)
    pid = job.pid(rank)
    os.kill(pid, signal.SIGKILL)
    ended = job.end()
    assert ended.code != 0
    if kills_survivors() and not ended.messages:
        return  # none was fast enough to speak
    assert f"rank {rank} ({role}, pid {pid} on " in only_message(ended)
    told = ended.err.split("the job ends\n")[1].splitlines()[0]
    assert survivor in told
    if "waiting for" in told:  # a survivor that was computing tells its step only
        assert "fc_0." in told or "mean_0." in told


def test_an_exception_on_one_rank_ends_all(tmp_path):
    script = TRAIN + "train(5)\nif RANK == 1:\n    raise ValueError('bad luck')\ntrain(100_000)"
    ended = Job(tmp_path, script, *PSERVERS).end()
    assert ended.code != 0
    assert only_message(ended).startswith("hpcdist: rank 1 (trainer 1, pid ")
    assert "failed at step 5" in ended.messages[0]
    assert "ValueError: bad luck" in ended.err
    assert f'File "{tmp_path / "train.py"}"' in ended.err


@pytest.mark.parametrize("servers", [0, 2])
@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("raise ValueError('bad luck')", 1, "ValueError: bad luck"),
        ("sys.exit(5)", 5, "the job ends"),
    ],
)
def test_the_message_of_the_rank_that_fails_stands_last(tmp_path, servers, end, code, last):
    script = f"import sys\n{TRAIN}train(5)\nif RANK == 1:\n    {end}\ntrain(100_000)"
    ended = Job(tmp_path, script, "--quiet", "--pservers", str(servers)).end()
    assert ended.code == code
    only_message(ended)
    # On a busy machine mpirun may not yet know of the others' ends, and explains this one's.
    said = ended.err.partition("-----")[0].strip()
    assert said.endswith(last)
    assert "MPI_ABORT" not in ended.err and "MPI_Abort" not in ended.err


def test_the_same_error_on_every_rank_is_told_once(tmp_path):
    ended = Job(tmp_path, "raise ValueError('the same')", *PSERVERS).end()
    only_message(ended)
    assert ended.err.count("ValueError: the same") == 1


def test_an_error_of_the_program_names_the_feed(tmp_path):
    script = TRAIN + "train(2)\nif RANK == 0: rows = rows[:, :4]\ntrain(3)"
    ended = Job(tmp_path, script, *PSERVERS).end()
    assert ended.code != 0
    assert "rank 0 (trainer 0" in only_message(ended)
    assert "feed 'y'" in ended.err


def test_a_rank_with_another_program_is_refused(tmp_path):
    other = TRAIN.replace("size=1), y", "size=1 + (RANK == 1)), y")
    ended = Job(tmp_path, other + "train(5)", *PSERVERS).end()
    assert ended.code != 0
    assert "trainer 1" in only_message(ended) + ended.err


def test_a_stuck_rank_meets_the_deadline(tmp_path):
    script = TRAIN + "train(3)\nif RANK == 1: time.sleep(1000)\ntrain(100_000)"
    job = Job(tmp_path, script, *PSERVERS, "--deadline", "6000")
    job.await_step(0, 2)
    ended = job.end()
    assert ended.code != 0
    only_message(ended)
    assert "FLAGS_rpc_deadline" in ended.err
    told = next(line for line in ended.err.splitlines() if "DeadlineError" in line)
    for what in ("fc_0.", "within 6 s"):
        assert what in told
    assert "after step 3" in told or "step 4" in told  # a server, or the trainer that waits for it


def test_a_trainer_with_more_batches_than_another_is_told(tmp_path):
    ended = Job(tmp_path, TRAIN + "train(3 + 2 * RANK)", *PSERVERS).end()
    assert ended.code != 0
    assert "rank 1 (trainer 1" in only_message(ended)
    assert "but the script of trainer 0 (rank 0) has ended" in ended.err


def test_an_exit_code_ends_all_and_is_passed_on(tmp_path):
    script = TRAIN + "train(2)\nif RANK == 1: sys.exit(7)\ntrain(100_000)"
    ended = Job(tmp_path, script, *PSERVERS).end()
    assert ended.code == 7
    assert "ended with exit code 7" in only_message(ended)


def test_a_rank_that_is_interrupted_ends_all_and_is_named(tmp_path):
    script = TRAIN + "train(2)\nif RANK == 1: os.kill(os.getpid(), 2)\ntrain(100_000)"
    ended = Job(tmp_path, script, *PSERVERS).end()
    assert ended.code == 130
    assert "rank 1 (trainer 1" in only_message(ended)
    assert "was interrupted (SIGINT)" in only_message(ended)


def test_an_exit_without_a_code_is_a_normal_end(tmp_path):
    ended = Job(tmp_path, TRAIN + "print(train(3))\nsys.exit()", *PSERVERS).end()
    assert (ended.code, ended.messages) == (0, [])
    assert float(ended.out) > 0


def test_a_rank_that_leaves_by_the_back_door_is_named(tmp_path):
    script = TRAIN + "train(2)\nif RANK == 1: os._exit(0)\ntrain(100_000)"
    ended = Job(tmp_path, script, *PSERVERS).end()
    if kills_survivors() and not ended.messages:
        return  # none was fast enough to speak
    assert "rank 1 (trainer 1" in only_message(ended)
    assert "rank 2" not in only_message(ended)


def test_a_script_that_forks_may_terminate_its_children(tmp_path):
    ended = Job(tmp_path, TRAIN + read_script("terminates_its_child"), *PSERVERS).end()
    assert (ended.code, ended.messages) == (0, [])
    assert f"child {-signal.SIGTERM}" in ended.out


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_stopping_mpirun_ends_quietly(tmp_path, sign):
    job = Job(tmp_path, TRAIN + "train(100_000, 0.01)", *PSERVERS)
    job.await_step(0, 3)
    os.kill(job.pid_of_mpirun, sign)
    ended = job.end()
    assert ended.code != 0
    assert ended.messages == []

"""Jobs that go on without ranks that have died: `hpcdist.torch.shrink`."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.scripts import read_script
from tests.support.jobs import ROOT, Job, can_be_tolerant, needs_mpirun, needs_torch

pytestmark = [needs_mpirun, needs_torch]
needs_tolerance = pytest.mark.skipif(
    needs_mpirun.args[0] or not can_be_tolerant(), reason="needs Open MPI 5"
)

CONTINUE = ("--as-torchrun", "--quiet", "--on-failure", "continue")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
STEPS = 12
SHRINKS = read_script("torch_shrinks")
GOES_ON = read_script("torch_goes_on")
NOTES_PID = (
    "import os\n"
    "with open(f\"new.pid.{os.environ['RANK']}\", 'w') as f:\n    f.write(str(os.getpid()))\n"
    "os.replace(f.name, f\"pid.{os.environ['RANK']}\")\n"
)


def run(directory, *args, script=SHRINKS, options=CONTINUE, ranks=3, tolerant=True):
    job = Job(
        directory, script, *options, ranks=ranks, args=args, env=ONE_THREAD, tolerant=tolerant
    )
    return job.end()


def trained(sizes):
    """Return what the script trains, when so many ranks make each step."""
    weights, bias = np.zeros(4), 0.0
    speed = np.zeros(5)
    for step, size in enumerate(sizes):
        rows = (np.arange(4.0) + np.arange(1, size + 1)[:, None]) / 4
        off = 2 * (rows @ weights + bias - step % 3)
        gradient = np.append(off @ rows, off.sum()) / size
        speed = gradient if step == 0 else 0.9 * speed + gradient
        weights, bias = weights - 0.1 * speed[:4], bias - 0.1 * speed[4]
    return [*weights, bias]


@needs_tolerance
@pytest.mark.parametrize(
    "deaths, words",
    [
        (["1:4"], []),
        (["0:4"], ["messages"]),
        (["0:4", "2:4"], []),
        (["2:3", "0:7"], ["messages"]),
        (["1:4", "0:make"], []),
        (["3:4", "0:make", "2:8"], []),
    ],
)
def test_those_who_are_left_go_on_as_if_they_had_begun_there(tmp_path, deaths, words):
    ranks = max(3, len(deaths) + 1)
    ended = run(tmp_path, str(STEPS), *deaths, *words, ranks=ranks)
    assert ended.code == 0, ended
    dead = sorted(int(death[0]) for death in deaths)
    told = [
        re.match(r"hpcdist: rank (\d) \(trainer \d, pid \d+ on .*\) died", line).group(1)
        for line in ended.messages
    ]
    assert sorted(map(int, told)) == dead, ended
    left = ranks - len(dead)
    assert f"; the job goes on with {left} rank{'s' * (left > 1)}" in ended.messages[-1]
    begins = {
        int(size): int(step)
        for size, step in re.findall(r"rank 0 of (\d) begins at (\d+)", ended.out)
    }
    steps = [min(size for size, first in begins.items() if first <= k) for k in range(STEPS)]
    ends = re.findall(r"rank (\d) ended with \[(.*)\]", ended.out)
    assert sorted(int(rank) for rank, _ in ends) == sorted(set(range(ranks)) - set(dead))
    for _, values in ends:
        np.testing.assert_allclose(
            np.array(values.split(", "), float), trained(steps), rtol=1e-4, atol=1e-6
        )
    shared = re.findall(r"/dev/shm/[^ \n]*", ended.out)
    assert shared and not any(map(os.path.exists, shared))


@needs_tolerance
def test_a_rank_whose_script_has_ended_is_left_out(tmp_path):
    ended = run(tmp_path, str(STEPS), "2:4", "early")
    assert ended.code == 0, ended
    assert "rank 1 goes on without (0, 2)" in ended.out
    assert len(ended.messages) == 1 and "rank 2 (trainer 2" in ended.messages[0]


@needs_tolerance
@pytest.mark.parametrize("rank", [0, 1])
def test_the_example_in_the_documents_goes_on(tmp_path, rank):
    documented = (Path(ROOT) / "docs" / "pytorch.md").read_text()
    assert GOES_ON in documented
    script = NOTES_PID + GOES_ON.replace("1000", "5000").replace(
        "            step += 1\n", "            step += 1\n            note(step)\n"
    ).replace("step = 0\n", "step = 0\n" + NOTE, 1)
    job = Job(tmp_path, script, *CONTINUE, ranks=3, env=ONE_THREAD, tolerant=True)
    job.await_step(rank, 20)
    os.kill(job.pid(rank), signal.SIGKILL)
    ended = job.end()
    assert ended.code == 0, ended
    assert f"of 2 goes on without ({rank},)" in ended.out


NOTE = (
    "def note(step):\n"
    "    with open(f\"step.{os.environ['HPCDIST_RANK']}\", 'w') as f:\n"
    "        f.write(str(step))\n"
)


@needs_tolerance
def test_a_failure_that_the_script_does_not_catch_ends_the_job(tmp_path):
    job = Job(
        tmp_path,
        read_script("torch_train") + "train(10**6, 0.01)",
        *CONTINUE,
        ranks=3,
        env=ONE_THREAD,
        tolerant=True,
    )
    job.await_step(1, 3)
    os.kill(job.pid(1), signal.SIGKILL)
    ended = job.end(within_s=20)
    assert ended.code == 1, ended
    told = [line for line in ended.messages if "died" in line]
    assert len(told) == 1, ended
    assert re.search(r"rank 1 \(trainer 1, pid \d+ on .*\) died: .*; the job ends", told[0])
    assert "calls hpcdist.torch.shrink() goes on" in ended.err
    assert "waiting for all_reduce" in ended.err


BEGINS = "import torch, torch.distributed as dist, hpcdist.torch\ndist.init_process_group('gloo')\n"
TABLE = BEGINS + (
    "import os, time\n"
    "table = hpcdist.torch.Embedding(None, 4)\n"
    "hpcdist.torch.TableOptimizer(table, 'SGD', lr=0.1)\n"
    "if dist.get_rank():\n    os.kill(os.getpid(), 9)\n"
    "try:\n    dist.barrier()\nexcept hpcdist.torch.RankFailure:\n    hpcdist.torch.shrink()\n"
)


@pytest.mark.parametrize(
    "script, options, tolerant, said",
    [
        (BEGINS + "hpcdist.torch.shrink()", CONTINUE, True, "one has died, and all live"),
        (BEGINS + "hpcdist.torch.shrink()", CONTINUE[:2], True, "--on-failure continue train.py"),
        (BEGINS + "hpcdist.torch.shrink()", CONTINUE[:2], False, "mpirun --with-ft ulfm -n N"),
        (
            BEGINS + "if not dist.get_rank(): dist.shrink_group([1])\ndist.barrier()",
            CONTINUE[:2],
            False,
            "hpcdist.torch.shrink() goes on",
        ),
        ("print('ran')", CONTINUE, False, "--on-failure continue needs Open MPI 5"),
        ("print('ran')", CONTINUE[1:], False, "a PyTorch script that calls hpcdist.torch.shrink()"),
        (
            BEGINS + "hpcdist.torch.shrink()",
            (*CONTINUE, "--pservers", "1"),
            True,
            "a job with parameter servers does not shrink",
        ),
        (TABLE, CONTINUE, True, "the rows of table 'embedding_0' were shared out"),
    ],
)
def test_what_cannot_go_on_says_why(tmp_path, script, options, tolerant, said):
    if tolerant and not can_be_tolerant():
        pytest.skip("needs Open MPI 5")
    ended = run(tmp_path, script=script, options=options, ranks=2, tolerant=tolerant)
    assert ended.code != 0, ended
    assert said in ended.err, ended
    assert len(ended.messages) == 1, ended
    assert "ran" not in ended.out.splitlines()


@needs_tolerance
def test_those_who_are_left_restore_a_checkpoint(tmp_path):
    ended = run(tmp_path, script=read_script("torch_shrinks_and_restores"))
    assert ended.code == 0, ended
    begins = re.findall(r"rank 0 of (\d) begins at (\d)", ended.out)
    assert begins == [("3", "0"), ("2", "5")]
    assert sorted(re.findall(r"rank (\d) ended", ended.out)) == ["0", "2"]

"""Scripts written for torchrun, as users start them with --as-torchrun."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.base.trace import metric_files, status
from tests.scripts import read_script
from tests.support.jobs import (
    LIMIT_S,
    MPIRUN,
    ROOT,
    Job,
    clean_environment,
    needs_mpirun,
    needs_torch,
)

pytestmark = [needs_mpirun, needs_torch]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def environment(backend, name):
    """Return a script that checks what it finds; torch calls groups of ``backend`` ``name``."""
    script = read_script("torch_environment").replace("BACKEND", backend).replace("NAME", name)
    return script + read_script("loads_no_programs") + read_script("loads_few_modules")


@pytest.mark.parametrize(
    "backend, name",
    [
        ('"gloo"', '"gloo"'),
        ('"cpu:gloo,cuda:nccl"', '"cpu:gloo,cuda:nccl"'),
        ("", '"undefined"'),
        ('"mpi"', '"mpi"'),
    ],
)
def test_a_rank_finds_what_torchrun_would_give_it(tmp_path, backend, name):
    script = environment(backend, name)
    ended = Job(tmp_path, script, "--as-torchrun", ranks=2, env=ONE_THREAD).end()
    assert ended.code == 0, ended
    assert "as expected" in ended.out


def test_a_script_of_torchs_runs_alone(tmp_path):
    script = environment('"gloo"', '"gloo"')
    ended = Job(tmp_path, script, "--as-torchrun", mpirun=False, env=ONE_THREAD).end()
    assert ended.code == 0, ended
    assert "as expected" in ended.out


def test_a_script_that_starts_its_ranks_itself_is_told_that_it_needs_no_launcher(tmp_path):
    script = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', 'tcp://localhost:1', rank=1, world_size=2)\n"
    )
    ended = Job(tmp_path, script, "--as-torchrun", mpirun=False, env=ONE_THREAD).end()
    assert ended.code == 1
    assert "rank 0 of 1 under MPI asks torch to be rank 1 of 2" in ended.err
    assert "starts its ranks itself (torch.multiprocessing) needs no launcher" in ended.err


def test_a_module_in_a_package_runs_as_python_runs_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("def fail():\n    raise ValueError('wrong')\n")
    (package / "train.py").write_text(
        "import sys\n"
        "import torch.distributed as dist\n"
        "from .parts import fail\n"
        "dist.init_process_group('gloo')\n"
        "print(__spec__.name, sys.argv[1:], sys.modules['__main__'].fail is fail)\n"
        "if '--fail' in sys.argv and dist.get_rank():\n    fail()\n"
        "dist.barrier()\n"
    )
    options = ("--as-torchrun", "--quiet", "-m", "package.train")  # train.py is its argument
    ended = Job(tmp_path, "", *options, ranks=2, env=ONE_THREAD).end()
    assert ended.code == 0, ended
    assert ended.out.splitlines() == ["package.train ['train.py'] True"] * 2
    failed = Job(tmp_path, "", *options, ranks=2, args=("--fail",), env=ONE_THREAD).end()
    assert failed.code == 1
    told = failed.err[failed.err.index("hpcdist: rank 1") :].splitlines()
    assert told[1].endswith('package/train.py", line 7, in <module>'), told
    assert "ValueError: wrong" in told


def test_ranks_that_a_script_forks_are_refused(tmp_path):
    script = (
        "import torch.distributed as dist, torch.multiprocessing as mp\n"
        "def run(rank):\n"
        "    dist.init_process_group('gloo', rank=rank, world_size=2)\n"
        "forked = [mp.get_context('fork').Process(target=run, args=(rank,)) for rank in range(2)]\n"
        "for process in forked:\n    process.start()\n"
        "for process in forked:\n    process.join()\n"
        "print('ended with', [process.exitcode for process in forked])\n"
    )
    ended = Job(tmp_path, script, "--as-torchrun", "--quiet", ranks=2, env=ONE_THREAD).end()
    assert ended.code == 0, ended
    assert ended.out.splitlines() == ["ended with [1, 1]"] * 2
    told = [line for line in ended.err.splitlines() if "errors.LaunchError: " in line]
    assert len(told) == 4, ended
    assert all("has forked, calls init_process_group: ranks are" in line for line in told)


def run_by_mpirun(directory, script, launcher=(), **env):
    """Run a script on two ranks; ``launcher``: arguments of Python's before it."""
    (directory / "train.py").write_text(script)
    return subprocess.run(
        [MPIRUN, "-n", "2", sys.executable, *launcher, "train.py"],
        cwd=directory,
        env=clean_environment() | ONE_THREAD | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def test_a_rank_that_is_stuck_in_a_new_group_ends_the_job_also_without_the_launcher(tmp_path):
    script = read_script("torch_stuck_in_a_group")
    ran = run_by_mpirun(tmp_path, script, FLAGS_rpc_deadline="1000")
    assert ran.returncode != 0
    assert "hpcdist: rank 0 waiting for all ranks to tell their hosts: nothing came" in ran.stderr


def test_torchs_mpi_is_ours_also_without_the_launcher(tmp_path):
    script = (
        "import torch, torch.distributed as dist\n"
        "import hpcdist.torch\n"
        "dist.init_process_group('mpi')\n"
        "total = torch.ones(3)\n"
        "dist.all_reduce(total)\n"
        "print(dist.get_backend(), dist.get_world_size(), total.tolist())\n"
    )
    ran = run_by_mpirun(tmp_path, script)
    assert (ran.returncode, ran.stdout.splitlines()) == (0, ["mpi 2 [2.0, 2.0, 2.0]"] * 2), ran


TRAINS = read_script("torch_train")


FORKS = """
import os, sys, torch.distributed as dist, hpcdist.torch

dist.init_process_group("hpcdist")
for ends in (lambda: os._exit(3), lambda: sys.exit(3), lambda: 1 / 0):
    child = os.fork()
    if not child:
        ends()
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    dist.barrier()
"""


def test_a_process_that_a_rank_has_forked_does_not_end_the_job_without_the_launcher(tmp_path):
    ran = run_by_mpirun(tmp_path, FORKS)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split("\n")) == ["", *["ended with 1"] * 4, *["ended with 3"] * 2]
    assert ran.stderr.count("would leave MPI in its name: end such a process by os._exit") == 4
    assert ran.stderr.count("ZeroDivisionError") == 2


def test_a_killed_rank_ends_the_job_with_one_message(tmp_path):
    job = Job(tmp_path, TRAINS + "train(10**6, 0.01)", "--as-torchrun", ranks=3, env=ONE_THREAD)
    job.await_step(1, 3)
    os.kill(job.pid(1), signal.SIGKILL)
    ended = job.end(within_s=20)
    assert ended.code != 0
    told = [line for line in ended.messages if "died" in line]
    assert len(told) == 1, ended
    assert re.search(r"rank 1 \(trainer 1, pid \d+ on .*\) died", told[0])


def test_a_rank_that_does_not_come_is_named_with_its_stack(tmp_path):
    script = TRAINS + (
        "train(3)\n"
        "def stuck_here():\n    time.sleep(60)\n"
        "if dist.get_rank() == 1:\n    stuck_here()\n"
        "train(3)\n"
    )
    options = ("--as-torchrun", "--deadline", "2000")
    ended = Job(tmp_path, script, *options, ranks=2, env=ONE_THREAD).end()
    assert ended.code == 1
    assert re.search(
        r"rank 0 waiting for \w+ .*of \w+\[\d+\].* \(number \d+\), from rank 1: nothing came "
        r"within 2 s",
        ended.err,
    ), ended.err
    assert "rank 1 (trainer 1" in ended.err and "is missing" in ended.err
    assert "in stuck_here" in ended.err


def test_a_rank_that_does_not_begin_is_named_with_its_stack(tmp_path):
    script = (
        "import os, time\n"
        "def stuck_here():\n    time.sleep(60)\n"
        "if os.environ['RANK'] == '1':\n    stuck_here()\n" + TRAINS
    )
    options = ("--as-torchrun", "--deadline", "2000")
    ended = Job(tmp_path, script, *options, ranks=2, env=ONE_THREAD).end()
    assert ended.code == 1
    assert "group '0' of ranks [0, 1] and rank 1 has not within 2 s" in ended.err, ended.err
    assert "rank 1 (trainer 1" in ended.err and "is missing" in ended.err
    assert "in stuck_here" in ended.err


def test_the_time_out_of_a_script_bounds_the_wait_for_ranks_that_begin_late(tmp_path):
    script = read_script("torch_begins_late")
    ended = Job(tmp_path, script, "--as-torchrun", "--quiet", ranks=2, env=ONE_THREAD).end()
    assert (ended.code, ended.messages) == (0, []), ended.err


def test_a_rank_that_raises_ends_the_job(tmp_path):
    script = (
        TRAINS + "train(2)\nif dist.get_rank() == 1:\n    raise ValueError('wrong')\ntrain(5)\n"
    )
    ended = Job(tmp_path, script, "--as-torchrun", ranks=2, env=ONE_THREAD).end()
    assert ended.code == 1
    assert len(ended.messages[1:]) <= 2
    assert "failed at step 2" in ended.err
    assert "ValueError: wrong" in ended.err


WORKERS_DIE = """
import os, signal, time
import torch.distributed as dist, hpcdist.torch

dist.init_process_group("hpcdist")

def told(*_):  # as torch's handler does when a worker of a DataLoader was killed
    raise RuntimeError("a worker was killed")

if dist.get_rank() == 1:
    rank = os.getpid()
    if not os.fork():
        for _ in range(10_000):
            time.sleep(PAUSE_S)
            os.kill(rank, signal.SIGCHLD)
        os._exit(0)
    signal.signal(signal.SIGCHLD, told)
    time.sleep(60)
dist.barrier()
"""


@pytest.mark.parametrize(
    ("launcher", "pause"), [(("-m", "hpcdist", "--quiet", "--as-torchrun"), "2e-3"), ((), "2e-4")]
)
def test_signals_of_children_do_not_interrupt_the_report_of_a_failure(tmp_path, launcher, pause):
    ran = run_by_mpirun(tmp_path, WORKERS_DIE.replace("PAUSE_S", pause), launcher)
    assert ran.returncode == 1, ran
    assert ran.stderr.count("hpcdist: rank 1") == 1, ran.stderr
    assert "failed before its script" not in ran.stderr
    assert "in told" in ran.stderr and "RuntimeError: a worker was killed" in ran.stderr


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_ends_while_others_wait_for_it_is_named_long_before_the_deadline(
    tmp_path, ranks
):
    script = TRAINS + "train(2)\nif dist.get_rank() == 1:\n    raise SystemExit(0)\ntrain(1)\n"
    ended = Job(tmp_path, script, "--as-torchrun", ranks=ranks, env=ONE_THREAD).end()
    assert ended.code == 1
    assert re.search(
        r"rank \d waiting for all_reduce .* \(number \d+\), from rank 1: the script of rank 1 has "
        "ended without it",
        ended.err,
    ), ended


THREADS_TO_THE_END = """
import os, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
store, group = dist.distributed_c10d._get_default_store(), dist.new_group()
def call(again):
    try:
        while True:
            again()
    except Exception as error:
        os.write(2, f"{type(error).__name__}: {error}\\n".encode())
for again in (lambda: store.check(["key"]), lambda: dist.all_reduce(torch.ones(4), group=group)):
    threading.Thread(target=call, args=[again], daemon=True).start()
time.sleep(0.5)
"""


def test_threads_that_communicate_to_the_end_do_not_fail_the_job(tmp_path):
    ended = Job(tmp_path, THREADS_TO_THE_END, "--as-torchrun", ranks=2, env=ONE_THREAD).end()
    assert ended.code == 0, ended
    assert ended.err.count("CommError: ") == 4, ended
    assert ended.err.count("the job has ended") == 4, ended


def test_a_rank_that_ends_before_what_it_takes_part_in_is_not_taken_for_missing(tmp_path):
    script = TRAINS + (
        "values = torch.ones(2_000_000)\n"
        "if dist.get_rank() == 1:\n"
        "    dist.isend(values, 0)\n"
        "    dist.all_reduce(torch.ones(2), async_op=True)\n"
        "else:\n"
        "    time.sleep(7)\n"  # a wait that long is for somebody who has ended
        "    dist.all_reduce(torch.ones(2))\n"
        "    time.sleep(7)\n"
        "    dist.recv(torch.empty(2_000_000), 1)\n"
    )
    ended = Job(tmp_path, script, "--as-torchrun", ranks=2, env=ONE_THREAD).end()
    assert ended.code == 0, ended


def test_the_example_learns(tmp_path):
    script = (Path(ROOT) / "examples" / "torch" / "classify_digits.py").read_text()
    args = ("--epochs", "3")
    job = Job(tmp_path, script, "--as-torchrun", ranks=2, args=args, env=ONE_THREAD)
    ended = job.end(within_s=LIMIT_S)
    assert ended.code == 0, ended
    (accuracy,) = re.findall(r"epoch 2: .*accuracy ([\d.]+)", ended.out)
    assert float(accuracy) > 0.85


def test_the_gpt_learns_with_sharded_parameters(tmp_path):
    script = (Path(ROOT) / "examples" / "torch" / "gpt.py").read_text()
    args = ("--steps", "40", "--width", "32", "--length", "32")
    job = Job(tmp_path, script, "--as-torchrun", ranks=2, args=args, env=ONE_THREAD)
    ended = job.end(within_s=LIMIT_S)
    assert ended.code == 0, ended
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", ended.out)]
    assert losses[1] < losses[0] < 3.3


def test_without_torch_the_launcher_says_what_to_install(tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from hpcdist.launch.main import main\n"
        "main(['--as-torchrun', 'train.py'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "torch is not installed: python -m pip install 'torch>=" in ran.stderr


def test_metrics_of_a_script_of_torchs_are_written_and_its_steps_told(tmp_path):
    script = read_script("torch_metrics")
    ended = Job(tmp_path, script, "--as-torchrun", "--metrics", "watched", ranks=2).end()
    assert ended.code == 0, ended
    curves = metric_files.read_all(tmp_path / "watched")
    assert curves["loss"] == {rank: [(1, 2.0), (2, 4.0), (3, 6.0)] for rank in (0, 1)}
    assert [curves["mine"][rank][0][1] for rank in (0, 1)] == [0.0, 1.0]
    told = status.read_all(tmp_path / "watched")
    assert [(s.state, s.step) for s in told] == [(status.ENDED, 3)] * 2

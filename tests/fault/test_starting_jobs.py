"""What a user sees of a job: its output, its logs, its refusals."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.scripts import read_script
from tests.support.jobs import LIMIT_S, MPIRUN, TRAIN, Job, clean_environment, needs_mpirun

pytestmark = needs_mpirun

PSERVERS = ("--quiet", "--pservers", "2")


def test_four_ranks_train_as_one_does(tmp_path):
    losses = []
    for ranks, options in ((1, ()), (4, PSERVERS), (3, ("--pservers", "1", "--quiet"))):
        directory = tmp_path / str(ranks)
        directory.mkdir()
        script = TRAIN.replace("size=1)", "size=1, param_attr=CONSTANT)").replace(
            "x = fluid",
            "CONSTANT = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.5))\nx = fluid",
        )
        ended = Job(directory, script + "print(train(20))", *options, ranks=ranks).end()
        assert (ended.code, ended.messages) == (0, [])
        losses.append(float(ended.out))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_only_rank_0_speaks_on_stdout_and_what_starts_is_told_on_stderr(tmp_path):
    script = "import os\nprint('I am', os.environ['PADDLE_TRAINING_ROLE'])"
    ended = Job(tmp_path, script, "--pservers", "1", ranks=3).end()
    assert ended.out == "I am TRAINER\n"
    host = socket.gethostname()
    line = f"hpcdist: 3 ranks on {host}: 2 trainers (ranks 0-1), 1 server (rank 2)\n"
    assert ended.err == line
    ended = Job(tmp_path, script, "--pservers", "1", "--verbose", ranks=3).end()
    assert "Configuration Arguments" in ended.err
    assert "|                    PADDLE_TRAINING_ROLE                     TRAINER" in ended.err
    assert ended.err.endswith(line)
    ended = Job(tmp_path, script, "--pservers", "1", "--quiet", "--all-output", ranks=3).end()
    assert sorted(ended.out.splitlines()) == ["I am PSERVER"] + ["I am TRAINER"] * 2
    assert ended.err == ""


def test_logs_hold_each_ranks_output_and_errors_reach_the_terminal(tmp_path):
    script = (
        "import os, sys\n"
        "print('out of', os.environ['HPCDIST_RANK'])\n"
        "print('err of', os.environ['HPCDIST_RANK'], file=sys.stderr)\n"
        "if sys.argv[1:] == ['fail'] and os.environ['HPCDIST_RANK'] == '2': 1 / 0\n"
    )
    options = ("--pservers", "1", "--role-map", "servers-first", "--quiet", "--log-dir", "logs")
    ended = Job(tmp_path, script, *options, ranks=3).end()
    assert (ended.code, ended.out, ended.err) == (0, "out of 0\n", "err of 0\n")
    logs = {file.name: file.read_text() for file in (tmp_path / "logs").iterdir()}
    assert logs == {
        "serverlog.0": "out of 0\nerr of 0\n",
        "workerlog.0": "out of 1\nerr of 1\n",
        "workerlog.1": "out of 2\nerr of 2\n",
    }
    ended = Job(tmp_path, script, *options, ranks=3, args=["fail"]).end()
    assert ended.code != 0
    assert "rank 2 (trainer 1" in ended.messages[0]
    assert "ZeroDivisionError" in ended.err
    assert "ZeroDivisionError" in (tmp_path / "logs" / "workerlog.1").read_text()


def test_random_numbers_are_equal_on_all_ranks(tmp_path):
    script = "import random, numpy as np, os\nprint(random.random(), np.random.rand())"
    options = ("--pservers", "1", "--quiet", "--all-output")
    outs = [
        Job(tmp_path, script, *options, "--seed", seed, ranks=3).end().out.splitlines()
        for seed in ("5", "5", "6")
    ]
    assert [len(set(lines)) for lines in outs] == [1, 1, 1]
    assert outs[0] == outs[1] != outs[2]


def test_arguments_and_modules_beside_the_script_are_found(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    script = "import sys, beside\nprint(beside.NAME, sys.argv, __name__)"
    ended = Job(tmp_path, script, mpirun=False, args=["--pservers", "9", "-x"]).end()
    assert ended.out == "beside ['train.py', '--pservers', '9', '-x'] __main__\n"


def test_one_process_that_a_job_starts_is_another_run(tmp_path):
    script = "import os\nprint(os.environ['HPCDIST_RUN'])"
    ended = Job(tmp_path, script, mpirun=False, env={"HPCDIST_RUN": "n1-5-7"}).end()
    assert ended.out.strip() not in ("", "n1-5-7")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--role-map", "servers-first"), "'servers-first' needs --pservers P"),
        (("--pservers", "2"), "2 servers leave no trainer among 2 ranks"),
        (("--pservers", "1", "--log-dir", "train.py/x"), "cannot make the log directory"),
    ],
)
def test_a_job_that_cannot_be_is_refused_once(tmp_path, options, message):
    ended = Job(tmp_path, "print('ran')", *options, ranks=2).end()
    assert ended.code == 1
    assert ended.out == ""
    assert len(ended.messages) == 1
    assert message in ended.messages[0]


def test_a_missing_script_is_told_once(tmp_path):
    job = Job(tmp_path, "", "--pservers", "1", "nowhere.py", ranks=2)
    ended = job.end()
    assert ended.code == 1
    assert len(ended.messages) == 1
    assert "cannot read the script 'nowhere.py'" in ended.messages[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_world_of_one_where_four_were_started_is_refused(tmp_path, rank):
    """The ranks of a job whose mpirun or srun does not belong to this python's MPI."""
    env = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": str(rank)}
    job = Job(tmp_path, "print('ran')", "--pservers", "2", mpirun=False, env=env)
    ended = job.end()
    assert (ended.code, ended.out) == (1, "")
    assert len(ended.messages) == (1 if rank == 0 else 0)
    if rank == 0:
        assert "4 processes were started, but each has an MPI world of one rank" in ended.err
        assert "srun --mpi=pmi2" in ended.err


def test_a_role_given_to_a_lone_process_is_refused(tmp_path):
    env = {"PADDLE_TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_IPS": "a,b", "PADDLE_TRAINERS": "2"}
    ended = Job(tmp_path, "print('ran')", mpirun=False, env=env).end()
    assert (ended.code, ended.out) == (1, "")
    assert "mpirun -n 4 python -m hpcdist --pservers 2" in ended.messages[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--pservers", "2"), "2 servers leave no trainer among 1 rank: start 3 or more"),
        (("--role-map", "t,s"), "it names 2 ranks, the job has 1"),
        (("--role", "pserver"), "at least one trainer"),
        (("--on-failure", "continue"), "--on-failure continue needs parameter servers"),
        (("--log-dir", "train.py/x"), "cannot make the log directory"),
    ],
)
def test_what_one_process_cannot_do_is_refused(tmp_path, options, words):
    ended = Job(tmp_path, "print('ran')", *options, mpirun=False).end()
    assert (ended.code, ended.out) == (1, "")
    assert words in ended.messages[0]


def test_one_process_writes_its_log_too(tmp_path):
    script = "print('out')\n1 / 0"
    ended = Job(tmp_path, script, "--log-dir", "logs", mpirun=False).end()
    assert (ended.code, ended.out) == (1, "out\n")
    text = (tmp_path / "logs" / "workerlog.0").read_text()
    assert text.startswith("out\nhpcdist: the script failed") and "ZeroDivisionError" in text


def test_a_script_alone_needs_no_mpi(tmp_path):
    script = TRAIN + "print(train(3) > 0, 'mpi4py.MPI' in sys.modules)"
    ended = Job(tmp_path, script, mpirun=False).end()
    assert (ended.code, ended.out) == (0, "True False\n")


# The quick start of Fluid's documentation, word for word but for its data set.
QUICK_START = read_script("fluid_quick_start")
MADE_UP = """lambda: (
    (row[:13], row[12:13] * 3 + 20)
    for row in __import__('numpy').random.RandomState(1).rand(400, 13).astype('float32'))"""


@pytest.mark.parametrize(
    ("role_map", "epochs"), [("servers-last", 30), ("servers-first", 4), ("t,s,s,t", 4)]
)
def test_fluids_quick_start_runs_unmodified(tmp_path, role_map, epochs):
    script = QUICK_START.replace("READER", MADE_UP)
    script = script.replace("EPOCH_NUM = 30", f"EPOCH_NUM = {epochs}")  # by other roles, fewer
    options = (*PSERVERS, "--role-map", role_map, "--as-paddle", "--all-output")
    ended = Job(tmp_path, script, *options).end()
    assert (ended.code, ended.messages) == (0, [])
    losses = [float(line.rpartition(" ")[2]) for line in ended.out.splitlines()]
    assert len(losses) == 2 * epochs * 5  # two trainers, every tenth of 50 batches
    assert losses[-1] < losses[0] / (20 if epochs == 30 else 2)


# -- likely mistakes ---------------------------------------------------------------------------
def test_an_option_after_the_script_is_told_if_the_script_never_reads_it(tmp_path):
    script = TRAIN + "train(3)"
    ended = Job(tmp_path, script, mpirun=False, args=["--pservers", "2"]).end()
    assert ended.code == 0
    assert len(ended.messages) == 1
    assert "--pservers after train.py has no effect" in ended.messages[0]
    reads = "import argparse\nargparse.ArgumentParser().parse_known_args()\n" + script
    assert Job(tmp_path, reads, mpirun=False, args=["--pservers", "2"]).end().messages == []


def test_a_script_started_without_hpcdist_on_several_ranks_is_told_once(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN + "train(3)\ntrain(3)")
    ended = subprocess.run(
        [MPIRUN, "-n", "3", sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert ended.stderr.count("hpcdist: ") == 1
    assert "3 processes were started, and each trains the whole model by itself" in ended.stderr
    assert "mpirun -n 3 python -m hpcdist train.py" in ended.stderr


def test_wrong_settings_of_any_rank_are_refused_and_misspelt_ones_told(tmp_path):
    script = (
        "import os, sys\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']\n"
        "if rank == '1': os.environ['FLAGS_rpc_deadline'] = '3min'\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'hpcdist', 'script.py'])\n"
    )
    (tmp_path / "script.py").write_text("print('ran')")
    (tmp_path / "start.py").write_text(script)
    ended = subprocess.run(
        [MPIRUN, "-n", "2", sys.executable, "start.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "FLAGS_rpc_deadline (ms): expected an integer >= 1, got '3min' (ranks [1];" in (
        ended.stderr
    )
    env = {"HPCDIST_PSERVER": "1"}
    ended = Job(tmp_path, "print('ran')", "--quiet", ranks=2, env=env).end()
    assert (ended.code, ended.out, len(ended.messages)) == (0, "ran\n", 1)
    assert "did you mean 'HPCDIST_PSERVERS'?" in ended.messages[0]


def test_each_rank_can_tell_who_it_is(tmp_path):
    tell = "print(fluid.rank(), fluid.is_server(), fluid.is_first())"
    script = f"import hpcdist as fluid\n{tell}"
    options = ("--quiet", "--all-output", "--pservers", "1", "--role-map", "servers-first")
    ended = Job(tmp_path, script, *options, ranks=3).end()
    assert sorted(ended.out.splitlines()) == ["0 True False", "1 False True", "2 False False"]
    assert Job(tmp_path, script, mpirun=False).end().out == "0 False True\n"


def test_servers_run_a_plain_script_up_to_its_startup_program(tmp_path):
    script = TRAIN.replace("rows = np", "print('loads', RANK)\nrows = np") + "train(2)"
    ended = Job(tmp_path, script, "--quiet", "--all-output", "--pservers", "1", ranks=2).end()
    assert (ended.code, ended.out) == (0, "loads 0\n")


@pytest.mark.parametrize(("steps", "made"), [(0, False), (1, True)])
def test_the_log_directory_says_whether_a_step_was_made(tmp_path, steps, made):
    script = TRAIN + (f"train({steps})\n" if steps else "") + "1 / 0"
    assert Job(tmp_path, script, "--log-dir", "logs", mpirun=False).end().code == 1
    assert (tmp_path / "logs" / "first-step").exists() is made

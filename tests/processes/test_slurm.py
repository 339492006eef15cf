"""Batch scripts: those that lie in jobs/slurm, and those written for a job."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from hpcdist.comm import mpi_library
from hpcdist.launch import options, slurm
from hpcdist.launch.main import main
from tests.scripts import read_script
from tests.support.jobs import ROOT, clean_environment

FOLDER = ROOT / "jobs" / "slurm"


def bundled(name, what, **fields):
    usage = f"{what}\nsbatch jobs/slurm/{name} train.py [script arguments]"
    return name, slurm.BatchJob(usage=usage, env="jobs/slurm/env.sh", **fields)


# What lies in jobs/slurm, by file name.
BUNDLED = dict(
    [
        bundled(
            "pserver.sbatch",
            "Parameter servers beside trainers: one on every node.",
            pservers_per_node=1,
        ),
        bundled(
            "pserver_nodes.sbatch",
            "Parameter servers on nodes of their own, the last nodes.",
            server_nodes=1,
        ),
        bundled(
            "pserver_het.sbatch",
            "Parameter servers as a component of a heterogeneous job, with resources of their own.",
            server_nodes=1,
            het=True,
        ),
        bundled("collective_cpu.sbatch", "No servers: gradients are summed over MPI."),
        bundled(
            "collective_gpu.sbatch",
            "No servers: gradients are summed by NCCL, one process for each GPU.",
            gpus_per_node=4,
            cpus_per_rank=8,
        ),
    ]
)


@pytest.mark.parametrize("name", BUNDLED)
def test_the_scripts_here_are_those_that_are_written(name):
    assert (FOLDER / name).read_text() == slurm.batch_script(BUNDLED[name])


def test_every_script_here_is_written():
    assert {path.name for path in FOLDER.glob("*.sbatch")} == set(BUNDLED)


@pytest.mark.parametrize("name", [*BUNDLED, "env.sh"])
def test_bash_can_read_it(name):
    subprocess.run(["bash", "-n", FOLDER / name], check=True)


def written(capsys, *arguments):
    main(["slurm", *arguments])
    return capsys.readouterr().out


def test_a_script_says_what_was_asked_for(capsys):
    text = written(
        capsys,
        *("--nodes", "3", "--ranks-per-node", "8", "--pservers-per-node", "2"),
        *("--time", "12:00:00", "--partition", "gpu", "--account", "me", "--warning", "300"),
        *("--job-name", "a b"),
        *("train.py", "--lr", "0.1", "a b"),
    )
    directives = [
        shlex.split(line, comments=False)[1]
        for line in text.splitlines()
        if line.startswith("#SBATCH")
    ]
    for expected in (
        "--job-name=a b",
        "--nodes=3",
        "--ntasks-per-node=8",
        "--time=12:00:00",
        "--partition=gpu",
        "--account=me",
        "--signal=USR1@300",
        "--requeue",
    ):
        assert expected in directives
    assert "--pservers-per-node 2 train.py --lr 0.1 'a b'\n" in text


def test_a_script_of_torchs(capsys):
    text = written(capsys, "--nodes", "2", "--as-torchrun", "train.py", "--lr", "1")
    (start,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert start.endswith(
        ' -m hpcdist --log-dir "$RUN" --metrics "$LOGS" --as-torchrun train.py --lr 1'
    )
    assert "before the first step of a hpcdist.torch.Saver" in text
    text = written(capsys, "--as-torchrun", "--pservers", "1", "train.py")
    (start,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert start.endswith(" --as-torchrun --pservers 1 train.py")


def test_a_module(capsys):
    text = written(capsys, "--nodes", "2", "-m", "package.train", "--lr", "1")
    assert "#SBATCH --job-name=package.train\n" in text
    assert ' -m hpcdist --log-dir "$RUN" --metrics "$LOGS" -m package.train --lr 1\n' in text


def test_servers_on_nodes_of_their_own(capsys):
    text = written(capsys, "--nodes", "3", "--ranks-per-node", "4", "--server-nodes", "2", "t.py")
    assert "#SBATCH --nodes=5\n" in text
    assert "--distribution=block" in text and "--pservers 8 t.py\n" in text


def test_the_parts_of_a_heterogeneous_job(capsys):
    options = ("--nodes", "3", "--server-nodes", "2", "--het", "--partition", "main")
    text = written(capsys, *options, "t.py")
    trainers, servers = text.split("#SBATCH hetjob")
    assert "#SBATCH --nodes=3\n" in trainers and "#SBATCH --nodes=2\n" in servers
    assert trainers.count("--partition=main") == servers.count("--partition=main") == 1
    assert "--role trainer t.py" in text and "--role pserver t.py" in text


def test_a_file_of_the_site_is_read_and_may_choose_its_mpi(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.sh").write_text("")
    text = written(capsys, "--env", "site.sh", "t.py")
    assert "HPCDIST_ENV:-./site.sh}" in text and "SLURM_MPI_TYPE" not in text
    assert "SLURM_MPI_TYPE=pmi2\n" in written(capsys, "--env", "site.sh", "--mpi", "pmi2", "t.py")


@pytest.mark.parametrize(
    ("library", "mpi", "setting"),
    [
        ("Open MPI v5.0.11, package: ...", "pmix", "PMIX_MCA_psec=native"),
        ("MPICH Version: 5.0.2", "pmi2", "MPIR_CVAR_CH4_NETMOD=ofi"),
        ("Intel(R) MPI Library 2021", "pmi2", ""),
        ("", "pmix", ""),  # this python has no MPI: the job's may be another one
    ],
)
def test_srun_starts_mpi_as_the_library_of_this_python_needs(
    capsys, monkeypatch, library, mpi, setting
):
    monkeypatch.setattr(mpi_library, "library", lambda: (library, ""))
    assert f"export SLURM_MPI_TYPE={mpi} {setting}" in written(capsys, "t.py")
    assert "SLURM_MPI_TYPE=pmi2" in written(capsys, "--mpi", "pmi2", "t.py")


def test_a_failure_before_the_first_step_is_not_retried():
    text = slurm.batch_script(slurm.BatchJob())
    give_up = text.index('compgen -G "$LOGS/start.*/first-step"')
    assert text.index("code=$?") < give_up < text.index("scontrol requeue")


@pytest.mark.parametrize(
    ("variables", "requeued"),
    [
        ({"SLURM_JOB_ID": "7"}, "7"),
        # The last task of an array has the array's own number.
        (
            {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"},
            "7_2",
        ),
    ],
)
@pytest.mark.parametrize("name", BUNDLED)
def test_what_is_started_again_is_this_task_alone(tmp_path, name, variables, requeued):
    (tmp_path / "bin").mkdir()
    for program, text in {"srun": "exit 75", "scontrol": 'echo "scontrol $@"'}.items():
        (tmp_path / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    ended = subprocess.run(
        ["bash", FOLDER / name, "t.py"],
        cwd=tmp_path,
        env=env | variables | {"HPCDIST_ENV": str(FOLDER / "env.sh"), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (75, f"scontrol requeue {requeued}\n"), ended


def test_a_script_submitted_from_elsewhere_says_so(tmp_path):
    ended = subprocess.run(
        ["bash", FOLDER / "pserver.sbatch", "t.py"],
        cwd=tmp_path,
        env={**os.environ, "HPCDIST_ENV": "", "SLURM_JOB_ID": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"no jobs/slurm/env.sh in {tmp_path}: submit from")
    assert not list(tmp_path.iterdir())  # not even a failure to try again


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("2:00:01", 7201),
        ("1-12", 129600),
        ("1-0:30", 88200),
        ("2-1:2:3", 176523),
        ("Unlimited", float("inf")),
    ],
)
def test_limits_are_read_as_slurm_reads_them(time, seconds):
    assert slurm.seconds_of(time) == seconds


def test_a_script_can_go_to_a_file(tmp_path, capsys):
    file = tmp_path / "job.sbatch"
    assert written(capsys, "-o", str(file), "t.py") == ""
    assert file.read_text().startswith("#!/bin/bash\n")
    with pytest.raises(SystemExit, match="cannot write"):
        main(["slurm", "-o", str(tmp_path / "no" / "job.sbatch"), "t.py"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pservers", "8", "t.py"], "no trainer is left among 8 ranks"),
        (["--pservers-per-node", "4", "t.py"], "no trainer is left"),
        (["--pservers", "1", "--server-nodes", "1", "t.py"], "give one of"),
        (["--het", "t.py"], "--server-nodes"),
        (["--nodes", "0", "t.py"], "expected an integer >= 1, got '0'"),
        (["--nodes", "²", "t.py"], "expected an integer >= 1, got '²'"),
        (["--time", "1 hour", "t.py"], "h:m:s, d-h, d-h:m, d-h:m:s or UNLIMITED, got '1 hour'"),
        (["--time", "3", "t.py"], "--warning 120 can come 180 s before the end"),
        (["--env", "nowhere.sh", "t.py"], "cannot read --env 'nowhere.sh'"),
        (["--env", "a$b.sh", "t.py"], "a shell would interpret $"),
        (["--account", "a\n#SBATCH --wrap=ls", "t.py"], "--account: expected text of one line"),
        (["a\nb.py"], "--job-name: expected text of one line"),
        ([], "script"),
    ],
)
def test_what_makes_no_job_is_refused(capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        main(["slurm", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


# -- the warning -----------------------------------------------------------------------------------
WARNED_AT_BOTH_ENDS = """
import atexit, os, signal
from hpcdist.checkpoint import preemption
print("warned", preemption.warned())
atexit.register(os.kill, os.getpid(), signal.SIGUSR1)
"""
# As `env --block-signal=USR1` does, and the warning comes before python has started.
STARTS_WARNED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
os.execv(sys.executable, [sys.executable, "-m", "hpcdist", "t.py"])
"""


def test_a_warning_ends_nothing_before_the_script_or_after_it(tmp_path):
    (tmp_path / "t.py").write_text(WARNED_AT_BOTH_ENDS)
    ended = subprocess.run(
        [sys.executable, "-c", STARTS_WARNED],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "warned True\n"), ended.stderr


def test_a_warning_while_python_imports_waits_for_the_script(tmp_path):
    (tmp_path / "t.py").write_text(
        "from hpcdist.checkpoint import preemption\nprint('warned', preemption.warned())"
    )
    (tmp_path / "early").mkdir()
    (tmp_path / "early/threadpoolctl.py").write_text(read_script("warned_while_imported"))
    env = clean_environment()
    ended = subprocess.run(
        [sys.executable, "-m", "hpcdist", "t.py"],
        cwd=tmp_path,
        env={**env, "PYTHONPATH": f"{tmp_path}/early:{env['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "warned True\n"), ended.stderr


# -- who serves ------------------------------------------------------------------------------------
def test_servers_of_every_node_are_a_role_map(monkeypatch):
    assert options.parse(["--pservers-per-node", "2", "t.py"]).role_map == "node:*=2"
    monkeypatch.setenv("HPCDIST_PSERVERS_PER_NODE", "3")
    assert options.parse(["t.py"]).role_map == "node:*=3"
    with pytest.raises(SystemExit):
        options.parse(["--role-map", "t,s", "t.py"])


def test_a_role_is_one_of_two():
    assert options.parse(["--role", "pserver", "t.py"]).role == "pserver"
    with pytest.raises(SystemExit):
        options.parse(["--role", "worker", "t.py"])

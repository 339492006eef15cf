"""Batch scripts: those that lie in jobs/slurm, and those written for a job."""

from __future__ import annotations

import subprocess

import pytest

from hpcdist.launch import options, slurm
from hpcdist.launch.main import main
from tests.jobs import ROOT

FOLDER = ROOT / "jobs" / "slurm"


@pytest.mark.parametrize("name", slurm.BUNDLED)
def test_the_scripts_here_are_those_that_are_written(name):
    assert (FOLDER / name).read_text() == slurm.batch_script(slurm.BUNDLED[name])


def test_every_script_here_is_written():
    assert {path.name for path in FOLDER.glob("*.sbatch")} == set(slurm.BUNDLED)


@pytest.mark.parametrize("name", [*slurm.BUNDLED, "env.sh"])
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
        *("train.py", "--lr", "0.1", "a b"),
    )
    directives = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    for expected in (
        "--job-name=train",
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


def test_servers_on_nodes_of_their_own(capsys):
    text = written(capsys, "--nodes", "3", "--ranks-per-node", "4", "--server-nodes", "2", "t.py")
    assert "#SBATCH --nodes=5\n" in text
    assert "--distribution=block" in text and "--pservers 8 t.py\n" in text


def test_the_parts_of_a_heterogeneous_job(capsys):
    text = written(capsys, "--nodes", "3", "--server-nodes", "2", "--het", "t.py")
    trainers, servers = text.split("#SBATCH hetjob")
    assert "#SBATCH --nodes=3\n" in trainers and "#SBATCH --nodes=2\n" in servers
    assert "--role trainer t.py" in text and "--role pserver t.py" in text


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
        (["--nodes", "0", "t.py"], "expected a number >= 1, got '0'"),
        ([], "script"),
    ],
)
def test_what_makes_no_job_is_refused(capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        main(["slurm", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


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

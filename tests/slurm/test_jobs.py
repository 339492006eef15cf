"""The batch scripts on a real Slurm of four nodes, with real MPI between the ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.scripts import read_script
from tests.slurm.batch_jobs import (
    NEEDS_SLURM,
    SMALL,
    finished,
    loss_in,
    needs_pmix,
    restarts,
)
from tests.support.jobs import ROOT

pytestmark = NEEDS_SLURM
MPICH = ROOT / ".venv-mpich/bin/python"

TRAIN = read_script("train_for_slurm")


@pytest.fixture(scope="module")
def alone():
    """Return the line that one process prints, without the host."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float.fromhex(done.stdout.split()[-1])


FROM_PYPI = {"PMIX_MCA_psec": "native"}  # Open MPI's wheel has no munge
WARNS_ITSELF = read_script("warns_itself")


@needs_pmix
@pytest.mark.parametrize(
    ("script", "options", "servers"),
    [
        ("pserver.sbatch", ("--nodes=2",), 2),
        ("pserver_nodes.sbatch", ("--nodes=3", "--ntasks-per-node=4"), 4),
        ("collective_cpu.sbatch", ("--nodes=2",), 0),
        ("collective_cpu.sbatch", ("--nodes=2", "--export=PATH,PYTHONPATH,HOME"), 0),
    ],
)
def test_a_batch_script_trains_as_one_process(lab, project, alone, script, options, servers):
    job = lab.submit(project, *SMALL, *options, f"jobs/slurm/{script}", "train.py")
    text = finished(lab, project, job)
    assert loss_in(text) == pytest.approx(alone, rel=1e-5)
    logs = project / f"logs-{job}"
    assert len(list(logs.glob("start.0/serverlog.*"))) == servers
    assert not (logs / "failures").exists()
    assert "on 2 hosts" in text or "on 3 hosts" in text


@needs_pmix
def test_a_heterogeneous_job_trains_as_one_process(lab, project, alone):
    script = project / "jobs/slurm/pserver_het.sbatch"
    script.write_text(script.read_text().replace("--ntasks-per-node=4", "--ntasks-per-node=2"))
    text = finished(lab, project, lab.submit(project, str(script), "train.py"))
    assert loss_in(text) == pytest.approx(alone, rel=1e-5)
    assert "4 trainers (ranks 0-3), 2 servers (ranks 4-5)" in text


@needs_pmix
def test_a_script_written_for_a_job_trains(lab, project, alone):
    options = "--nodes 2 --ranks-per-node 2 --pservers 1 -o job.sbatch train.py"
    subprocess.run(
        [sys.executable, "-m", "hpcdist", "slurm", *options.split()],
        cwd=project,
        env=lab.environment,
        check=True,
    )
    job = lab.submit(project, "job.sbatch")
    assert loss_in(finished(lab, project, job)) == pytest.approx(alone, rel=1e-5)
    # What it has told of itself is found by its number, from anywhere.
    shown = subprocess.run(
        [sys.executable, "-m", "hpcdist", "top", str(job)],
        cwd=project.parent,
        env=lab.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"job {job}" in shown.stdout, shown
    assert "3 trainers, 1 server · step 5 · ended" in shown.stdout


@pytest.mark.skipif(not MPICH.exists(), reason=f"no {MPICH}: make env MPI=mpich")
def test_mpich_is_started_by_pmi2(lab, project, alone):
    path = f"{MPICH.parent}:{os.environ['PATH']}"
    job = lab.submit(
        project, *SMALL, "jobs/slurm/pserver.sbatch", "train.py", PATH=path, SLURM_MPI_TYPE="pmi2"
    )
    assert loss_in(finished(lab, project, job)) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_worlds_of_one_rank_are_refused(lab, project, mpi):
    done = subprocess.run(
        ["srun", "-n", "3", f"--mpi={mpi}", sys.executable, "-m", "hpcdist", "train.py"],
        cwd=project,
        env=lab.environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("3 processes were started, but each has an MPI world of one") == 1
    assert "loss" not in done.stdout


@pytest.mark.parametrize(
    ("mpi", "level", "said"),
    [
        pytest.param("pmix", "OK", "3 ranks on 3 hosts; Open MPI", marks=needs_pmix),
        ("none", "ERROR", "3 processes were started, but each has an MPI world of one rank"),
    ],
)
def test_the_doctor_looks_at_an_allocation(lab, tmp_path, mpi, level, said):
    done = subprocess.run(
        ["srun", "-N3", "-n3", f"--mpi={mpi}", sys.executable, "-m", "hpcdist", "doctor", "--json"],
        cwd=tmp_path,
        env=lab.environment | FROM_PYPI,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.stdout, done
    found = json.loads(done.stdout)  # of one rank only
    launcher, *_ = found["findings"]
    assert launcher["check"] == "launcher"
    assert launcher["level"] == level, done
    assert said in launcher["text"]
    assert (done.returncode != 0) == (found["exit_code"] != 0)
    if level == "OK":
        hosts = [rank["host"] for rank in found["ranks"]]  # others' jobs may have some of the nodes
        assert len(set(hosts)) == 3 and set(hosts) <= {f"n{k}" for k in range(1, 9)}, hosts
        assert len(found["links"]) == 3
        assert all(rank["variables"]["SLURM_NTASKS"] == "3" for rank in found["ranks"])


# -- what would fail again -----------------------------------------------------------------------
@needs_pmix
@pytest.mark.parametrize(
    ("script", "reason"),
    [("nowhere.py", "cannot read the script 'nowhere.py'"), ("refused.py", "FeedError")],
)
def test_what_fails_before_the_first_step_is_started_once(lab, project, script, reason):
    (project / "refused.py").write_text(TRAIN.replace("shape=[None, 4]", "shape=[None, 5]"))
    job = lab.submit(project, *SMALL, "jobs/slurm/pserver.sbatch", script)
    state = lab.await_end(job)
    (log,) = project.glob(f"*-{job}.log")
    text = log.read_text()
    assert (state, restarts(lab, job)) == ("FAILED", 0), text
    assert reason in text
    assert "the job failed before its first step" in text


@needs_pmix
def test_a_plain_srun_that_is_warned_while_it_starts_goes_on(lab, project, alone):
    """The warning comes to every rank as soon as it has begun to import hpcdist."""
    (project / "early").mkdir()
    (project / "early/sitecustomize.py").write_text(WARNS_ITSELF)
    done = subprocess.run(
        ["srun", "-n", "3", "--mpi=pmix", sys.executable, "-m", "hpcdist", "train.py"],
        cwd=project,
        env=lab.environment | {"PYTHONPATH": f"{project}/early:{ROOT}", **FROM_PYPI},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert loss_in(done.stdout) == pytest.approx(alone, rel=1e-5)

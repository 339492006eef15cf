"""The batch scripts on a real Slurm of four nodes, with real MPI between the ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.comm.process_manager import launched_size
from tests.jobs import ROOT
from tests.scripts import read_script
from tests.slurm.lab import PMIX, Lab, missing

pytestmark = [
    pytest.mark.timeout(900),  # jobs wait for their turn, and are put back again and again
    pytest.mark.skipif(bool(missing()), reason=missing() or "never"),
    pytest.mark.skipif(
        launched_size() is not None, reason="starts a Slurm: once, not on every rank"
    ),
]
needs_pmix = pytest.mark.skipif(not PMIX.exists(), reason=f"Slurm's PMIx plugin wants {PMIX}")
MPICH = ROOT / ".venv-mpich/bin/python"

TRAIN = read_script("train_for_slurm")


RESUMES = (Path(__file__).parent / "resumes.py").read_text()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    made = Lab(folder, 4)
    # The python of these tests, wherever env.sh would look; root needs Open MPI's leave.
    made.environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def project(tmp_path):
    """Return a folder from which a user submits: it has the batch scripts and a script to train."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


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


def finished(lab, project, job):
    """Wait for a job to end well; return what its log says, and the hosts of each role."""
    state = lab.await_end(job)
    (log,) = project.glob(f"*-{job}.log")
    text = log.read_text()
    assert state == "COMPLETED", text
    return text


def loss_in(text):
    return float.fromhex(text.split("loss ")[1].split()[0])


FROM_PYPI = {"PMIX_MCA_psec": "native"}  # Open MPI's wheel has no munge
WARNS_ITSELF = read_script("warns_itself")
SMALL = ("--ntasks-per-node=2", "--cpus-per-task=1", "--time=5")


@needs_pmix
@pytest.mark.parametrize(
    ("script", "options", "servers"),
    [
        ("pserver.sbatch", ("--nodes=2",), 2),
        ("pserver_nodes.sbatch", ("--nodes=3", "--ntasks-per-node=4"), 4),
        ("collective_cpu.sbatch", ("--nodes=2",), 0),
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
    assert (
        "4 trainers" in text or "trainers are ranks [0, 1, 2, 3], servers are ranks [4, 5]" in text
    )


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
        assert [rank["host"] for rank in found["ranks"]] == ["n1", "n2", "n3"]
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


# -- stopping and going on -------------------------------------------------------------------------
EPOCHS = 4  # for each start: more steps than one makes that is warned


def uninterrupted(lab, project, epochs):
    """Return the last loss of a job that nobody stops."""
    folder = project / "uninterrupted"
    shutil.copytree(project / "jobs", folder / "jobs")
    (folder / "train.py").write_text(RESUMES)
    job = lab.submit(folder, *SMALL, "jobs/slurm/pserver.sbatch", "train.py", EPOCHS=epochs)
    return loss_in(finished(lab, folder, job))


def await_step(lab, project, beyond):
    """Wait until trainer 0 has made a step later than ``beyond``."""
    file = project / "step.0"

    def step():
        text = file.read_text() if file.exists() else ""
        return int(text) if text else -1

    lab.wait_until(lambda: step() > beyond, f"a step beyond {beyond}")


def restarts(lab, job):
    return int(re.search(r"Restarts=(\d+)", lab.run("scontrol", "show", "job", str(job)))[1])


def ranks_of(job):
    """Return the processes of a running job's ranks, by rank, as folders of /proc."""
    ranks = {}
    step = {f"SLURM_JOB_ID={job}".encode(), b"SLURM_STEP_ID=0"}  # the latter not in srun itself
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"hpcdist" in command and step <= set(variables):
            ranks |= {int(v[13:]): process for v in variables if v.startswith(b"SLURM_PROCID=")}
    return ranks


def outlives_a_warning(process):
    """Tell whether a process blocks or handles SIGUSR1 already."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return False
    masks = dict(line.split(":\t") for line in lines if line.startswith("Sig"))
    return bool((int(masks["SigBlk"], 16) | int(masks["SigCgt"], 16)) >> signal.SIGUSR1 - 1 & 1)


def await_start(lab, job, size):
    """Wait until all ranks have begun to start: their script comes seconds later."""

    def begun():
        return sum(map(outlives_a_warning, ranks_of(job).values())) == size

    lab.wait_until(begun, f"{size} ranks to start")


@needs_pmix
def test_requeued_jobs_end_with_the_bits_of_one_that_was_not(lab, project):
    """Warned and put back again and again: HPCDIST_REQUEUES times, 2 by default.

    The last time while it still starts.
    """
    requeues = int(os.environ.get("HPCDIST_REQUEUES", "2"))
    epochs = str(EPOCHS * (requeues + 1))
    expected = uninterrupted(lab, project, epochs)
    (project / "train.py").write_text(RESUMES)
    for start in range(requeues):
        (project / f"stop.{start}").touch()
    job = lab.submit(project, *SMALL, "jobs/slurm/pserver.sbatch", "train.py", EPOCHS=epochs)
    for count in range(1, requeues + 1):
        if count == requeues:
            await_start(lab, job, 4)
        else:
            await_step(lab, project, 3)
        lab.run("scancel", "--signal=USR1", str(job))
        lab.wait_until(lambda c=count: restarts(lab, job) == c, "the job to be put back")
        (project / "step.0").unlink()  # the next run writes its own
    assert loss_in(finished(lab, project, job)) == expected
    assert restarts(lab, job) == requeues
    assert not (project / f"logs-{job}" / "failures").exists(), "a stop was taken for a failure"


@needs_pmix
def test_the_time_limit_stops_a_job_that_then_goes_on(lab, project):
    (project / "train.py").write_text(RESUMES)
    limits = ("--time=3", "--signal=USR1@170")  # of three minutes: it has about ten seconds
    job = lab.submit(
        project, *SMALL, *limits, "jobs/slurm/pserver.sbatch", "train.py", EPOCHS="100000"
    )
    lab.wait_until(lambda: restarts(lab, job) == 1, "the time to be over")
    (log,) = project.glob(f"*-{job}.log")
    lab.wait_until(lambda: "it resumes from" in log.read_text(), "the job's last word")
    lab.run("scancel", str(job))


@needs_pmix
@pytest.mark.parametrize("retries", [0, 2])
def test_a_job_goes_on_after_a_servers_death_but_not_for_ever(lab, project, retries):
    (project / "train.py").write_text(RESUMES)
    (project / "stop.0").touch()
    job = lab.submit(
        project,
        *SMALL,
        "jobs/slurm/pserver.sbatch",
        "train.py",
        EPOCHS=str(EPOCHS),
        RETRIES=str(retries),
    )
    await_step(lab, project, 10)
    # Rank 1 is the second rank of the first node: pserver.sbatch makes it a server.
    subprocess.run(["kill", "-9", ranks_of(job)[1].name], check=True)
    if retries:
        finished(lab, project, job)
        assert restarts(lab, job) == 1
    else:
        assert lab.await_end(job) == "FAILED"
    codes = (project / f"logs-{job}" / "failures").read_text().splitlines()
    assert len(codes) == 1 and codes[0].startswith("exit code ")

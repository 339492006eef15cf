"""Jobs that Slurm warns, or that fail: put back into the queue, they go on where they were."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.batch_jobs import NEEDS_SLURM, SMALL, finished, loss_in, needs_pmix, restarts
from tests.support.jobs import needs_torch

pytestmark = NEEDS_SLURM
RESUMES = (Path(__file__).parent / "resumes.py").read_text()
TORCH_RESUMES = (Path(__file__).parent / "torch_resumes.py").read_text()
ARRAY_TASK = (Path(__file__).parent / "array_task.py").read_text()
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
        # Not the process that watches a host, which has a rank's variables too.
        if b"\0hpcdist\0" in command and step <= set(variables):
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


def submitted_for_torchrun(lab, folder, script, **variables):
    """Submit a PyTorch script by the batch script that is written for it, on two nodes."""
    (folder / "train.py").write_text(script)
    options = "--as-torchrun --nodes 2 --ranks-per-node 1 -o job.sbatch train.py"
    subprocess.run(
        [sys.executable, "-m", "hpcdist", "slurm", *options.split()],
        cwd=folder,
        env=lab.environment,
        check=True,
    )
    return lab.submit(folder, "job.sbatch", **variables)


def bits_in(text):
    return text.split("bits ")[1].split()[0]


@needs_pmix
@needs_torch
def test_a_torch_script_that_is_warned_and_fails_ends_with_the_bits_of_one_that_was_not(
    lab, project
):
    whole = project / "uninterrupted"
    whole.mkdir()
    expected = bits_in(
        finished(lab, whole, submitted_for_torchrun(lab, whole, TORCH_RESUMES, STEPS="40"))
    )
    for start in range(2):
        (project / f"stop.{start}").touch()
    job = submitted_for_torchrun(lab, project, TORCH_RESUMES, STEPS="40")
    await_step(lab, project, 3)
    lab.run("scancel", "--signal=USR1", str(job))
    lab.wait_until(lambda: restarts(lab, job) == 1, "the warned job to be put back")
    failures = project / f"logs-{job}" / "failures"
    assert not failures.exists(), "a stop was taken for a failure"
    (project / "step.0").unlink()
    await_step(lab, project, 10)
    subprocess.run(["kill", "-9", ranks_of(job)[1].name], check=True)
    assert bits_in(finished(lab, project, job)) == expected
    assert restarts(lab, job) == 2
    assert len(failures.read_text().splitlines()) == 1


@needs_pmix
@needs_torch
def test_a_torch_script_without_a_saver_is_started_once(lab, project):
    """It has trained, but nothing of that could be taken up again."""
    script = (
        "import torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "torch.optim.SGD(model.parameters(), 0.1).step()\n"
        "raise ValueError('after a step')\n"
    )
    job = submitted_for_torchrun(lab, project, script)
    state = lab.await_end(job)
    (log,) = project.glob(f"*-{job}.log")
    text = log.read_text()
    assert (state, restarts(lab, job)) == ("FAILED", 0), text
    assert "ValueError: after a step" in text
    assert "the job failed before the first step of a hpcdist.torch.Saver (1)" in text


@needs_pmix
def test_of_an_array_only_the_task_that_stopped_is_started_again(lab, project):
    """The last one, whose job id is that of the array: the others have ended well by then."""
    (project / "train.py").write_text(ARRAY_TASK)
    small = ("--array=0-2", "--nodes=1", "--ntasks-per-node=1", "--time=5")
    job = lab.submit(project, *small, "jobs/slurm/collective_cpu.sbatch", "train.py")
    last = project / "task.2.done"
    lab.wait_until(last.exists, "the last task to be started again, and to end well")
    starts = {file.name for file in project.glob("task.*.start.*")}
    assert starts == {f"task.{k}.start.0" for k in range(3)} | {"task.2.start.1"}, job

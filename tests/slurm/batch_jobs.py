"""What tests of batch scripts ask of the machine and of Slurm."""

from __future__ import annotations

import re

import pytest

from hpcdist.comm.process_manager import launched_size
from tests.slurm.lab import PMIX, missing

NEEDS_SLURM = [
    pytest.mark.timeout(900),  # jobs wait for their turn, and are put back again and again
    pytest.mark.skipif(bool(missing()), reason=missing() or "never"),
    pytest.mark.skipif(
        launched_size() is not None, reason="starts a Slurm: once, not on every rank"
    ),
]
needs_pmix = pytest.mark.skipif(not PMIX.exists(), reason=f"Slurm's PMIx plugin wants {PMIX}")
SMALL = ("--ntasks-per-node=2", "--cpus-per-task=1", "--time=5")


def finished(lab, project, job):
    """Wait for a job to end well; return what its log says, and the hosts of each role."""
    state = lab.await_end(job)
    (log,) = project.glob(f"*-{job}.log")
    text = log.read_text()
    assert state == "COMPLETED", text
    return text


def loss_in(text):
    return float.fromhex(text.split("loss ")[1].split()[0])


def restarts(lab, job):
    return int(re.search(r"Restarts=(\d+)", lab.run("scontrol", "show", "job", str(job)))[1])

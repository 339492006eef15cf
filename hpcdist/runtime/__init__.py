"""Where graph and network meet: the launcher starts a job here, and ends it."""

from __future__ import annotations

import os

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.waiting import waiting_for
from hpcdist.executor import control
from hpcdist.executor.position import here
from hpcdist.runtime.job import Job

DEADLINE_FLAG = "FLAGS_rpc_deadline"  # milliseconds, as Fluid's
DEFAULT_DEADLINE_MS = 180_000

_job: Job | None = None


def start(transport: Transport, cluster: Cluster, *, seed: int = 0) -> None:
    """Make this process a rank of a job. Every rank calls this, before the script runs."""
    global _job
    deadline_s = int(os.environ.get(DEADLINE_FLAG, DEFAULT_DEADLINE_MS)) / 1000
    _job = Job(transport, cluster, seed=seed, deadline_s=deadline_s)
    control.install(_job)


def end_together() -> None:
    """Leave the servers, and wait until all trainers have; every rank's script has ended well."""
    if _job is not None:
        _job.end_together()


def finish() -> None:
    """End this rank's part after its script: leave the servers if the script forgot to."""
    global _job
    if _job is not None:
        _job.close()
        control.install(None)
        _job = None


def staleness() -> int:
    """Return how many updates of other trainers the last step's gradients had not seen.

    0 in synchronous mode, on servers, and in a process that trains alone.
    """
    return 0 if _job is None else _job.staleness


def where() -> str:
    """Return what this process waits for or is doing: step, operator, variable."""
    return waiting_for() or str(here)

"""Where graph and network meet: the launcher starts a job here, and ends it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.waiting import waiting_for
from hpcdist.executor import control
from hpcdist.executor.position import here
from hpcdist.ps.table import TableStatistics
from hpcdist.runtime.alone import Alone
from hpcdist.runtime.job import Job
from hpcdist.runtime.survival import OnFailure, Survival
from hpcdist.runtime.tables import TABLE_OPS

DEADLINE_FLAG = "FLAGS_rpc_deadline"  # milliseconds, as Fluid's
DEFAULT_DEADLINE_MS = 180_000

_job: Job | None = None
control.install_alone(Alone(), TABLE_OPS)


def start(
    transport: Transport,
    cluster: Cluster,
    *,
    seed: int = 0,
    on_failure: OnFailure | None = None,
    name_of: Callable[[int], str] | None = None,
    announce: Callable[[str], None] = print,
    stack_of: Callable[[int], str] | None = None,
) -> None:
    """Make this process a rank of a job. Every rank calls this, before the script runs.

    ``on_failure`` says whether the job goes on without trainers that die, see `Survival`;
    ``name_of`` returns what messages call a rank, ``stack_of`` where it is in its Python code,
    ``announce`` prints them.
    """
    global _job
    deadline_s = int(os.environ.get(DEADLINE_FLAG, DEFAULT_DEADLINE_MS)) / 1000
    survival = Survival(transport, cluster, on_failure, name_of, announce, stack_of)
    _job = Job(transport, cluster, seed=seed, deadline_s=deadline_s, survival=survival)
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


def table_statistics() -> list[TableStatistics]:
    """Return rows, memory and use of this server's distributed tables; none on a trainer."""
    return [] if _job is None else _job.table_statistics()


def updates_applied() -> tuple[int, ...]:
    """Return how many whole updates of each trainer a server has applied, once it has served."""
    return () if _job is None else _job.survival.applied


def staleness() -> int:
    """Return how many updates of other trainers the last step's gradients had not seen.

    0 in synchronous mode, on servers, and in a process that trains alone.
    """
    return 0 if _job is None else _job.staleness


def goes_on_without(rank: int) -> bool | None:
    """Tell whether this job goes on when ``rank`` dies; None: not known yet."""
    return False if _job is None else _job.survival.goes_on_without(rank)


def advice(dead: Sequence[int]) -> str:
    """Return what the user can do about the death of these ranks, or an empty string."""
    return "" if _job is None else _job.survival.advice(dead)


def everyones(data: bytes, what: str) -> list[bytes]:
    """Return what every trainer gives, in trainer order; ``what`` says it in messages.

    Collective among trainers; a process that trains alone gets its own back.
    """
    return [data] if _job is None else _job.everyones(data, what)


def where() -> str:
    """Return what this process waits for or is doing: step, operator, variable."""
    return waiting_for() or str(here)

"""Joins graph and network: the launcher starts and ends a job here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hpcdist.base import late, settings
from hpcdist.base.trace.position import here
from hpcdist.checkpoint.job import install_job
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster, Ranks
from hpcdist.comm.progress import waiting_for
from hpcdist.runtime.job.failure_policy import FailurePolicy, OnFailure
from hpcdist.runtime.job.job import Job

if TYPE_CHECKING:  # only jobs with servers and tables load them
    from hpcdist.ps.table import TableStatistics

_job: Job | None = None
_begun = False  # whether this process has been made a rank
_tell_left: Callable[[Sequence[int]], None] | None = None
_followers: list[Callable[[Job | None], None]] = []


def _load_programs() -> None:
    """Load what runs Programs in this process's job, or in a process that trains alone."""
    importlib.import_module("hpcdist.runtime.programs")


late.expect(_load_programs)


def follow(tell: Callable[[Job | None], None]) -> None:
    """Call ``tell`` with the job of this process, now and whenever there is another or none."""
    _followers.append(tell)
    tell(_job)


def _set_job(job: Job | None) -> None:
    global _job
    _job = job
    install_job(job)
    if job is not None and job.serves:
        _load_programs()  # which servers run, whatever their trainers do
    for tell in _followers:
        tell(job)


def start(
    transport: Transport,
    cluster: Cluster,
    *,
    seed: int = 0,
    on_failure: OnFailure | None = None,
    name_of: Callable[[int], str] | None = None,
    announce: Callable[[str], None] = print,
    name_death: Callable[[int, str], None] | None = None,
    stack_of: Callable[[int], str] | None = None,
    local_feed: bool = False,
    tell_left: Callable[[Sequence[int]], None] | None = None,
) -> None:
    """Make this process a rank of a job. Every rank calls this, before the script runs.

    ``on_failure`` says whether the job continues without trainers that die, see `FailurePolicy`;
    ``name_of`` returns what messages call a rank, ``stack_of`` where it is in its Python code,
    ``announce`` prints them, ``name_death`` those of a death that the job survives, once for each
    rank that died. ``local_feed``: every trainer of a plain script feeds rows of its
    own, which together are the batch; by default each feeds the whole batch and takes its rows.
    ``tell_left`` is told which ranks are left when the job goes on without others, in their new
    order.
    """
    global _tell_left, _begun
    _tell_left = tell_left
    deadline_s = settings.RPC_DEADLINE.read() / 1000
    failure_policy = FailurePolicy(
        transport, cluster, on_failure, name_of, announce, stack_of, name_death
    )
    job = Job(
        transport,
        cluster,
        seed=seed,
        deadline_s=deadline_s,
        failure_policy=failure_policy,
        local_feed=local_feed,
    )
    _set_job(job)
    _begun = True


def continue_with(transport: Transport, ranks: Sequence[int]) -> None:
    """Continue as a rank of the surviving job, without servers; ``ranks``: their old numbers.

    ``transport`` has them in the same order. Collective among them.
    """
    assert _job is not None, "only a job goes on"
    _set_job(_job.survivors_job(transport))
    if _tell_left is not None:
        _tell_left(ranks)


def end_together() -> None:
    """Leave the servers, and wait until all trainers have; every rank's script has ended well."""
    if _job is not None:
        _job.end_together()


def finish() -> None:
    """End this rank's part after its script: leave the servers if the script forgot to."""
    if _job is not None:
        _job.close()
        forget()


def forget() -> None:
    """Drop the job without notifying other ranks, to continue after a failure."""
    _set_job(None)


def current() -> Job | None:
    """Return the job that this process is a rank of; None in a process that trains alone."""
    return _job


def server_count() -> int:
    """Return how many parameter servers the job has; 0 in a process that trains alone."""
    return 0 if _job is None else len(_job.cluster.servers)


def rank() -> int:
    """Return this process's rank in the job; 0 in a process that trains alone."""
    return 0 if _job is None else _job.transport.rank


def is_server() -> bool:
    """Return whether this process is a parameter server; False in a process that trains alone."""
    return _job is not None and _job.role.kind == PSERVER


def is_first() -> bool:
    """Return whether this process is trainer 0, or trains alone: where to print and write once."""
    return _job is None or (_job.role.kind != PSERVER and _job.role.index == 0)


def table_statistics() -> list[TableStatistics]:
    """Return rows, memory and use of this server's distributed tables; none on a trainer."""
    return [] if _job is None else _job.table_statistics()


def updates_applied() -> tuple[int, ...]:
    """Return how many complete updates of each trainer a server has applied, once it has served."""
    return () if _job is None else _job.failure_policy.applied


def staleness() -> int:
    """Return how many updates of other trainers the last step's gradients had not seen.

    0 in synchronous mode, on servers, and in a process that trains alone.
    """
    return 0 if _job is None else _job.staleness


def has_begun() -> bool:
    """Return whether `start` has made this process a rank, even if the job has ended since."""
    return _begun


def goes_on_without(rank: int) -> bool | None:
    """Return whether this job continues when ``rank`` dies; None: not known yet."""
    return False if _job is None else _job.failure_policy.goes_on_without(rank)


def advice(dead: Sequence[int]) -> str:
    """Return advice for the user about the death of these ranks, or an empty string."""
    return "" if _job is None else _job.failure_policy.advice(dead)


def everyones(data: bytes, awaited: str, among: Ranks = Ranks.TRAINERS) -> list[bytes]:
    """Gather a value from every trainer, in trainer order; messages call it ``awaited``.

    Collective among trainers; a process that trains alone gets its own back. ``among`` servers it
    is collective until they serve, and so it is among all ranks: trainers' values come first.
    """
    return [data] if _job is None else _job.everyones(data, awaited, among)


def where() -> str:
    """Return the place of this process: its wait, or its step, operator, variable."""
    return waiting_for() or str(here)

"""Whole jobs in one process: every rank of a plain script is a thread, over loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import hpcdist.runtime.programs  # noqa: F401  # before a test installs its own Control
from hpcdist.comm import loopback, progress
from hpcdist.comm.cluster import PSERVER, Cluster
from hpcdist.errors import HpcdistError
from hpcdist.executor import bound_step, control, executor
from hpcdist.executor.scope import Scope
from hpcdist.ps import plan
from hpcdist.ps.slicing import Slice, slice_variables
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.job.program_job import ProgramJob
from tests.support.threads import LIMIT_S

SMALLEST = 2  # elements of a block; users' have 8192

Script = Callable[[], Any]  # runs a Program with `Executor.run`; every rank has its own


def _small_slices(variables: Iterable[Any], servers: int, min_block_size: int) -> tuple[Slice, ...]:
    """Cut parameters as small as those of tests, too: every server has a part of each."""
    return slice_variables(variables, servers, SMALLEST)


class _Own(threading.local):
    job: Any = None
    scope: Any = None


class _OfThread:
    """The Control of whichever rank's thread asks."""

    def __init__(self, own: _Own) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own.job, name)

    def note_set(self, variable: Any) -> None:  # bound before there is a job
        self._own.job.note_set(variable)


@contextmanager
def ranks_as_threads(**asked: Any) -> Iterator[Callable[[int, int, list[Script]], list[Any]]]:
    """Give a function that runs one script for each rank, trainers first; it returns what the
    trainers' scripts return, or raises the first error that a rank ended with. ``asked`` goes to
    each rank's `Job`."""
    own = _Own()

    def run(trainers: int, servers: int, scripts: list[Script]) -> list[Any]:
        size = trainers + servers
        cluster = Cluster(tuple(range(trainers)), tuple(range(trainers, size)))
        results: list[Any] = [None] * size
        errors: list[tuple[bool, BaseException]] = []  # with whether it only follows another's
        patch.setattr(progress, "ticks", [])  # those of a job that failed still raise

        def rank(transport: Any, script: Script) -> None:
            try:
                own.scope = Scope()
                own.job = ProgramJob(Job(transport, cluster, seed=0, deadline_s=60, **asked))
                results[transport.rank] = script()
                own.job.close()
            except SystemExit as end:
                assert end.code == 0 and cluster.role_of(transport.rank).kind == PSERVER
            except BaseException as error:
                errors.append(("aborted the job" in str(error), error))
                try:
                    transport.abort(1)
                except HpcdistError:
                    pass
                except SystemExit:
                    pass

        pairs = zip(loopback.world(size), scripts, strict=True)
        threads = [threading.Thread(target=rank, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), f"a rank hangs; errors of the others: {errors}"
        if errors:
            raise min(errors, key=lambda found: found[0])[1]
        return results[:trainers]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "global_scope", lambda: own.scope)
        patch.setattr(plan, "slice_variables", _small_slices)
        patch.setattr(bound_step, "JOINED_AFTER", 1)
        control.install(_OfThread(own))
        try:
            yield run
        finally:
            control.install(None)

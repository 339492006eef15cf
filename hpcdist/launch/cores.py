"""Divides the cores of a host among its ranks: threads of linear algebra in each."""

from __future__ import annotations

import os

import threadpoolctl

from hpcdist import settings


def threads_per_rank(ranks_on_host: int, usable: int, present: int) -> int:
    """Return how many threads a rank may use: its share of the cores, at least one.

    Where mpirun has bound the rank to some of the cores present, those are its own.
    """
    return usable if usable < present else max(1, usable // ranks_on_host)


def share(ranks_on_host: int, *, tell: bool = False) -> None:
    """Limit the threads of this process to its part of the host, unless the user has.

    With ``tell`` also those of libraries that are not loaded yet, by their variable.
    """
    if not any(setting.is_set() for setting in settings.MATH_THREADS):
        usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
        threads = threads_per_rank(ranks_on_host, usable, present)
        threadpoolctl.threadpool_limits(threads)
        if tell:
            settings.MATH_THREADS[0].write(str(threads))

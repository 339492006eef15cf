"""Divides the cores of a host among its ranks: threads of linear algebra in each."""

from __future__ import annotations

import os

import threadpoolctl

from hpcdist.base import settings
from hpcdist.comm.progress import threads_per_rank


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

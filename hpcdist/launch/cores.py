"""Divides the cores of a host among its ranks: threads of linear algebra, and who runs where."""

from __future__ import annotations

import os
from collections.abc import Sequence

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


def stay(place: int, cores: Sequence[Sequence[int]]) -> None:
    """Keep this process, the ``place``-th rank of its host, on one core, if `own_core` has one."""
    core = own_core(place, cores)
    if core is not None:
        os.sched_setaffinity(0, {core})


def own_core(place: int, cores: Sequence[Sequence[int]]) -> int | None:
    """Return the core of the ``place``-th rank of a host, where several ranks share each.

    ``cores`` are those that each rank may use. Left to itself the system often has one rank poll
    alone on a core while all others take turns on the rest, and sees no reason to change that.
    None if there are enough cores, or if ranks may use different ones: somebody has divided them.
    """
    usable, ranks = cores[place], len(cores)
    if any(theirs != usable for theirs in cores):
        return None
    if ranks <= len(usable) or ranks % len(usable):
        return None
    return usable[place % len(usable)]

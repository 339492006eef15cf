"""The cores of a host, shared among its ranks: how many threads linear algebra may use in each."""

from __future__ import annotations

import os
from collections.abc import Mapping

import threadpoolctl

# A user who sets one of these has decided.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def threads_per_rank(ranks_on_host: int, usable: int, present: int) -> int:
    """Return how many threads a rank may use: its share of the cores, at least one.

    Where mpirun has bound the rank to some of the cores present, those are its own.
    """
    return usable if usable < present else max(1, usable // ranks_on_host)


def share(ranks_on_host: int, env: Mapping[str, str]) -> None:
    """Limit the threads of this process to its part of the host, unless the user has."""
    if not any(name in env for name in THREAD_VARIABLES):
        usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
        threadpoolctl.threadpool_limits(threads_per_rank(ranks_on_host, usable, present))

"""The cores of a host, shared among its ranks: threads of linear algebra, and who sits where."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

import threadpoolctl

from hpcdist.comm.cluster import Cluster

# A user who sets one of these has decided.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def threads_per_rank(ranks_on_host: int, cores: int) -> int:
    """Return how many threads each rank may use: its share of the cores, at least one."""
    return max(1, cores // ranks_on_host)


def core_of(
    rank: int, hosts: Sequence[str], cluster: Cluster, cores: Collection[int]
) -> int | None:
    """Return the core to keep a rank on; None where every rank of its host can have its own.

    Trainer i and server i of a host share a core: in a step one of them waits while the other
    works. Left alone, the kernel often puts two trainers on one core and two servers on another.
    """
    neighbours = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    if len(neighbours) <= len(cores):
        return None
    kind = cluster.role_of(rank).kind
    alike = [r for r in neighbours if cluster.role_of(r).kind == kind]
    return sorted(cores)[alike.index(rank) % len(cores)]


def share(
    rank: int, hosts: Sequence[str], cluster: Cluster, env: Mapping[str, str], *, bind: bool
) -> None:
    """Give this process its part of the host's cores, unless the user or mpirun already has."""
    cores = os.sched_getaffinity(0)
    ranks_on_host = list(hosts).count(hosts[rank])
    if not any(name in env for name in THREAD_VARIABLES):
        bound = len(cores) < (os.cpu_count() or 1)
        threads = len(cores) if bound else threads_per_rank(ranks_on_host, len(cores))
        threadpoolctl.threadpool_limits(threads)
    core = core_of(rank, hosts, cluster, cores)
    if bind and core is not None and len(cores) == os.cpu_count():
        os.sched_setaffinity(0, {core})

"""What the process manager (mpirun, srun) passes to a process about its job, and MPI is told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The innermost launcher first: mpirun may run inside a Slurm step, not the other way round.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
NAMESPACE, PMIX_RANK = "PMIX_NAMESPACE", "PMIX_RANK"  # of every process of a job


def launched_size(env: Mapping[str, str] = os.environ) -> int | None:
    """Return how many processes the launcher started, or None where no launcher left a trace."""
    name = size_variable(env)
    return None if name is None else int(env[name])


def size_variable(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that says how many processes the launcher started."""
    # A batch script sees SLURM_NTASKS too, but is no step of that many tasks.
    of_step = ("SLURM_NTASKS",) * ("SLURM_STEP_ID" in env)
    names = (*_SIZES, *of_step, "MPI_LOCALNRANKS")
    return next((name for name in names if env.get(name, "").isdigit()), None)


def launched_rank(env: Mapping[str, str] = os.environ) -> int:
    """Return this process's number among those that the launcher started; 0 without a launcher."""
    if launched_size(env) is None:
        return 0
    return next((int(env[name]) for name in _RANKS if env.get(name, "").isdigit()), 0)


def launched_here(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether Open MPI's mpirun has started all processes of the job on this host."""
    size = env.get("OMPI_COMM_WORLD_SIZE", "")
    return size.isdigit() and env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size


def slurm_job(env: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the id of the Slurm job of this process and how often it was requeued; 0 without."""
    job, restart = (env.get(f"SLURM_{name}", "") for name in ("JOB_ID", "RESTART_COUNT"))
    return int(job) if job.isdecimal() else 0, int(restart) if restart.isdecimal() else 0


def run_words(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the words that all processes of a run share; none without a launcher."""
    job, restart = slurm_job(env)
    step = (str(job), str(restart), env.get("SLURM_STEP_ID", "")) if job else ()
    namespace = env.get(NAMESPACE, "")
    if namespace:
        return (namespace, *step)
    return step if "SLURM_STEP_ID" in env else ()


def survival_requested(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether Open MPI's mpirun runs --with-ft ulfm: jobs may survive dead ranks."""
    return env.get("OMPI_MCA_mpi_ft_enable") in ("1", "true")


def pmix_process(env: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Return the job and the rank of this process, as PMIx names them; None without PMIx."""
    namespace, rank = env.get(NAMESPACE, ""), env.get(PMIX_RANK, "")
    return (namespace, int(rank)) if namespace and rank.isdigit() else None


_SERVER = "PMIX_SERVER_URI"  # and a version: where the launcher listens for this process
LISTENS = "0A"  # the state of a socket in /proc/net/tcp


def dead_servers(env: Mapping[str, str] = os.environ, net: str = "/proc/net") -> list[str]:
    """Return the variables that name a launcher which has ended, of another job; else none.

    MPI would take them for its own, start as one rank, and crash at its end.
    """
    found = {n: re.search(r"tcp[46]?://.*:(\d+)$", uri) for n, uri in env.items() if _SERVER in n}
    ports = {int(match[1]) for match in found.values() if match}
    if not ports or "PMI_SIZE" in env:  # MPICH's mpirun has started this: it asks no PMIx
        return []
    try:
        tables = [
            Path(net, name).read_text() for name in ("tcp", "tcp6") if Path(net, name).exists()
        ]
    except OSError:
        return []
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    heard = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENS}
    return [] if not tables or ports & heard else sorted(found)


@dataclass(frozen=True)
class LocalRanks:
    """The ranks of one job on this host, as PMIx (Open MPI's mpirun) describes them."""

    namespace: str  # of the job
    host: str
    rank: int  # of this process among them
    count: int
    size: int  # of the whole job


def local_ranks(env: Mapping[str, str] = os.environ) -> LocalRanks | None:
    """Return which of this host's ranks this process is; None where PMIx does not say it."""
    numbers = [
        env.get(f"OMPI_COMM_WORLD_{name}", "") for name in ("LOCAL_RANK", "LOCAL_SIZE", "SIZE")
    ]
    namespace = env.get(NAMESPACE, "")
    if not namespace or not all(map(str.isdigit, numbers)):
        return None
    return LocalRanks(namespace, env.get("PMIX_HOSTNAME", ""), *map(int, numbers))


# What Open MPI is told where the user has not told it something else.
OPEN_MPI = {
    # osc/ucx complains when windows are made; ours are of shared memory.
    "OMPI_MCA_osc": "^ucx",
    # "put" writes a long message to its socket in one piece, behind which the request for one of
    # the other direction waits: two ranks that exchanged vectors used one direction at a time.
    "OMPI_MCA_btl_tcp_flags": "send,inplace",
    # Longer messages wait for an answer, which queues behind what the other side sends: sums are
    # sent in pieces of 256 KiB, with the room for Open MPI's header.
    "OMPI_MCA_btl_tcp_eager_limit": str(2**18 + 8192),
}


def tell_open_mpi() -> None:
    """Set what Open MPI reads when it starts; call it before mpi4py is imported."""
    for name, value in OPEN_MPI.items():
        os.environ.setdefault(name, value)

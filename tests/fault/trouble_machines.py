"""Troubles of machines and environments, and what the doctor says of them.

Ranks are started by mpirun in a mount namespace of their own, with a /dev/shm of its own; shell
commands in front of a rank, or of all, make the trouble.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from hpcdist.launch.doctor import stale_files
from tests.fault.troubles import Case
from tests.slurm import lab
from tests.support import hosts
from tests.support.jobs import LIMIT_S, MPIRUN, ROOT, clean_environment

OTHER_MPIRUN = ROOT / ".venv-mpich/bin/mpirun"
SLOW_CALLS = Path(__file__).with_name("slow_calls.c")
WORLD = "mount -t tmpfs -o size=1g none /dev/shm"
AWAY = "hostname h2"  # in a UTS namespace: for hpcdist another host

# What is put in front of Python's own packages.
NO_MPI = {"mpi4py/__init__.py": "class rc: pass", "mpi4py/MPI.py": "raise ImportError('no libmpi')"}
NO_HDF5 = {"h5py/__init__.py": "raise ImportError('libhdf5.so.310: cannot open')"}


def other_version(package: str) -> dict[str, str]:
    """Return files that make a package's version another one."""
    facts = f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.9\n"
    return {f"{package}-0.0.9.dist-info/METADATA": facts}


def left_behind(name: str) -> str:
    """Return a shell command: a process maps a file in /dev/shm, and is killed."""
    return (
        f'{shlex.quote(sys.executable)} -c "import mmap, os; '
        f"file = open('/dev/shm/{name}', 'w+b'); "
        'file.truncate(1 << 24); mmap.mmap(file.fileno(), 0); os.kill(os.getpid(), 9)" || true'
    )


def preloaded(directory: Path, **variables: int) -> str:
    """Return shell commands that load `slow_calls.c` in front of the C library."""
    library = directory / "slow_calls.so"
    if not library.exists():
        compiler = ["cc", "-shared", "-fPIC", "-o", str(library), str(SLOW_CALLS)]
        subprocess.run(compiler, check=True, capture_output=True)
    told = "".join(f" {name}={value}" for name, value in variables.items())
    return f"export LD_PRELOAD={shlex.quote(str(library))}{told}"


def doctor(
    directory: Path,
    *,
    ranks: int = 2,
    of_rank: Mapping[int, Sequence[str]] | None = None,
    all_ranks: Sequence[str] = (),
    world: Sequence[str] = (),
    packages: Mapping[int, Mapping[str, str]] | None = None,
    preload: Mapping[int, Mapping[str, int]] | None = None,
    where: str = ".",
    mpirun: str | None = MPIRUN,
) -> list[str]:
    """Run the doctor on some ranks; return what it finds.

    Shell commands: ``of_rank`` for each of some, ``all_ranks`` for each, ``world`` once before.
    ``packages``: files to put in front of a rank's Python path. ``preload``: variables of
    `slow_calls.c`. ``where``: the directory that files are tried in.
    """
    parts: list[str] = []
    for rank in range(ranks):
        before = [*all_ranks, *(of_rank or {}).get(rank, ())]
        if files := (packages or {}).get(rank):
            before.append(f"export PYTHONPATH={_written(directory / f'path.{rank}', files)}:{ROOT}")
        if variables := (preload or {}).get(rank):
            before.append(preloaded(directory, **variables))
        script = "; ".join([*before, 'exec "$@"'])
        own = ["unshare", "-u", "sh", "-c", script, "sh"]
        command = [sys.executable, "-m", "hpcdist", "doctor", "--json", "--directory", where]
        parts += [":"] * bool(parts) + ["-n", "1", *own, *command]
    script = "; ".join([WORLD, *world, 'exec "$@"'])
    return _findings(directory, ["unshare", "-m", "sh", "-c", script, "sh", str(mpirun), *parts])


def _findings(
    directory: Path, command: Sequence[str], env: Mapping[str, str] | None = None
) -> list[str]:
    ran = subprocess.run(
        command,
        cwd=directory,
        env=clean_environment() | {"OMP_NUM_THREADS": "1"} if env is None else dict(env),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if "{" not in ran.stdout:
        raise AssertionError(f"the doctor said nothing: {ran}")
    return _told(ran.stdout)


def _told(out: str) -> list[str]:
    found, _ = json.JSONDecoder().raw_decode(out[out.index("{") :])
    return [f"{f['check']}: {f['text']}" for f in found["findings"] if f["level"] != "OK"]


def _written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def between_hosts(directory: Path, slow: int | None = None) -> list[str]:
    """Run the doctor on four hosts of one rank; the link of one may be 20 times slower.

    They share the machine's /dev/shm, where other jobs may have left files.
    """
    stale_files.remove(stale_files.find())
    with hosts.hosts(4, slow={} if slow is None else {slow: "50mbit"}) as up:
        words = ["-m", "hpcdist", "doctor", "--json", "--directory", str(directory)]
        return _told(up.run([1] * 4, *words, codes=(0, 1, 2)))


def under_slurm(directory: Path, mpi: str) -> list[str]:
    """Run the doctor as two ranks of a step of Slurm's."""
    cluster = lab.Lab(directory / "slurm", nodes=2)
    cluster.start()
    try:
        words = ["srun", "-N2", "-n2", f"--mpi={mpi}", sys.executable, "-m", "hpcdist", "doctor"]
        env = cluster.environment | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return _findings(directory, [*words, "--json", "--directory", str(directory)], env)
    finally:
        cluster.stop()


# -- what is needed --------------------------------------------------------------------------------
@cache
def no_namespaces() -> str:
    """Return why no mount namespace can be made, or an empty string."""
    if MPIRUN is None or os.geteuid() or shutil.which("unshare") is None:
        return "needs mpirun, root and unshare"
    command = ["unshare", "-m", "-u", "sh", "-c", WORLD]
    done = subprocess.run(command, capture_output=True, check=False)
    return "" if done.returncode == 0 else "root may not make mount namespaces"


def no_compiler() -> str:
    return no_namespaces() or ("" if shutil.which("cc") else "needs cc")


def no_other_mpi() -> str:
    return no_namespaces() or ("" if OTHER_MPIRUN.exists() else "needs make env MPI=mpich")


def _case(
    name: str, expects: str, missing: Callable[[], str] = no_namespaces, **trouble: object
) -> Case:
    return Case(name, "doctor", expects, partial(doctor, **trouble), missing)  # type: ignore[arg-type]


TINY = "mount -o remount,size={}m /dev/shm"
ON_H2 = {1: [AWAY]}
CASES = [
    _case("few open files", "limits: .*ranks 0, 1 may open 256", all_ranks=["ulimit -n 256"]),
    _case("few open files of rank 1", "limits: .*rank 1 may", of_rank={1: ["ulimit -n 256"]}),
    _case(
        "all ranks bound to one core",
        "cores: .*2 ranks share 1 of",
        all_ranks=["taskset -pc 0 $$ >/dev/null"],
    ),
    _case("five ranks on two cores", "cores: .*5 ranks share 2 of", ranks=5),
    _case(
        "threads of BLAS, all ranks",
        "threads of linear algebra: .*2 ranks start [0-9]+ threads for",
        all_ranks=["export OMP_NUM_THREADS=8"],
    ),
    _case(
        "threads of BLAS, rank 1",
        "threads of linear algebra: .*rank 1 [0-9]+ of them",
        of_rank={1: ["export OMP_NUM_THREADS=8"]},
    ),
    _case("a tiny /dev/shm", "shared memory: .*has 4[0-9] MiB free", world=[TINY.format(48)]),
    _case(
        "a full /dev/shm",
        "shared memory: .*has [34][0-9] MiB free",
        world=[TINY.format(140), "head -c 104857600 /dev/zero > /dev/shm/of-others"],
    ),
    _case(
        "stale files of Open MPI",
        "stale files: .*1 file in",
        world=[left_behind("sm_segment.n1.0.4d2.0")],
    ),
    _case(
        "stale files of UCX",
        "stale files: .*2 files in",
        world=[left_behind(f"ucx_shm_posix_{k}") for k in "ab"],
    ),
    _case(
        "another hpcdist on rank 1",
        r"versions: hpcdist differs: .*0\.0\.9 \(rank 1\)",
        packages={1: other_version("hpcdist")},
    ),
    _case(
        "another numpy on rank 0",
        r"versions: numpy differs: .*0\.0\.9 \(rank 0\)",
        packages={0: other_version("numpy")},
    ),
    _case(
        "another mpi4py on rank 1",
        r"versions: mpi4py differs: .*0\.0\.9 \(rank 1\)",
        packages={1: other_version("mpi4py")},
    ),
    _case("no HDF5 on rank 1", r"HDF5: .*libhdf5.*\(rank 1\)", packages={1: NO_HDF5}),
    _case("no HDF5 on any", r"HDF5: .*libhdf5.*\(ranks 0, 1\)", packages={0: NO_HDF5, 1: NO_HDF5}),
    _case("no MPI library", "launcher: .*cannot load an MPI", packages={0: NO_MPI, 1: NO_MPI}),
    _case(
        "mpirun of another MPI",
        "launcher: 2 processes were started, but each has an MPI world of one",
        no_other_mpi,
        mpirun=str(OTHER_MPIRUN),
    ),
    Case(
        "srun without PMI",
        "doctor",
        "launcher: 2 processes were started, but each has an MPI world of one",
        partial(under_slurm, mpi="none"),
        lab.missing,
    ),
    _case(
        "one thread may call MPI",
        "thread level: .*ranks 0, 1",
        all_ranks=["export MPI4PY_RC_THREAD_LEVEL=serialized"],
    ),
    _case(
        "one thread may call MPI on rank 1",
        "thread level: .*rank 1$",
        of_rank={1: ["export MPI4PY_RC_THREAD_LEVEL=funneled"]},
    ),
    _case(
        "no such directory on rank 1",
        r"files: .*written to /scratch: No such.*\(rank 1\)",
        world=["mkdir scratch"],
        of_rank={1: ["cd /"]},
        where="scratch",
    ),
    _case(
        "a directory that cannot be written to",
        "files: .*Read-only file system",
        world=["mkdir scratch", "mount -t tmpfs -o ro none scratch"],
        where="scratch",
    ),
    _case(
        "a full disk",
        "files: .*No space left",
        world=["mkdir scratch", "mount -t tmpfs -o size=4m none scratch"],
        where="scratch",
    ),
    _case(
        "files that cannot be locked",
        r"files: .*cannot be locked: No locks available",
        no_compiler,
        preload={0: {"NO_LOCKS": 1}, 1: {"NO_LOCKS": 1}},
    ),
    _case(
        "a slow disk",
        r"files: .* writes [\d.]+ MiB/s here \(ranks 0, 1\)",
        no_compiler,
        preload={0: {"SLOW_FSYNC_MS": 2000}, 1: {"SLOW_FSYNC_MS": 2000}},
    ),
    _case(
        "a slow disk of one host",
        r"files: h2 writes [\d.]+ MiB/s here \(rank 1\)",
        no_compiler,
        of_rank=ON_H2,
        preload={1: {"SLOW_FSYNC_MS": 2000}},
    ),
    _case(
        "a clock that is ahead",
        r"clocks: the wall clock of h2 is \+(29|30)",
        no_compiler,
        of_rank=ON_H2,
        preload={1: {"CLOCK_SKEW_S": 30}},
    ),
    _case(
        "a clock that is behind",
        r"clocks: the wall clock of h2 is -[45]",
        no_compiler,
        of_rank=ON_H2,
        preload={1: {"CLOCK_SKEW_S": -5}},
    ),
    *(
        Case(
            f"a slow link of host {k}",
            "doctor",
            rf"links: all 3 links of h{k} are slow",
            partial(between_hosts, slow=k),
            hosts.missing,
        )
        for k in (2, 4)
    ),
    _case("a healthy machine, one rank", "", ranks=1),
    _case("a healthy machine", ""),
    _case("a healthy machine, twice", ""),
    _case("two healthy hosts", "", of_rank=ON_H2),
    _case("a machine with files of living ranks", "", world=["exec 9>/dev/shm/sm_segment.n1.0.1"]),
    Case("four healthy hosts", "doctor", "", between_hosts, hosts.missing),
]

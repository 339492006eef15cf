"""Whole jobs, started as users start them: ``mpirun -n N python -m hpcdist script``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hpcdist.comm.process_manager import launched_size
from hpcdist.launch.processes import lives
from hpcdist.launch.stacks import stacks_of
from tests.scripts import read_script

ROOT = Path(__file__).parents[2]
BESIDE_PYTHON = Path(sys.executable).parent / "mpirun"
MPIRUN = str(BESIDE_PYTHON) if BESIDE_PYTHON.exists() else shutil.which("mpirun")

needs_mpirun = pytest.mark.skipif(
    MPIRUN is None or launched_size() is not None,
    reason="starts mpirun itself: needs one, and a process that mpirun has not started",
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: pip install .[torch]",
)

# From the moment when something must come of it, on a machine that is busy with other things too;
# shorter than the deadline of ranks that wait in vain.
LIMIT_S = 100
START_S = 300  # of a job in which something happens by itself

# Trains a linear model on data of its own; writes its process id and how far it is.
TRAIN = read_script("train")


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """The errors that hpcdist itself printed, first lines only."""
        lines = self.err.replace("\0", "").splitlines()  # Open MPI ends its own with a NUL
        return [line for line in lines if line.startswith("hpcdist: ")]


class Job:
    """A running job, in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        script: str,
        *options: str,
        ranks: int = 4,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        mpirun: bool = True,
        tolerant: bool = False,  # of deaths; needs Open MPI 5
    ) -> None:
        self.directory = directory
        (directory / "train.py").write_text(script)
        start = [MPIRUN, "-n", str(ranks)] if mpirun else []
        start[1:1] = ["--with-ft", "ulfm"] if tolerant else []
        command = [*start, sys.executable, "-m", "hpcdist", *options, "train.py", *args]
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_environment() | dict(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid_of_mpirun(self) -> int:
        return self._process.pid

    def pid(self, rank: int) -> int:
        """Return the process id that the script has written on a rank."""
        return int((self.directory / f"pid.{rank}").read_text())

    def step(self, rank: int) -> int:
        """Return the last step that the script has noted on a rank, -1 before the first."""
        file = self.directory / f"step.{rank}"
        return int((file.read_text() if file.exists() else "") or -1)

    def await_step(self, rank: int, step: int) -> None:
        """Wait until a rank's script has noted a step, or a later one."""
        self.wait_until(lambda: self.step(rank) >= step, f"step {step} of rank {rank}")

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait until something has happened while the job runs."""
        end = time.monotonic() + LIMIT_S
        over = False
        while not happened():
            if over:
                pytest.fail(f"the job ended before {what}: {self._process.communicate()}")
            if time.monotonic() > end:
                self._process.kill()
                pytest.fail(f"{what} has not come within {LIMIT_S} s")
            time.sleep(0.01)
            over = self._process.poll() is not None

    def end_after_death(self, within_s: float = LIMIT_S) -> Ended:
        """Wait for a death (`dies.py` notes it), and then for the end of the job as `end` does.

        What comes before is the start: it takes as long as the machine is busy.
        """
        late = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < late:
            if any(self.directory.glob("died.*")):
                break
            time.sleep(0.05)
        return self.end(within_s)

    def end(self, within_s: float = LIMIT_S) -> Ended:
        """Wait for the end of the job; fail if it does not come, or leaves a process behind."""
        until = time.monotonic() + within_s
        try:
            out, err = self._process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            stuck = self._stacks()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self._process.kill()
            ended = self._process.communicate()
            pytest.fail(f"the job has not ended within {within_s} s: {ended}\n{stuck}")
        pids = [int(file.read_text()) for file in self.directory.glob("pid.*")]
        while any(map(lives, pids)) and time.monotonic() < until:
            time.sleep(0.05)
        left = [pid for pid in pids if lives(pid)]
        assert not left, f"processes {left} of {pids} were left behind"
        if "it is stuck, and is killed" in err:  # by us, and its exit code is lost: what came of it
            pytest.xfail("Open MPI's launcher did not end when all ranks had")
        return Ended(self._process.returncode, out, err)

    def _stacks(self) -> str:
        """Return where the ranks that live are in their Python code."""
        pids = {file.suffix: int(file.read_text()) for file in self.directory.glob("pid.*")}
        return "\n".join(f"{k} {stacks_of(pid)}" for k, pid in pids.items() if lives(pid))


@cache
def _version() -> str:
    ran = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=True)
    return ran.stdout


def kills_survivors() -> bool:
    """Tell whether mpirun is MPICH's, which kills all ranks at once when one has died."""
    return "HYDRA" in _version()


def can_be_tolerant() -> bool:
    """Tell whether mpirun has --with-ft, so that a job can go on after a death."""
    return "(Open MPI) 5" in _version()


def clean_environment() -> dict[str, str]:
    """Return the environment without what another launcher, or another job, has put there.

    PYTHONUNBUFFERED goes, too: Python then writes a line in pieces, and MPICH's launcher mixes
    those of its ranks.
    """
    foreign = ("OMPI_", "PMI", "PMIX", "PRTE_", "SLURM_", "PADDLE_", "HPCDIST_", "TRAINING_ROLE")
    foreign += ("PYTHONUNBUFFERED",)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }

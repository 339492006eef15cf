"""Troubles of jobs, and what the report says of them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcdist.launch import job_report
from tests.fault.trouble_machines import preloaded
from tests.support.jobs import Job, clean_environment

STOPPED_S, RUNS_S = 0.03, 0.02  # of a process that others take the core from

SCRIPT = (Path(__file__).parent / "trouble_script.py").read_text()


def report(
    directory: Path,
    *,
    trainers: int = 2,
    servers: int = 0,
    options: str = "",
    fails: bool = False,
    stopped: int | None = None,
    slow_disk: bool = False,
    small_disk: bool = False,
    locked: bool = False,
    env: dict[str, str] | None = None,
    **asked: object,
) -> list[str]:
    """Run a job with what is asked of its script; return what the report says of it.

    ``stopped``: a rank that other processes take the core from. A job that ``fails`` has logs
    instead of a trace.
    """
    ranks = trainers + servers
    words = options.split() + (["--pservers", str(servers)] if servers else [])
    words += ["--quiet", "--log-dir", "told"] if fails else ["--quiet", "--trace", "told"]
    variables = {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"} | (env or {})
    if slow_disk:
        _, _, told = preloaded(directory, SLOW_FSYNC_MS=100).partition(" ")
        variables |= dict(word.split("=", 1) for word in told.split())
    with contextlib.ExitStack() as stack:
        if small_disk:
            stack.enter_context(mounted(directory / "saved", 2))
        if locked:
            stack.enter_context(saving(directory / "saved"))
        args = [json.dumps(asked)]
        alone = ranks == 1
        job = Job(
            directory, SCRIPT, *words, ranks=ranks, args=args, env=variables, mpirun=not alone
        )
        if stopped is not None:
            stack.enter_context(hindered(job, stopped))
        ended = job.end()
    assert (ended.code != 0) == fails, ended
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        job_report.main([str(directory / "told"), "-o", str(directory / "job.html")])
    return [line[2:] for line in said.getvalue().splitlines()[1:]]


@contextmanager
def hindered(job: Job, rank: int) -> Iterator[None]:
    """Stop a rank again and again, as if it had to leave its core to others."""
    over = threading.Event()

    def hinder() -> None:
        while not over.is_set() and job.step(0) < 5:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            while not over.is_set():
                os.kill(job.pid(rank), signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(job.pid(rank), signal.SIGCONT)
                over.wait(RUNS_S)

    thread = threading.Thread(target=hinder)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def mounted(directory: Path, mib: int) -> Iterator[None]:
    """Have a file system of so many MiB in a directory."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(directory)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextmanager
def saving(directory: Path) -> Iterator[None]:
    """Have another process save into a directory, as a job does."""
    directory.mkdir()
    script = (
        "import sys; from pathlib import Path; from hpcdist.checkpoint import lock; "
        "lock.take(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.communicate()

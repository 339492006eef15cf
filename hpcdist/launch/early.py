"""Ends a job of which a rank dies before MPI has started, where mpirun does not.

Under ``mpirun --with-ft ulfm`` the others would wait inside MPI_Init for ever, and hold Python's
lock, so that no thread of theirs could see it. A child process can. The first two ranks of a host
have one each, for one of them may be the one that dies; it lives until the ranks know each other.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hpcdist.comm import ulfm
from hpcdist.launch.abort import lives

LOOK_S = 0.1
GATHERING_S = 5.0  # how long the ranks of a host may take to show up
_JOB = "PMIX_NAMESPACE"
_LAUNCHER = re.compile(r"prterun-(.+)-(\d+)@\d+")


def watch(environ: Mapping[str, str]) -> Callable[[], None]:
    """Watch the ranks of this host from now on; return what ends that.

    Call it before anything starts a thread.
    """
    job, count = environ.get(_JOB, ""), environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    first = environ.get("OMPI_COMM_WORLD_LOCAL_RANK") in ("0", "1")
    here = ulfm.asked_for(environ) and first and count.isdigit()
    if not (here and job and Path("/proc/self").exists()):
        return lambda: None
    launcher = _launcher(job, environ.get("PMIX_HOSTNAME", ""))
    child = os.fork()
    if child:
        return lambda: _end(child)
    try:
        dead = _await_death(job, int(count), environ.get("OMPI_COMM_WORLD_SIZE", ""))
        text = f"hpcdist: {dead} died before the job had started; the job ends\n"
        # The second watcher leaves the word to the first.
        if environ["OMPI_COMM_WORLD_LOCAL_RANK"] == "1":
            time.sleep(5 * LOOK_S)
        if lives(launcher):
            sys.stderr.write(text)
            sys.stderr.flush()
            os.kill(launcher, signal.SIGTERM)
    finally:
        os._exit(0)


def _launcher(job: str, host: str) -> int:
    """Return the process of this host whose end is the end of the job: mpirun, or its daemon."""
    match = _LAUNCHER.fullmatch(job)
    if match is not None and match[1] == host and lives(int(match[2])):
        return int(match[2])
    return os.getppid()


def _end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _await_death(job: str, count: int, size: str) -> str:
    """Return what the first rank of this host that dies, or was never there, is called."""
    end = time.monotonic() + GATHERING_S
    own = os.getpid()
    ranks = _ranks_here(job)
    while len(ranks) < count and time.monotonic() < end:
        time.sleep(LOOK_S)
        ranks |= _ranks_here(job)
    if len(ranks) < count and size == str(count):
        return "rank " + ", ".join(str(k) for k in range(count) if str(k) not in ranks)
    if len(ranks) < count:
        return f"a rank other than {', '.join(sorted(ranks))}"
    while True:
        for rank, pids in ranks.items():
            # A watcher looks like its rank, but is none.
            if not any(pid != own and lives(pid) for pid in pids):
                return f"rank {rank}"
        time.sleep(LOOK_S)


def _ranks_here(job: str) -> dict[str, list[int]]:
    """Return the processes of each rank of a job on this host; a wrapper counts as its rank."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            pairs = dict(
                line.partition("=")[::2]
                for line in (entry / "environ").read_text(errors="replace").split("\0")
            )
            if pairs.get(_JOB) == job and "PMIX_RANK" in pairs:
                found.setdefault(pairs["PMIX_RANK"], []).append(int(entry.name))
    return found

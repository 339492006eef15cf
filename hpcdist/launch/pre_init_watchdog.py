"""Ends a job when a rank dies before MPI_Init has returned and mpirun does not end it.

Under ``mpirun --with-ft ulfm`` the other ranks would wait inside MPI_Init forever. They hold the
GIL there, so no thread of theirs can act, but a child process can. The first two ranks of a host
start one each, as one of them may be the rank that dies; it ends when all ranks have met.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpcdist.comm import process_manager
from hpcdist.comm.process_manager import NAMESPACE, PMIX_RANK, LocalRanks
from hpcdist.launch.processes import lives

LOOK_S = 0.1
GATHERING_S = 5.0  # how long the ranks of a host may take to show up
_LAUNCHER = re.compile(r"prterun-(.+)-(\d+)@\d+")


def watch() -> Callable[[], None]:
    """Watch the ranks of this host from now on; return what ends that.

    Call it before anything starts a thread.
    """
    me = process_manager.local_ranks() if process_manager.survival_requested() else None
    if me is None or me.rank > 1 or not Path("/proc/self").exists():
        return lambda: None
    launcher = _launcher(me)
    child = os.fork()
    if child:
        return lambda: _end(child)
    try:
        dead = _await_death(me)
        text = f"hpcdist: {dead} died before the job had started; the job ends\n"
        # Of two watchers the first one reports.
        if me.rank == 1:
            time.sleep(5 * LOOK_S)
        if lives(launcher):
            sys.stderr.write(text)
            sys.stderr.flush()
            os.kill(launcher, signal.SIGTERM)
    finally:
        os._exit(0)


def _launcher(me: LocalRanks) -> int:
    """Return the process of this host whose end is the end of the job: mpirun, or its daemon."""
    match = _LAUNCHER.fullmatch(me.namespace)
    if match is not None and match[1] == me.host and lives(int(match[2])):
        return int(match[2])
    return os.getppid()


def _end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _await_death(me: LocalRanks) -> str:
    """Wait until a rank of this host dies, or does not show up; return its name."""
    end = time.monotonic() + GATHERING_S
    own_pid = os.getpid()
    ranks = _ranks_here(me.namespace)
    while len(ranks) < me.count and time.monotonic() < end:
        time.sleep(LOOK_S)
        ranks |= _ranks_here(me.namespace)
    if len(ranks) < me.count and me.size == me.count:
        return "rank " + ", ".join(str(k) for k in range(me.count) if str(k) not in ranks)
    if len(ranks) < me.count:
        return f"a rank other than {', '.join(sorted(ranks))}"
    while True:
        for rank, pids in ranks.items():
            # A watcher looks like its rank, but is none.
            if not any(pid != own_pid and lives(pid) for pid in pids):
                return f"rank {rank}"
        time.sleep(LOOK_S)


def _ranks_here(namespace: str) -> dict[str, list[int]]:
    """Return the processes of each rank of a job on this host; a wrapper counts as its rank."""
    ranks: dict[str, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            pairs = dict(
                line.partition("=")[::2]
                for line in (entry / "environ").read_text(errors="replace").split("\0")
            )
            if pairs.get(NAMESPACE) == namespace and PMIX_RANK in pairs:
                ranks.setdefault(pairs[PMIX_RANK], []).append(int(entry.name))
    return ranks

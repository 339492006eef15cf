"""Kills a launcher that hangs after its ranks on this host have ended, or would return 0.

Open MPI 5's ``mpirun --with-ft ulfm`` sometimes stops forever in a lock that it has already freed
(about once in a thousand jobs in which ranks die): the job would then never end. And it returns 0
for a job all of whose ranks were killed, or crashed within MPI. A small process beside the ranks
kills that launcher.

The process that watches a host (`host_watcher`) imports this file: it needs the standard library
only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcdist.launch import facts

LAUNCHERS = ("prterun", "prted", "mpirun")  # on the first host; on others; older ones
GRACE_S = 10.0  # how long a launcher may take to end when its ranks have: it tidies up
LAST_OUTPUT_S = 2.0  # how long it may take to pass on what ranks that died have written


def launcher_of(pid: int) -> int | None:
    """Return the process that has started ``pid``, directly or not, if it is Open MPI's."""
    with contextlib.suppress(OSError):
        while pid > 1:
            name, _, fields = (
                Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            )
            if name in LAUNCHERS:
                return pid
            pid = int(fields.split()[1])
    return None


def wrote_nothing(ranks: Iterable[int], board: int, words: Sequence[int]) -> bool:
    """Return whether none of these processes has noted one of these facts."""
    spoken = {pid for pid, fact, _ in facts.records(board) if fact in words}
    return spoken.isdisjoint(ranks)


def end_launcher(
    launcher: int,
    ranks: Sequence[int],
    grace_s: float,
    board: int,
    words: Sequence[int],
    outputs: Sequence[int],
) -> bool:
    """Wait until all ranks have ended, then for the launcher; kill it if it stays. Blocking.

    It passes on ``outputs``, the last of them to its standard error, and waits for their ends.
    Where ``words`` says what ranks note in ``board``, and none of them has, it is killed as soon as
    it has had time for that; else they are closed.
    Returns whether it was killed. Linux 5.3 or newer; on an older one nothing is watched.
    """
    with contextlib.suppress(OSError):
        ends = os.pidfd_open(launcher)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                waits = os.pidfd_open(rank)
                select.select([waits, ends], [], [])
                os.close(waits)
        if words and wrote_nothing(ranks, board, words):
            with contextlib.suppress(OSError):  # where the rank had none, or it is full
                text = "hpcdist: all ranks died: killed, out of memory or crashed; the job failed"
                os.set_blocking(outputs[-1], False)
                os.write(outputs[-1], f"{text}\n".encode())
            select.select([ends], [], [], min(LAST_OUTPUT_S, grace_s))
        else:
            for output in outputs:
                with contextlib.suppress(OSError):  # where the rank had none
                    os.close(output)
            if select.select([ends], [], [], grace_s)[0]:
                return False
            with (
                contextlib.suppress(OSError),  # where its standard error is gone
                open(f"/proc/{launcher}/fd/2", "a") as stderr,  # "w" would empty a file
            ):
                stderr.write(
                    f"hpcdist: the launcher (pid {launcher}) has not ended {grace_s:g} s after the"
                    " last rank of this host: it is stuck, and is killed\n"
                )
        signal.pidfd_send_signal(ends, signal.SIGKILL)
        return True
    return False

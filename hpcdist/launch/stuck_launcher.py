"""Ends a launcher that does not end although all its ranks on this host have.

Open MPI 5's ``mpirun --with-ft ulfm`` sometimes stops for ever in a lock that it has already freed
(about once in a thousand jobs in which ranks die): the job would then never end. A small process
waits beside such a job, without using the processor, and kills that launcher.

This file is also the program which that process runs, so it imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

LAUNCHERS = ("prterun", "prted", "mpirun")  # on the first host; on others; older ones
GRACE_S = 10.0  # how long a launcher may take to end when its ranks have: it tidies up


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


def watch_launcher(pids: Iterable[int]) -> subprocess.Popen[bytes] | None:
    """Start the process that waits for these ranks of this host, and then for their launcher."""
    launcher = launcher_of(os.getppid())
    if launcher is None:
        return None
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(GRACE_S), str(launcher), *map(str, pids)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a launcher waits for the ends of the pipes that it has given
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_launcher(launcher: int, ranks: Sequence[int], grace_s: float) -> bool:
    """Wait until all ranks have ended, then for the launcher; kill it if it stays. Blocking.

    Returns whether it was killed. Linux 5.3 or newer; on an older one nothing is watched.
    """
    with contextlib.suppress(OSError):
        ends = os.pidfd_open(launcher)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                waits = os.pidfd_open(rank)
                select.select([waits, ends], [], [])
                os.close(waits)
        if select.select([ends], [], [], grace_s)[0]:
            return False
        text = (
            f"hpcdist: the launcher (pid {launcher}) has not ended {grace_s:g} s after the last"
            " rank of this host: it is stuck, and is killed\n"
        )
        with contextlib.suppress(OSError):  # where its standard error is gone
            Path(f"/proc/{launcher}/fd/2").write_text(text)
        signal.pidfd_send_signal(ends, signal.SIGKILL)
        return True
    return False


if __name__ == "__main__":
    end_launcher(int(sys.argv[2]), [int(pid) for pid in sys.argv[3:]], float(sys.argv[1]))

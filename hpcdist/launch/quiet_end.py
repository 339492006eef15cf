"""Ends a job so that the message of the rank that failed stands last.

MPI_Abort prints what it is, and Open MPI's mpirun explains the end of a job in which a rank called
it: about fifteen lines behind the one message that says what happened.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.comm import pmix
from hpcdist.comm.process_manager import launched_here, launched_rank, launched_size
from hpcdist.launch.processes import children
from hpcdist.launch.stuck_launcher import launcher_of

if TYPE_CHECKING:  # also used where other packages cannot be imported
    from hpcdist.comm.base import Transport
    from hpcdist.launch.report import Peer

# Open MPI 5's mpirun. Not prted, its daemon on other hosts, nor older ones: these may never answer.
KILLER = "prterun"
# How long mpirun may take to read the last of those that have ended: what watches the host holds
# their pipes for a while (`held_outputs`).
SETTLES_S = 0.5
ANSWERS_S = 30.0  # that mpirun may take to answer whoever asks for the end of all
REFUSAL_S = 20.0  # that rank 0 may take to say why no rank starts


def end_job(
    transport: Transport, neighbours: Sequence[Peer], size: int, code: int, patience_s: float
) -> None:
    """End the other ranks of the job; the caller then ends this process with the same ``code``.

    ``neighbours`` are the other ranks of this host, ``size`` counts the ranks of the job. Where all
    are here, mpirun kills the others, and this rank leaves last and in order: mpirun then returns
    its code and has nothing to explain. If some outlive ``patience_s``, mpirun ends them as usual.
    """
    # Also those that have ended: mpirun must not take their deaths for the reason.
    others = [peer.rank for peer in neighbours]
    if len(others) + 1 == size and mpirun_here() and pmix.kill(others):
        late = time.monotonic() + patience_s
        while any(map(_is_there, neighbours)) and time.monotonic() < late:
            time.sleep(patience_s / 500)
        time.sleep(SETTLES_S)
        pmix.finalize()
        return
    # No answer comes where mpirun ends at this moment: then this process must not wait for ever.
    unanswered = threading.Timer(ANSWERS_S, os._exit, (code,))
    unanswered.daemon = True
    unanswered.start()
    if not pmix.abort(code):
        # MPICH's MPI_Abort writes to this process's stderr, in which all has been said.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        transport.abort(code)


def let_rank_0_speak() -> None:
    """Wait on the other ranks: launchers end all of them when the first one has failed."""
    if launched_rank() > 0:
        time.sleep(REFUSAL_S)


def end_refused(patience_s: float) -> None:
    """Wait until rank 0 has the last word of a job that no rank starts; the caller then ends.

    As in `end_job`, where all ranks are here, mpirun has nothing to explain. Also before MPI's
    begin. ``patience_s``: how long mpirun may take to end the others.
    """
    let_rank_0_speak()
    launcher = mpirun_here()
    if launcher is None or not launched_here() or not pmix.begin(launcher):
        return
    others = [*range(1, launched_size() or 1)]
    if others and pmix.kill(others):
        late = time.monotonic() + patience_s
        while len(children(launcher)) > 1 and time.monotonic() < late:
            time.sleep(patience_s / 500)
        time.sleep(SETTLES_S)
    pmix.finalize()


def _is_there(peer: Peer) -> bool:
    """Return whether a process lives, or mpirun has not yet taken note of its end."""
    return Path(f"/proc/{peer.pid}").exists()


def mpirun_here() -> int | None:
    """Return the process of the mpirun that has started this one, if it is Open MPI 5's."""
    launcher = launcher_of(os.getppid())
    if launcher is None:
        return None
    try:
        return launcher if Path(f"/proc/{launcher}/comm").read_text().strip() == KILLER else None
    except OSError:  # it has just ended
        return None

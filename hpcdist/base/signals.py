"""Blocks the signal that warns a job to stop soon, from the first import on.

Nothing that takes time may be imported here: until this module has run, the warning would end the
process.
"""

from __future__ import annotations

import signal

from hpcdist.base.hidden import STARTS_SCRIPT

WARNING = signal.SIGUSR1  # what `#SBATCH --signal=USR1@120` sends to every rank


def hold_warning() -> None:
    """Block the warning signal until it is unblocked: its default action ends the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {WARNING})


def forget_children() -> None:
    """Ignore the ends of child processes from now on. For the main thread.

    torch's handler raises, wherever that thread is, when a worker of a DataLoader has been killed:
    into what reports the script's failure, too.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


if STARTS_SCRIPT:
    hold_warning()

"""SIGTERM: which thread handles it, and which exit code follows."""

from __future__ import annotations

import os
import signal
from types import FrameType

from hpcdist.checkpoint.preemption import AGAIN, warned

TERMINATED = 128 + signal.SIGTERM


def code_when_ended() -> int:
    """Return the code of a rank that another one, or the launcher, has ended.

    srun takes the largest code of all ranks: it must not hide that the job was told to stop.
    """
    return AGAIN if warned() else TERMINATED


def leave_it_to_the_thread(signum: int, frame: FrameType | None) -> None:
    """Handle a signal by not dying of it: the watching thread was woken too."""


def pipe_of_signals() -> int:
    """Open a pipe that SIGTERM and other signals are written to; return its end to read from."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGTERM, leave_it_to_the_thread)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=forget_termination)
    return read_end


def sigterm_is_ours() -> bool:
    """Return whether SIGTERM still means what it meant: a script may have taken it over."""
    return signal.getsignal(signal.SIGTERM) is leave_it_to_the_thread


def forget_termination() -> None:
    """Make a forked child an ordinary process: the pipe and the thread are its parent's."""
    signal.set_wakeup_fd(-1)
    if sigterm_is_ours():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

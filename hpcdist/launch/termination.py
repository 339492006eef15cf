"""SIGTERM: which thread handles it, which exit code follows, and which ranks are alive."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
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


def sigterm_is_ours() -> bool:
    """Return whether SIGTERM still means what it meant: a script may have taken it over."""
    return signal.getsignal(signal.SIGTERM) is leave_it_to_the_thread


def forget_termination() -> None:
    """Make a forked child an ordinary process: the pipe and the thread are its parent's."""
    signal.set_wakeup_fd(-1)
    if sigterm_is_ours():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def lives(pid: int) -> bool:
    """Return whether a process of this host exists and is not a zombie."""
    return _state(pid) not in "ZX"


def is_stopped(pid: int) -> bool:
    """Return whether a process of this host is stopped (SIGSTOP): it handles no signal."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """Return the state as ps(1) prints it; "X", dead, if there is no such process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # The state follows the command's name, which may itself hold parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"

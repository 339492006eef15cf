"""The warning that a job must stop soon, which batch systems send as a signal."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from hpcdist.base.signals import WARNING

AGAIN = 75  # EX_TEMPFAIL: stopped as asked, with a checkpoint; to be started again

told = threading.Event()


def listen() -> None:
    """Install a handler that takes the signal as a warning; a script may replace it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(WARNING, _tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {WARNING})


def warned() -> bool:
    """Return whether this process has been warned."""
    return told.is_set()


def _tell(signum: int, frame: FrameType | None) -> None:
    told.set()

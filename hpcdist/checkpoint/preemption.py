"""The warning that a job must stop soon, which batch systems send as a signal."""

from __future__ import annotations

import signal
import threading
from types import FrameType

WARNING = signal.SIGUSR1  # what `#SBATCH --signal=USR1@120` sends to every rank
AGAIN = 75  # EX_TEMPFAIL: stopped as asked, with a checkpoint; to be started again

_told = threading.Event()


def listen() -> None:
    """Let the signal be a warning, not the end of this process; a script may take it over."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(WARNING, _tell)


def warned() -> bool:
    """Tell whether this process has been warned."""
    return _told.is_set()


def _tell(signum: int, frame: FrameType | None) -> None:
    _told.set()

"""Writing beside training: one write at a time, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("hpcdist.checkpoint")


class Background:
    """Runs one piece of work at a time in a thread; its error is raised when it is waited for.

    The interpreter does not end before the thread has.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Wait for the work before, raise its error, and start this one."""
        self.wait()

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error
                # Perhaps nobody waits for it any more: then this is the only word of it.
                logger.error("a checkpoint could not be saved: %s", error)

        self._thread = threading.Thread(target=guarded, name="hpcdist-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the work, and raise the error that it ended with."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def busy(self) -> bool:
        """Whether the work goes on."""
        return self._thread is not None and self._thread.is_alive()

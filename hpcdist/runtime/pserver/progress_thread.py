"""A thread that sends gradients and receives parameters while the trainer computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hpcdist.comm.progress import waits_for

IMPATIENT_S = 50e-6  # between looks while the trainer waits for an answer
PATIENT_S = 1e-3  # while it computes: a look costs it a few microseconds


class ProgressThread:
    """Calls ``advance`` again and again while there is something to send or to receive.

    ``turn`` protects what the thread and the trainer share; ``advance`` is called with it held, and
    tells whether anything was done. Its exceptions reach the trainer at its next `hand_over` or
    `end`. The thread does not wait inside ``advance``, so the trainer never waits for it for long.
    """

    def __init__(
        self,
        turn: threading.Condition,
        *,
        idle: Callable[[], bool],
        advance: Callable[[], bool],
    ) -> None:
        self._turn = turn
        self._idle = idle
        self._advance = advance
        self._failure: BaseException | None = None
        self._awaited = False  # the trainer waits
        self._ending = False
        # A daemon: a script that fails must not wait for it.
        self._thread = threading.Thread(target=self._work, name="hpcdist-receiver", daemon=True)
        self._thread.start()

    def hand_over(self, ended: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Wake the thread and wait until ``ended()``, with ``turn`` held."""
        self._turn.notify_all()
        if not ended() and self._failure is None:
            self._awaited = True
            with waits_for(describe):
                self._turn.wait_for(lambda: self._failure is not None or ended())
            self._awaited = False
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop the thread, with ``turn`` not held; what it had begun is left as it stands."""
        with self._turn:
            self._ending = True
            self._turn.notify_all()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            while True:
                with self._turn:
                    self._turn.wait_for(lambda: self._ending or not self._idle())
                    if self._ending:
                        return
                    if self._advance():
                        self._turn.notify_all()
                        continue
                    pause_s = IMPATIENT_S if self._awaited else PATIENT_S
                time.sleep(pause_s)
        except BaseException as error:  # the trainer raises it
            with self._turn:
                self._failure = error
                self._turn.notify_all()

"""One thread of a rank takes the steps in which ranks exchange values; a second one is refused."""

from __future__ import annotations

import threading
from threading import Thread, get_ident

from hpcdist.base.errors import HpcdistError


class StepThread:
    """The thread of a rank that runs what other ranks take part in.

    The ranks' steps meet by their order. The order of two threads is each rank's own, so what they
    exchange could be of two different steps. A thread may follow one that has ended, or the main
    thread, which often starts the one that trains; whoever comes between them is refused, and from
    then on the other, too: half of the steps is not what the script asks for.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._thread: Thread | None = None
        self._ident: int | None = None
        self._refusal = ""

    def enter(self) -> None:
        """Before this thread exchanges anything. Raises HpcdistError if another one does so."""
        if get_ident() != self._ident:
            self._change()

    def expect_one(self) -> None:
        """Raise the HpcdistError of the threads that were refused, if any were."""
        if self._refusal:
            raise HpcdistError(self._refusal)

    def _change(self) -> None:
        with self._lock:
            now, last = threading.current_thread(), self._thread
            if not self._refusal and (
                last is None or last is threading.main_thread() or not last.is_alive()
            ):
                self._thread, self._ident = now, get_ident()
                return
            if not self._refusal:
                assert last is not None
                self._refusal = (
                    f"rank {self._rank}: two threads, {last.name!r} and {now.name!r}, run programs "
                    "in which the ranks exchange values; each rank would take their steps in "
                    "another order, and mix them: run all of them in one thread, or join() the "
                    "first thread before the second one begins (programs that exchange nothing, "
                    "such as a test of the network, may run in any thread)"
                )
                self._ident = None  # the other thread's next step comes here, too
            raise HpcdistError(self._refusal)

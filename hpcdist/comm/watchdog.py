"""A thread that ends what hangs while another thread is stuck outside Python.

A process that launches more than a GPU's queue holds waits inside CUDA, without a deadline, for a
sum that may never come. Only another thread can abort that sum. Ranks that make a communicator wait
inside MPI for all others: if one is stuck, only another thread can end the job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from hpcdist.base import settings
from hpcdist.base.errors import DeadlineError
from hpcdist.comm.progress import deadline_error, waits_for

logger = logging.getLogger("hpcdist.comm")
INTERVAL_S = 0.1
GRACE_S = 5.0  # a waiting host notices first, and knows more


@dataclass(frozen=True)
class _Watched:
    ended: Callable[[], bool]
    late: Callable[[], None]
    until: float


class Watchdog:
    """Looks after things that are under way in this process."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._thread: threading.Thread | None = None

    def watch(
        self, ended: Callable[[], bool], late: Callable[[], None], deadline_s: float | None
    ) -> None:
        """Call ``late()`` unless ``ended()`` within the deadline (None: never), from a thread."""
        if deadline_s is None:
            return
        with self._lock:
            self._watched.append(
                _Watched(ended, late, time.monotonic() + deadline_s + self._grace_s)
            )
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched)
            over = [w for w in watched if _is_over(w)]
            with self._lock:
                self._watched = [w for w in self._watched if w not in over]
            time.sleep(INTERVAL_S)


def _is_over(watched: _Watched) -> bool:
    """Return whether there is nothing more to watch, after calling what is late.

    What raises is not watched any longer, and told; the thread continues for all others.
    """
    try:
        if watched.ended():
            return True
        if time.monotonic() <= watched.until:
            return False
        watched.late()
    except Exception:
        logger.exception("what was under way is no longer watched")
    return True


WATCHDOG = Watchdog()
_of_blocking_calls = Watchdog(grace_s=0)  # nobody else notices
LEAST_S = 5.0  # in which MPI makes what it makes, on a busy machine
EndsJob: TypeAlias = Callable[[DeadlineError], object]
_ends_job: list[EndsJob] = []


def end_job_by(end: EndsJob) -> None:
    """End the job by ``end``, in another thread, when a `bounded` call is late."""
    _ends_job[:] = [end]


@contextmanager
def bounded(
    describe: Callable[[], str], abort: EndsJob, deadline_s: float | None = None
) -> Iterator[None]:
    """End the job if the block, a call that waits without a deadline, takes longer than that.

    The deadline is FLAGS_rpc_deadline unless ``deadline_s`` is another. ``abort`` ends the job
    where nobody has said what does, or where that fails.
    """
    within_s = deadline_s or max(settings.RPC_DEADLINE.read() / 1000, LEAST_S)
    is_over = threading.Event()

    def late() -> None:
        error = deadline_error(describe, within_s)
        try:
            for end in _ends_job:
                end(error)
        finally:
            abort(error)  # unless that has ended this process

    _of_blocking_calls.watch(is_over.is_set, late, within_s)
    try:
        with waits_for(describe):
            yield
    finally:
        is_over.set()

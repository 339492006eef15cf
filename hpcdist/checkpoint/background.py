"""Threads for checkpoints: one that writes during training, others that share the writing."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from hpcdist.base.errors import CheckpointError, HpcdistError

SYNC_BYTES = 64 << 20  # that are written before the disk is waited for
NICER = 5  # of 20: where processors are few, training goes first, and the write is hardly slower

logger = logging.getLogger("hpcdist.checkpoint")


class Background:
    """Runs one piece of work at a time in a thread; its error is raised when it is waited for.

    The interpreter does not end before the thread has.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: HpcdistError | None = None
        self.job: Any = None  # whose work nobody has waited for yet

    def start(
        self,
        work: Callable[[], object],
        give_up: Callable[[], None] = lambda: None,
        job: object = None,
    ) -> None:
        """Wait for the work before, raise its error, and start this one of a job.

        If it fails it is to ``give_up``.
        """
        self.wait()
        self.job = job

        def guarded() -> None:
            try:
                _lower_priority()
                work()
            except Exception as error:
                plain = error if isinstance(error, HpcdistError) else CheckpointError(repr(error))
                self._error = plain
                # Perhaps nobody waits for it any more: then this is the only word of it.
                logger.error("a checkpoint could not be saved: %s", error, exc_info=plain != error)
                give_up()

        self._thread = threading.Thread(target=guarded, name="hpcdist-checkpoint")
        self._thread.start()

    def result(self) -> HpcdistError | None:
        """Wait for the work, and return the error that it ended with, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error, self.job = self._error, None, None
        return error

    def wait(self) -> None:
        """Wait for the work, and raise the error that it ended with, once."""
        if (error := self.result()) is not None:
            raise error

    @property
    def busy(self) -> bool:
        """Whether the work continues."""
        return self._thread is not None and self._thread.is_alive()


def _lower_priority() -> None:
    """Lower the priority of this thread, and of those that it will start."""
    if sys.platform == "linux":  # elsewhere it would be that of the process
        now = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), now + NICER)


class Worker:
    """A thread that makes calls, one after the other.

    Unlike executors of the standard library it works while the interpreter ends, when a checkpoint
    may still be being written.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = threading.Thread(target=self._work, name=name)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter ends and starts no thread: calls are made at once
            self._thread = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a call; the future gets its result or its error."""
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        if self._thread is None:
            call()
        else:
            self._calls.put(call)
        return future

    def close(self) -> None:
        """Wait until all calls have been made, and end."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def _work(self) -> None:
        for call in iter(self._calls.get, None):
            call()


class WriteBack:
    """Brings a file to disk while it is being written, so that the last fsync finds little to do.

    Errors of the disk are raised by `wrote` and when it is closed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes = 0  # written since the disk was last asked
        self._pending: Future[None] | None = None
        self._worker = Worker("hpcdist-sync")

    def __enter__(self) -> WriteBack:
        return self

    def __exit__(self, *_: Any) -> None:
        self._worker.close()
        if self._pending is not None:
            self._pending.result()

    def wrote(self, nbytes: int) -> None:
        """Record how many bytes were written."""
        self._bytes += nbytes
        if self._bytes >= SYNC_BYTES and (self._pending is None or self._pending.done()):
            if self._pending is not None:
                self._pending.result()
            self._pending = self._worker.submit(os.fdatasync, self._descriptor)
            self._bytes = 0

"""The background thread that moves lanes while the script computes, or waits elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from hpcdist.comm.lanes import Lane, Operation
from hpcdist.comm.progress import CROWDED, WaitPolicy, waiter

# Polls back to back before a wait yields or sleeps. More gain nothing where each rank has a core of
# its own, and cost where others want it.
MOST_SPINS = 30


class LaneThread:
    """A thread that moves the lanes that it is told of, until they are empty.

    What it calls at the end of an operation may have it watch a lane, and wait for what is in it:
    another thread takes its place then.
    """

    def __init__(
        self, policy: WaitPolicy = CROWDED, gives_way: bool = False, patience_s: float = 0.0
    ) -> None:
        """``gives_way``: it takes no core from threads that compute when it has something to move.

        For operations in memory, which are work themselves. A network is idle while it waits.
        ``patience_s``: how long it leaves an operation to a thread that will `help`.
        """
        self.patience_s = patience_s
        self._gives_way = gives_way
        self._policy = replace(policy, spins=min(policy.spins, MOST_SPINS))
        self._lanes: dict[Lane, float] = {}  # and when the thread begins to move each
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, lane: Lane, patiently: bool = False) -> None:
        """Drive a lane in the background until it is empty; ``patiently``: not at once."""
        begin = time.monotonic() + (self.patience_s if patiently else 0.0)
        with self._changed:
            if self._thread in (None, threading.current_thread()):
                self._thread = threading.Thread(target=self._run, name="hpcdist-mover", daemon=True)
                self._thread.start()
            if begin < self._lanes.get(lane, float("inf")):
                self._lanes[lane] = begin
                self._changed.notify_all()

    def help(self, lane: Lane, operation: Operation, until: float) -> None:
        """Move a lane until an operation has ended, well or not: its future tells which.

        Not after the time ``until``: what others wait for may come after it in the script.
        """

        def poll() -> bool:
            if not operation.done:
                lane.move()
            return operation.done or time.monotonic() > until

        waiter(poll, self._policy, operation.describe, None, (), sleep=lane.sleep)()
        self._forget(lane)

    def wait(self, lane: Lane, operation: Operation, deadline_s: float | None) -> None:
        """Wait for the end of an operation, moving its lane; raise what made it fail."""

        def poll() -> bool:
            if not operation.done:
                lane.move()
            return operation.done

        if not operation.done:
            describe = operation.describe
            waiter(poll, self._policy, describe, deadline_s, (), sleep=lane.sleep)()
        if operation.error is not None:
            raise operation.error

    def settle(self, lanes: Sequence[Lane], ended: Callable[[], bool]) -> None:
        """Wait until ``ended()``, or until these lanes are empty; the thread moves them."""
        for lane in lanes:
            self.watch(lane)
        begin = time.monotonic()
        while not ended() and not all(lane.is_empty() for lane in lanes):
            time.sleep(self._policy.nap_s(time.monotonic() - begin))

    def is_idle(self, within_s: float) -> bool:
        """Return whether nothing is under way any more, after a wait of at most so long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lanes, within_s)

    def close(self) -> None:
        """End the thread; what is under way is given up."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        me = threading.current_thread()
        if self._gives_way:
            _take_no_core_from_others()

        def has_ended() -> bool:  # or another thread has taken its place
            return self._closed or self._thread is not me

        while not has_ended():
            with self._changed:
                self._changed.wait_for(lambda: self._lanes or has_ended())
            idle_since = time.monotonic()
            while not has_ended() and (lanes := self._due()):
                for lane in lanes:
                    if not lane.move():
                        self._forget(lane)
                        idle_since = time.monotonic()
                if len(lanes) == 1 and lanes[0].sleep(self._policy.max_sleep_s):
                    continue
                time.sleep(self._policy.nap_s(time.monotonic() - idle_since))

    def _due(self) -> list[Lane]:
        """Return the lanes that the thread is to progress, after waiting for one."""
        with self._changed:
            while self._lanes and not self._closed:
                now = time.monotonic()
                if due := [lane for lane, begin in self._lanes.items() if begin <= now]:
                    return due
                self._changed.wait(min(self._lanes.values()) - now)
        return []

    def _forget(self, lane: Lane) -> None:
        with self._changed:
            if lane in self._lanes and lane.is_empty():  # nothing has come since
                del self._lanes[lane]
                self._changed.notify_all()


def _take_no_core_from_others() -> None:
    """Make this thread wait for a free core, or its turn, when it wakes up (sched(7))."""
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(PermissionError):  # of a sandbox: it is as fast as it was, not wrong
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

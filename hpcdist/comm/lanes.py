"""Operations that run while the script computes: the waiting thread, or a background thread
(`hpcdist.comm.lane_thread`), drives them.

An operation is a generator that yields what it waits for next (`Wait`). Operations of one `Lane`
run one after another, those of different lanes side by side.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Protocol, TypeAlias
from weakref import WeakSet

from hpcdist.base.errors import CommError, RankFailure
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.collective import RankGroup
from hpcdist.comm.progress import deadline_error

_failures: deque[CommError] = deque(maxlen=8)  # the latest of this process
_under_way: set[Messages] = set()  # MPI may still use their buffers, whoever waits for them
_lanes: WeakSet[Lane] = WeakSet()  # all of this process


def origin(error: BaseException) -> BaseException:
    """Return the failure of an operation that ``error`` tells of, or ``error`` itself.

    Who waits for operations in C++ gets another exception with the words of ours.
    """
    for failure in _failures:
        if failure is not error and str(failure) in str(error):
            return failure
    return error


def forget_failures() -> None:
    """Keep no failure of an operation any more, nor what its traceback refers to."""
    _failures.clear()


def abandoned_are_over() -> bool:
    """Return whether MPI has completed all messages, once waits have failed."""
    for messages in [*_under_way]:
        messages.abandon()
    return not _under_way


def close_all() -> None:
    """End all operations with an error, also those that are called from now on: MPI ends."""
    for lane in [*_lanes]:
        lane.close()


class Wait(Protocol):
    """What an operation waits for."""

    def ended(self) -> bool:
        """Return whether the wait is over, after helping it along; not asked again after that."""
        ...

    def sleep(self, seconds: float) -> bool:
        """Sleep until it may have ended, at most so long; return False, at once, if none tells.

        Messages cannot: MPI moves them only while it is asked.
        """
        return False

    def missing(self) -> Sequence[int]:
        """Return the ranks of the group from which something is missing."""
        ...


Steps: TypeAlias = Generator[Wait, None, None]
# Called with the time, the time since when and what is waited for, which may be `NamesRanks`.
Alarm: TypeAlias = Callable[[float, float, Callable[[], str]], None]


class Messages(Wait):
    """The wait for messages of known lengths: pairs (peer, bytes) to send and to receive."""

    def __init__(
        self,
        transport: Transport,
        tag: int,
        sends: Sequence[tuple[int, Array]],
        receives: Sequence[tuple[int, Array]],
    ) -> None:
        self._transport = transport
        self._open: list[tuple[int, int, Request]] = []
        self._sends: list[Request] = []
        _under_way.add(self)
        for peer, array in receives:
            self._open.append((peer, array.nbytes, transport.irecv(array, peer, tag)))
        for peer, array in sends:
            self._sends.append(transport.isend(array, peer, tag))

    def ended(self) -> bool:
        still = []
        for peer, expected, request in self._open:
            came = self._transport.arrival(request)
            if came is None:
                still.append((peer, expected, request))
            elif came != expected:
                raise CommError(f"rank {peer} of the group sent {came} bytes, expected {expected}")
        self._open = still
        if still or (self._sends and not self._transport.test_all(self._sends)):
            return False
        _under_way.discard(self)
        return True

    def abandon(self) -> None:
        """Note which have ended, well or not; nobody asks any more whether all have."""
        self._open = [o for o in self._open if not self._is_over(o[2], self._transport.arrival)]
        self._sends = [s for s in self._sends if not self._is_over(s, self._tested)]
        if not self._open and not self._sends:
            _under_way.discard(self)

    def missing(self) -> Sequence[int]:
        return [peer for peer, _, _ in self._open]

    def _tested(self, request: Request) -> int | None:
        return 0 if self._transport.test_all([request]) else None

    @staticmethod
    def _is_over(request: Request, test: Callable[[Request], int | None]) -> bool:
        try:
            return test(request) is not None
        except CommError:  # of this message, whose buffer is free
            return True


class Operation:
    """One operation of a lane, from its call to its end."""

    def __init__(
        self,
        group: RankGroup,
        steps: Steps,
        operation: Callable[[], str],
        deadline_s: float | None,
        on_end: Callable[[], None] | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        """``operation()`` names it in errors; ``on_end`` is called once, by any thread.

        What ``alarm`` raises ends it; it is called while the operation waits.
        """
        self.done = False
        self.error: CommError | None = None
        self._group = group
        self._steps = steps
        self._deadline_s = deadline_s
        self._began: float | None = None
        self._wait: Wait | None = None
        self._on_end = on_end
        self._alarm = alarm
        self.describe = group.lacking(operation, self._missing)

    def advance(self) -> bool:
        """Go on as far as possible now; return whether it has ended, well or not."""
        if self.error is not None:  # it was interrupted
            return True
        try:
            while self._wait is None or self._wait.ended():
                self._wait = next(self._steps)
            now = time.monotonic()
            self._began = self._began or now
            if self._alarm is not None:
                self._alarm(now, self._began, self.describe)
            if self._deadline_s is not None and now - self._began > self._deadline_s:
                raise deadline_error(self.describe, self._deadline_s)
            return False
        except StopIteration:
            pass
        except CommError as error:
            self.error = error
        except Exception as error:  # of MPI's, or memory: whoever waits is told
            self.error = CommError(f"{self.describe()}: {type(error).__name__}: {error}")
            self.error.__cause__ = error
        except BaseException as interrupt:  # Ctrl-C, or another of a signal: it cannot go on
            self.error = CommError(f"{self.describe()}: interrupted by {interrupt!r}")
            raise
        if self.error is not None:
            _failures.append(self.error)
        return True

    def sleep(self, seconds: float) -> bool:
        """Sleep until it may continue, at most so long; return False, at once, if none tells."""
        wait = self._wait
        return wait is not None and wait.sleep(seconds)

    def end(self, error: CommError | None = None) -> None:
        """Note the end, with an error that others caused if there is one, and tell of it."""
        self.error = self.error or error
        self._steps.close()
        # A handle has its operation: if that had the handle, too, both would keep the tensors until
        # Python collects garbage.
        on_end, self._on_end, self._wait = self._on_end, None, None
        self.done = True
        if on_end is not None:
            on_end()

    def _missing(self) -> Sequence[int]:
        return self._wait.missing() if self._wait is not None else ()


class Lane:
    """Operations that run one after another. When one fails, so do all after it."""

    def __init__(self) -> None:
        self._queue: deque[Operation] = deque()
        self._ending: deque[Operation] = deque()  # those whose ends are being told
        self._moving = threading.Lock()
        self._broken: Callable[[Operation], CommError] | None = None  # makes all others' errors
        _lanes.add(self)

    def add(self, operation: Operation) -> None:
        """Put an operation at the end."""
        self._queue.append(operation)

    def is_empty(self) -> bool:
        """Return whether no operation is left, nor anything that is called at the end of one."""
        return not self._queue and not self._ending

    def move(self) -> bool:
        """Move its first operations on as far as they go; return whether any is left."""
        while self._queue:
            if not self._moving.acquire(blocking=False):
                return True  # another thread is at it
            try:
                ended = self._queue[0] if self._queue and self._advance_first() else None
                if ended is not None:
                    broken = self._broken
                    if broken is None and ended.error is not None:
                        self._broken = partial(_after, ended.error)
                    self._ending.append(ended)
                    self._queue.popleft()
            finally:
                self._moving.release()
            if ended is None:
                return bool(self._queue)
            # What is called now may wait for operations of this lane.
            try:
                ended.end(broken(ended) if broken is not None else None)
            finally:
                self._ending.remove(ended)
        return False

    def sleep(self, seconds: float) -> bool:
        """Sleep until it may move on, at most so long; return False, at once, if none tells.

        Of several threads that wait for it, one does; the others sleep until that one goes on.
        """
        if not self._moving.acquire(timeout=seconds):
            return True
        try:
            first = self._queue[0] if self._queue else None
            return first is not None and first.sleep(seconds)
        finally:
            self._moving.release()

    def close(self) -> None:
        """End what is in it with an error, and all that is added from now on."""
        with self._moving:  # so that no thread is in a call of MPI's
            self._broken = self._broken or _too_late
        self.move()

    def _advance_first(self) -> bool:
        return self._broken is not None or self._queue[0].advance()


def _too_late(operation: Operation) -> CommError:
    return CommError(f"{operation.describe()}: the job has ended")


def _after(broken: CommError, _: Operation) -> CommError:
    """Return the error of an operation that does not begin because an earlier one has failed."""
    if isinstance(broken, RankFailure):
        return broken.again(f"an earlier operation failed: {broken.what}")
    return CommError(f"an earlier operation failed: {broken}")

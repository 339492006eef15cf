"""How a rank waits: with low latency, but yielding the core when cores are scarce."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from hpcdist.base.errors import CommError, DeadlineError
from hpcdist.base.trace.events import Cause, EventKind, cause_of
from hpcdist.base.trace.recorder import recorder

T = TypeVar("T")


@runtime_checkable
class NamesRanks(Protocol):
    """A description of a wait that also knows from which ranks something is missing."""

    def missing_ranks(self) -> tuple[int, ...]:
        """Return their ranks."""


DEADLINE_S = 180.0  # where nobody says another; the runtime passes that of FLAGS_rpc_deadline


@dataclass(frozen=True)
class WaitPolicy:
    """Phases of a wait: poll back to back, then yield between polls, then sleep between polls.

    A sleep lasts ``sleep_share`` of the time waited so far, between the two bounds, so what it adds
    to the latency stays a small share of the wait itself.
    """

    spins: int
    yield_s: float
    sleep_share: float = 0.05
    min_sleep_s: float = 20e-6
    max_sleep_s: float = 1e-3

    def nap_s(self, waited_s: float) -> float:
        """Return how long to sleep after a wait of so long."""
        return min(max(waited_s * self.sleep_share, self.min_sleep_s), self.max_sleep_s)


# Chosen by measurement, see docs/protocol.md.
ROOMY = WaitPolicy(spins=500, yield_s=5e-3)
CROWDED = WaitPolicy(spins=8, yield_s=1e-3)


class Clock:
    """The time that deadlines are measured in; tests put another in its place."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    condition = staticmethod(threading.Condition)


CLOCK = Clock()


class waits_for:
    """Report ``describe()`` from `waiting_for` while the block waits by other means."""

    __slots__ = ("by_main", "describe", "since_ns")

    def __init__(self, describe: Callable[[], str]) -> None:
        self.describe = describe

    def __enter__(self) -> None:
        self.by_main = threading.get_ident() == threading.main_thread().ident
        self.since_ns = time.monotonic_ns()
        _waits[self] = None

    def __exit__(self, *_: object) -> None:
        del _waits[self]


_waits: dict[waits_for, None] = {}  # of all threads, in the order in which they began

TICK_S = 0.02
ticks: list[Callable[[], None]] = []  # called about so often while this process waits
_last_tick = [0.0]


def waiting_for() -> str:
    """Return the description of this process's wait, or an empty string."""
    wait = _current()
    return "" if wait is None else wait.describe()


def waiting_cause() -> tuple[Cause, int] | None:
    """Return the kind of this process's wait, and its begin in ns of the monotonic clock.

    Asks no transport, so any thread may call it.
    """
    wait = _current()
    return None if wait is None else (cause_of(wait.describe), wait.since_ns)


def _current() -> waits_for | None:
    """Return the wait that tells most of this process: the main thread's, or the one begun last.

    Another thread asks, and the wait may end meanwhile.
    """
    waits = list(_waits)
    return next((wait for wait in reversed(waits) if wait.by_main), waits[-1] if waits else None)


@contextmanager
def waits_for_ranks(ranks: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Name ``ranks()``, called then, as missing in a DeadlineError of the waits inside."""
    try:
        yield
    except DeadlineError as error:
        error.missing = error.missing or tuple(ranks())
        raise


def while_waiting(call: Callable[[], None]) -> Callable[[], None]:
    """Register a callback for every TICK_S of waiting; return a function that removes it.

    What it raises ends the wait.
    """
    ticks.append(call)
    return lambda: ticks.remove(call)


def as_comm_error(error: Exception, operation: str) -> CommError:
    """Return the error about a transport that failed while ``operation`` was waited for."""
    return CommError(f"{operation}: {error}")


def policy_for(ranks_on_host: int, usable_cores: int) -> WaitPolicy:
    """Return the policy for a host, by whether every rank has a core."""
    return ROOMY if ranks_on_host <= usable_cores else CROWDED


def threads_per_rank(ranks_on_host: int, usable: int, present: int) -> int:
    """Return how many threads a rank may use: its share of the cores, at least one.

    Where mpirun has bound the rank to some of the cores present, those are its own.
    """
    return usable if usable < present else max(1, usable // ranks_on_host)


def waiter(
    poll: Callable[[], T],
    policy: WaitPolicy,
    describe: Callable[[], str],
    deadline_s: float | None,
    failure: type[Exception] | tuple[()],
    explained: Callable[[Exception, str], CommError] = as_comm_error,
    clock: Clock = CLOCK,
    sleep: Callable[[float], bool] = lambda _: False,
) -> Callable[[], T]:
    """Return a function that calls ``poll`` until its result is true, and returns that result.

    It is made once and called in every step, so all that a wait needs is bound here. Python signal
    handlers run between polls. Where ``sleep`` returns true, it has slept until ``poll`` may have a
    result, or as long as it was told, and no yields and naps are needed. Raises, telling
    ``describe()``: DeadlineError after ``deadline_s`` seconds (None: never); what ``explained``
    makes of a ``failure`` of ``poll``; CommError if it answers None, which means that nothing is
    under way.
    """
    spins, now = range(policy.spins), time.monotonic_ns
    kind, cause = EventKind.WAIT, recorder.name(cause_of(describe).value)

    begun = ended = 0  # of the last short wait: noted in the next one, where that delays nobody

    def wait() -> T:
        nonlocal begun, ended
        try:
            result = poll()
            if result:
                return result
            noted = recorder.on
            if noted:
                if ended:
                    recorder.record(kind, cause, begun, ended)
                begun, ended = now(), 0
            for _ in spins:
                result = poll()
                if result:
                    if noted:
                        ended = now()
                    return result
            try:
                with waits_for(describe):
                    return linger()
            finally:
                if noted:
                    recorder.record(kind, cause, begun, now())
        except failure as error:
            raise explained(error, describe()) from error

    def linger() -> T:
        begin = clock.monotonic()
        waited = 0.0
        while True:
            result = poll()
            if result:
                return result
            if result is None:
                raise CommError(f"{describe()}: none of the requests has been started")
            if deadline_s is not None and waited > deadline_s:
                raise deadline_error(describe, deadline_s)
            if ticks and begin + waited > _last_tick[0] + TICK_S:
                _last_tick[0] = begin + waited
                for tick in ticks:
                    tick()
            if not sleep(policy.max_sleep_s):
                if waited < policy.yield_s:
                    os.sched_yield()
                else:
                    clock.sleep(policy.nap_s(waited))
            waited = clock.monotonic() - begin

    return wait


def deadline_error(describe: Callable[[], str], deadline_s: float) -> DeadlineError:
    """Return the error that says what was waited for, from whom, how long, and what to do."""
    error = DeadlineError(
        f"{describe()}: nothing came within {deadline_s:g} s (timed out); a rank is stuck, dead or "
        "slower than the deadline (if it is only slow, raise --deadline or FLAGS_rpc_deadline, "
        "in ms, or the timeout that the script gives)"
    )
    if isinstance(describe, NamesRanks):
        error.missing = describe.missing_ranks()
    return error

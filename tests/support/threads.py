"""Ranks as threads, for tests over the loopback transport."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hpcdist.comm.loopback import LoopbackTransport, world
from tests.support.clock import StandingClock

LIMIT_S = 120  # the first kernels may have to be compiled


def run_in_world(size: int, body: Callable[[LoopbackTransport], None]) -> None:
    """Run a body on every rank of a loopback world, in which deadlines take no time."""
    clock = StandingClock(size)

    def taking_part(transport: LoopbackTransport) -> None:
        with clock.taking_part():
            body(transport)

    run_threads([lambda t=t: taking_part(t) for t in world(size, clock=clock)])


def run_threads(bodies: list[Callable[[], None]]) -> None:
    """Run every body in a thread; raise the first error, after all have ended."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"a rank hangs; errors of the others: {errors}"
    if errors:
        raise errors[0]

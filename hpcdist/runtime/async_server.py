"""What an asynchronous server does beside its updates: number steps, count them for schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from hpcdist.errors import CommError
from hpcdist.executor.control import Binding
from hpcdist.graph.program import Program
from hpcdist.ps.async_shards import AsyncShards
from hpcdist.ps.server import PsServer
from hpcdist.runtime.exchange import STEP

OnPacket = Callable[[int, tuple[int, ...]], None]
P = ParamSpec("P")


def bind_step_number(
    server: PsServer, shards: AsyncShards, staleness: Any
) -> Callable[[tuple[int, ...]], None]:
    """Return what checks a trainer's step number, and answers how stale its gradients were.

    Numbers come without a gap and without a repeat, so no update is lost or applied twice.
    """
    expected = [0] * len(shards.staleness)
    numbers = server.gradients[STEP.name]

    def check(contributors: tuple[int, ...]) -> None:
        (trainer,) = contributors
        if numbers[trainer][0] != expected[trainer]:
            raise CommError(
                f"trainer {trainer} sent its step {numbers[trainer][0]}, "
                f"expected step {expected[trainer]}: an update was lost or came twice"
            )
        expected[trainer] += 1
        staleness[0] = shards.staleness[trainer]

    return check


def bind_counters(
    program: Program,
    schedule: Sequence[Callable[[], Any]],
    packets: int,
    merged: Any,
    binding: Binding,
) -> OnPacket:
    """Run the schedule once; return what runs it again after each whole exchange of a trainer.

    Each trainer's steps are counted in a variable of its own, which the schedule adds up:
    ``merged[k][1]`` is how many are in the last exchange of trainer k.
    """
    plan = program._server_plan
    counters = [binding.scope.var(name) for name in plan.counters] if plan is not None else []
    arrived = [0] * (plan.trainers if plan is not None else 0)
    for call in schedule:
        call()

    def count(packet: int, contributors: tuple[int, ...]) -> None:
        (trainer,) = contributors
        arrived[trainer] += 1
        if arrived[trainer] % packets == 0:
            counters[trainer].value += merged[trainer][1]
            for call in schedule:
                call()

    return count if schedule and counters else lambda packet, contributors: None


def followed_by(first: Callable[P, None], second: Callable[P, None]) -> Callable[P, None]:
    """Return what calls both."""

    def both(*args: P.args, **kwargs: P.kwargs) -> None:
        first(*args, **kwargs)
        second(*args, **kwargs)

    return both

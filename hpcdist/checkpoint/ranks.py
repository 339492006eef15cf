"""The ranks that make a checkpoint together; a process alone is trainer 0 of one."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from hpcdist.errors import CheckpointError, HpcdistError, TrainersDied
from hpcdist.executor import control
from hpcdist.executor.control import Peers
from hpcdist.graph.program import Program

P = ParamSpec("P")
T = TypeVar("T")


class Alone:
    """A process without a job, seen as the only trainer of one."""

    trainer = 0
    trainers = 1
    servers = 0
    deadline_s = 180.0
    group = None

    def program(self, program: Program) -> Program:
        """Return the Program itself."""
        return program

    def gather(self, data: bytes) -> list[bytes]:
        """Return the only trainer's data."""
        return [data]

    def ask(self, what: Any) -> list[Any]:
        """Nobody is asked."""
        return []

    def read(self, server: int, arrays: Mapping[str, Any]) -> None:
        """There is nobody to read from."""
        raise CheckpointError(f"there is no server {server}: this process is alone")

    def settle(self, program: Program) -> dict[str, int]:
        """Nothing is under way, and nothing is counted."""
        return {}

    def catch_up(self, program: Program) -> None:
        """There are no others."""

    def resume(self, program: Program, counted: Mapping[str, int]) -> None:
        """Nothing is counted."""


def peers_here() -> Peers:
    """Return the ranks of this process's job; CheckpointError on a server."""
    job = control.installed()
    if job is None:
        return Alone()
    peers = job.peers()
    if peers is None:
        raise CheckpointError(
            "a parameter server neither saves nor restores by itself: trainers do, and ask it"
        )
    return peers


def with_the_living(what: Callable[P, T]) -> Callable[P, T]:
    """Make ``what``, which all trainers do together, begin anew if some of them die meanwhile."""

    @functools.wraps(what)
    def until_none_dies(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            with contextlib.suppress(TrainersDied):
                return what(*args, **kwargs)

    return until_none_dies


def together(peers: Peers, what: Callable[[], T]) -> list[T]:
    """Do something on every trainer; return the results, which are plain data, of all of them.

    If it fails on some, CheckpointError on all, with the words of the first. Collective.
    """
    return agreed(peers.gather, what, "trainer")


def agreed(gather: Callable[[bytes], list[bytes]], what: Callable[[], T], who: str) -> list[T]:
    """Do what `together` does among any ranks, who are called ``who`` and a number."""
    error: HpcdistError | None = None
    said: dict[str, Any] = {}
    try:
        said["result"] = what()
    except HpcdistError as failed:
        error, said["error"] = failed, str(failed)
    everyone = [json.loads(data) for data in gather(json.dumps(said).encode())]
    if error is not None:
        raise error
    for number, other in enumerate(everyone):
        if "error" in other:
            raise CheckpointError(f"{who} {number}: {other['error']}")
    return [other["result"] for other in everyone]

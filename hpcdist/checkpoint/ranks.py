"""The ranks that make a checkpoint together; a process alone is trainer 0 of one."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import xxhash

from hpcdist.checkpoint.lock import held
from hpcdist.errors import CheckpointError, HpcdistError, TrainersDied
from hpcdist.executor import control
from hpcdist.executor.control import ANNOUNCED, Peers
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program

logger = logging.getLogger("hpcdist.checkpoint")
P = ParamSpec("P")
T = TypeVar("T")


class Standalone:
    """A process without a job, seen as the only trainer of one."""

    trainer = 0
    trainers = 1
    servers = 0
    deadline_s = 180.0
    group = None

    def program(self, program: Program) -> Program:
        """Return the Program itself."""
        return program

    def trains_in(self, scope: Scope) -> bool:
        """There are no servers."""
        return False

    def gather(self, data: bytes) -> list[bytes]:
        """Return the only trainer's data."""
        return [data]

    def announce(self, data: bytes) -> None:
        """There are no others."""

    def hear(self, what: str) -> bytes | None:
        """Nobody announces anything."""
        return None

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
        return Standalone()
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


# -- what trainer 0 does alone ---------------------------------------------------------------------
_outcomes: dict[str, list[str]] = {}  # of all that trainer 0 has done, of every time
_calls: Counter[str] = Counter()  # how often this trainer has waited for it


def saved_by_first(
    peers: Peers, directory: Path, name: str | None, save: Callable[[], None]
) -> None:
    """Have trainer 0 ``save`` into a directory; return when it has, on every trainer that calls.

    ``name`` is that of a file in it.
    """

    def save_locked() -> None:
        with held(directory):
            save()

    done_by_first(peers, f"save {directory / (name or '')}", save_locked)


def done_by_first(peers: Peers, what: str, do: Callable[[], None]) -> None:
    """Have trainer 0 ``do`` something; return when it has, on every trainer that calls.

    Trainers need not call this: scripts may save on trainer 0 alone. Its CheckpointError is raised
    on all that do.
    """
    if peers.trainers == 1:
        do()
        return
    key = xxhash.xxh3_128_hexdigest(what.encode())
    if peers.trainer == 0:
        outcome = ""
        try:
            do()
        except BaseException as error:
            outcome = str(error) or repr(error)
            raise
        finally:
            peers.announce(f"{key} {outcome}".encode()[:ANNOUNCED])
        return
    call, heard = _calls[key], _outcomes.setdefault(key, [])
    _calls[key] += 1
    while len(heard) <= call:
        said = peers.hear(f"trainer 0 to {what}")
        if said is None:
            logger.warning("trainer 0 died before it could %s", what)
            return
        other, _, outcome = said.decode(errors="replace").partition(" ")
        _outcomes.setdefault(other, []).append(outcome)
    if heard[call]:
        raise CheckpointError(f"trainer 0: {heard[call]}")

"""The ranks that save a checkpoint together; a single process counts as trainer 0."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import xxhash

from hpcdist.base.errors import CheckpointError, DeadlineError, HpcdistError, TrainersDied
from hpcdist.checkpoint.job import Peers, job_here
from hpcdist.checkpoint.lock import locked

logger = logging.getLogger("hpcdist.checkpoint")
PATIENCE = 10  # deadlines that one which has begun to read or write may take
ANNOUNCED = 4096  # bytes that a trainer may tell all others at once
BEGUN = b"begun"  # what trainer 0 announces before it does something alone
P = ParamSpec("P")
T = TypeVar("T")
AnyPeers = TypeVar("AnyPeers")


class OnlyTrainer:
    """A process without a job, seen as the only trainer of one."""

    trainer = 0
    trainers = 1
    servers = 0
    deadline_s = 180.0
    group = None

    def gather(self, data: bytes, deadlines: int = 1) -> list[bytes]:
        """Return the only trainer's data."""
        return [data]

    def announce(self, data: bytes) -> None:
        """There are no others."""

    def hear(self, awaited: str, deadlines: int = 1) -> bytes | None:
        """Nobody announces anything."""
        return None

    def ask(self, request: object) -> list[Any]:
        """Nobody is asked."""
        return []


def peers_here() -> Peers:
    """Return the ranks of this process's job; CheckpointError on a server."""
    job = job_here()
    return OnlyTrainer() if job is None else of_trainer(job.peers())


def of_trainer(peers: AnyPeers | None) -> AnyPeers:
    """Return a trainer's peers; CheckpointError for a server, which has none."""
    if peers is None:
        raise CheckpointError(
            "servers do not save or restore by themselves: call this on the trainers, which "
            "involve the servers; a script that trains no Program needs none: start it without "
            "--pservers"
        )
    return peers


def with_the_living(function: Callable[P, T]) -> Callable[P, T]:
    """Repeat ``function``, which all trainers call together, if some of them die meanwhile."""

    @functools.wraps(function)
    def until_none_dies(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            with contextlib.suppress(TrainersDied):
                return function(*args, **kwargs)

    return until_none_dies


def together(peers: Peers, compute: Callable[[], T]) -> list[T]:
    """Do something on every trainer; return the results, which are plain data, of all of them.

    If it fails on some, CheckpointError on all, with the words of the first. DeadlineError if one
    does not come within the deadline, or takes more than `PATIENCE` of them. Collective.
    """
    peers.gather(b"")
    return agreed(functools.partial(peers.gather, deadlines=PATIENCE), compute, "trainer")


def agreed(gather: Callable[[bytes], list[bytes]], compute: Callable[[], T], role: str) -> list[T]:
    """Do what `together` does among any ranks; errors call them ``role`` and their number."""
    error: HpcdistError | None = None
    result: dict[str, Any] = {}
    try:
        result["result"] = compute()
    except DeadlineError:  # a rank is stuck: this one knows which, and ends the job
        raise
    except HpcdistError as failed:
        error, result["error"] = failed, str(failed)
    everyone = [json.loads(data) for data in gather(json.dumps(result).encode())]
    if error is not None:
        raise error
    for number, outcome in enumerate(everyone):
        if "error" in outcome:
            raise CheckpointError(f"{role} {number}: {outcome['error']}")
    return [outcome["result"] for outcome in everyone]


# -- what trainer 0 does alone ---------------------------------------------------------------------
_outcomes: dict[str, list[str]] = {}  # of all that trainer 0 has done, by what it was, and where
_calls: Counter[str] = Counter()  # how often this trainer has done so


def saved_by_first(
    peers: Peers, directory: Path, name: str | None, save: Callable[[], None]
) -> None:
    """Save into a directory on trainer 0, while every trainer that calls this waits.

    ``name`` is that of a file in it. A trainer with a separate directory saves there itself.
    """

    def save_locked() -> None:
        with locked(directory):
            save()

    done_by_first(peers, "save", directory, name, save_locked, save_locked)


def done_by_first(
    peers: Peers,
    verb: str,
    directory: Path,
    name: str | None,
    do: Callable[[], None],
    in_own: Callable[[], None],
) -> None:
    """Do something in a directory on trainer 0, while all that call this wait.

    Trainers need not call this: scripts may save on trainer 0 alone. Its CheckpointError is raised
    on all that do. Trainers that come here as often as trainer 0 from the same place in the script,
    but with another directory, each have one of their own: what they do there is ``in_own``.
    """
    if peers.trainers == 1:
        do()
        return
    action = f"{verb} {directory / (name or '')}"
    place = f"{verb} {name or ''} {_place_in_script()}"
    named, placed = _key(action), _key(f"{place} {_calls[place]}")
    _calls[place] += 1
    if peers.trainer == 0:
        peers.announce(BEGUN)
        outcome = ""
        try:
            do()
        except BaseException as error:
            outcome = str(error) or repr(error)
            raise
        finally:
            peers.announce(f"{named} {placed} {outcome}".encode()[:ANNOUNCED])
        return
    call, heard = _calls[action], _outcomes.setdefault(named, [])
    _calls[action] += 1
    deadlines = 1
    while len(heard) <= call and placed not in _outcomes:
        message = peers.hear(f"waiting for trainer 0 to {action}", deadlines)
        if message is None:
            logger.warning("trainer 0 died before it could %s", action)
            return
        if message == BEGUN:
            deadlines = PATIENCE
            continue
        deadlines = 1
        *keys, outcome = message.decode(errors="replace").split(" ", 2)
        for key in keys:
            _outcomes.setdefault(key, []).append(outcome)
    already_heard = len(heard) > call
    outcome = heard[call] if already_heard else _outcomes[placed][0]
    if outcome:
        raise CheckpointError(f"trainer 0: {outcome}")
    if not already_heard:
        in_own()


def _key(action: str) -> str:
    return xxhash.xxh3_128_hexdigest(action.encode())


def _place_in_script() -> str:
    """Return the lines that are being run, but for those of this package, innermost first."""
    package = __name__.partition(".")[0]
    lines, frame = [], inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != package:
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back
    return " ".join(lines)

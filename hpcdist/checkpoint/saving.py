"""Saving: every writer writes one file, then the manifest joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.checks import checked_path, integer
from hpcdist.base.errors import CheckpointError, GraphTypeError, HpcdistError, NotFiniteError
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.recorder import recorder
from hpcdist.checkpoint import lock
from hpcdist.checkpoint.attempt import AttemptTarget, complete, new_target, request
from hpcdist.checkpoint.background import Background
from hpcdist.checkpoint.checkpoint import drop_attempts, drop_unfinished, prune
from hpcdist.checkpoint.directories import directory_of
from hpcdist.checkpoint.job import Peers, job_here
from hpcdist.checkpoint.kept import Kept
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.local import Content, Label
from hpcdist.checkpoint.one_file import check_possible, write_together
from hpcdist.checkpoint.ranks import peers_here, together, with_the_living
from hpcdist.checkpoint.recent import note
from hpcdist.checkpoint.resume_state import Reading, trainer_state
from hpcdist.checkpoint.serving import FINITE, write_or_say
from hpcdist.checkpoint.trainer_shares import shares_of

_background = Background()
_memory: dict[str, np.ndarray] = {}  # of snapshots


@recorder.span(EventKind.CHECKPOINT, "save a checkpoint")
@with_the_living
def save(
    kept: Kept,
    dirname: str | Path,
    step: int,
    *,
    reader: Reading | None = None,
    extra: object = None,
    keep: int | None = None,
    compression: str | None = None,
    asynchronous: bool = False,
    single_file: bool = False,
    finite: bool = False,
) -> Path:
    """Save the whole job after a step; return the directory of the checkpoint, below ``dirname``.

    Every trainer calls this after the same step (servers are asked, and save beside each other).
    Saved are the shards of ``kept`` and what servers keep, the position of ``reader``, random
    numbers, and ``extra``. The options are those of `hpcdist.checkpoint.save`. With ``finite`` it
    is a NotFiniteError if parameters, or their optimizer state, are not. Raises CheckpointError, on
    all trainers, if it cannot be saved: older checkpoints stay.
    """
    peers = kept.peers
    wait()
    checked_path("dirname", dirname)
    step = integer("step", step, 0, errors=(GraphTypeError, CheckpointError))
    if single_file:
        check_possible(peers.group, asynchronous=asynchronous, compression=compression)
    note(dirname)
    settled = together(peers, lambda: (kept.settle(), lock.job_name()))
    counted = settled[peers.trainer][0]
    lock.job_name(agreed=settled[0][1])  # whoever is trainer 0 when this one has died

    def begin() -> Any:
        kept.catch_up()
        target = None
        if peers.trainer == 0:
            lock.take(Path(dirname))
            target = new_target(directory_of(dirname, step), MANIFEST, keep)
        return [target, trainer_state(kept.streams(), reader, counted), kept.fingerprint]

    begun = together(peers, begin)
    target = AttemptTarget(*begun[0][0])
    states = [state for _, state, _ in begun]
    # What trainers of the same servers keep may differ in the trainer's number.
    label = Label(f"trainer {peers.trainer}", step, begun[0][2])
    shards = kept.shards()
    shares = shares_of(shards, peers.trainers, peers.servers)
    tables = shards.tables  # without servers, each trainer's rows of them
    writers = [k for k, share in enumerate(shares) if share or tables or not (k or peers.servers)]
    content = Content(shares[peers.trainer], kept.values, tables)
    if finite:
        _check_finite(peers, content, target)
    joint = single_file and peers.group is not None
    awaited = _awaited(target, peers, writers, joint)
    path = target.path("trainer", peers.trainer, peers.trainers)

    def write() -> None:
        if joint and not peers.servers:
            write_together(awaited[0], content, label, peers.group)
        elif path in awaited:
            write_or_say(content, path, label, compression)

    def finish() -> None:
        if peers.trainer == 0:
            lock.check(Path(dirname))
            described = kept.described
            complete(target, awaited, peers.deadline_s, states, extra, described=described)
            if keep is not None:
                prune(dirname, keep, step)

    def ask() -> None:
        if peers.trainer == 0 and peers.servers:
            peers.ask(request(target, label, compression, asynchronous, single_file))

    def ask_and_write() -> None:
        ask()
        write()

    def write_and_finish() -> None:
        write()
        finish()

    def give_up() -> None:
        if peers.trainer == 0:  # make room
            drop_attempts(Path(target.directory), target.attempt + 1)

    if asynchronous:
        together(peers, ask)
        if path in awaited:
            content.snapshot(_memory)
        _background.start(write_and_finish, give_up, job_here())
        return Path(target.directory)
    try:
        together(peers, ask_and_write)
        together(peers, finish)
    except CheckpointError:
        give_up()
        if peers.trainer == 0:
            drop_unfinished(Path(target.directory))
        raise
    return Path(target.directory)


def wait() -> None:
    """Wait until what `save` writes beside training is on disk. Every trainer calls this.

    Raises CheckpointError, on all trainers, if it could not be written on one: older checkpoints
    stay, and training can continue.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> path = fluid.checkpoint.save(exe, tempfile.mkdtemp(), 7, asynchronous=True)
        >>> fluid.checkpoint.wait()
        >>> path.name, fluid.checkpoint.busy()
        ('step-000007', False)
    """
    job = _background.job
    result = cache(_background.result)  # which tells of an error once
    if job is not None and job is job_here():
        _agree(result)
    elif (error := result()) is not None and job is None:
        raise error  # that of a job which others have left by dying has been told


@with_the_living
def _agree(result: Callable[[], HpcdistError | None]) -> None:
    def local_error() -> None:
        if (error := result()) is not None:
            raise error

    together(peers_here(), local_error)


def busy() -> bool:
    """Return whether this rank is writing a checkpoint beside training.

    >>> busy()
    False
    """
    return _background.busy


def _check_finite(peers: Peers, content: Content, target: AttemptTarget) -> None:
    """Raise the same NotFiniteError on all trainers if parameters are not finite on some rank."""

    def look() -> list[Any]:
        culprits = [(f"trainer {peers.trainer}", content.not_finite())]
        if peers.trainer == 0:
            answers = peers.ask({"do": FINITE})
            culprits += [(f"server {k}", name) for k, name in enumerate(answers)]
        return [[rank_name, name] for rank_name, name in culprits if name is not None]

    for rank_name, name in (culprits for ranks in together(peers, look) for culprits in ranks):
        if peers.trainer == 0:
            drop_unfinished(Path(target.directory))
        raise NotFiniteError(f"{rank_name}: {name!r} holds NaN or infinity")


def _awaited(
    target: AttemptTarget, peers: Peers, writers: Sequence[int], joint: bool
) -> list[Path]:
    """Return the files that a checkpoint will have; ``joint``: servers, or else trainers, one."""
    servers = [target.path("server", k, peers.servers) for k in range(peers.servers)]
    trainers = [target.path("trainer", k, peers.trainers) for k in writers]
    if joint and servers:
        servers = [target.path("server", None, peers.servers)]
    elif joint:
        trainers = [target.path("trainer", None, peers.trainers)]
    return servers + trainers

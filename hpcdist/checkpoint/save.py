"""Saving: every writer its own file, then the manifest that joins them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.checkpoint import lock
from hpcdist.checkpoint.background import Background
from hpcdist.checkpoint.checkpoint import (
    begin_step,
    directory_of,
    drop_attempts,
    drop_unfinished,
    finish_step,
    next_attempt,
    prune,
)
from hpcdist.checkpoint.layout import MANIFEST, path_of
from hpcdist.checkpoint.local import Content, Label
from hpcdist.checkpoint.local_shards import (
    Held,
    individual,
    individually,
    tables_of,
    whole_variables,
)
from hpcdist.checkpoint.manifest import check_names, joined, part_name, write_manifest
from hpcdist.checkpoint.metadata import Manifest, Part, PartFile
from hpcdist.checkpoint.one_file import check_possible, write_together
from hpcdist.checkpoint.plan import shares
from hpcdist.checkpoint.ranks import peers_here, together, with_the_living
from hpcdist.checkpoint.read import StoredFile
from hpcdist.checkpoint.recent import note
from hpcdist.checkpoint.resume_state import Resumable, own_state
from hpcdist.checkpoint.rows import inference_runs
from hpcdist.checkpoint.serving import FINITE, SAVE, failure_words, write_or_say
from hpcdist.errors import CheckpointError, HpcdistError, NotFiniteError
from hpcdist.executor import control
from hpcdist.executor.control import Peers
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program, default_main_program
from hpcdist.ops.common import in_sequence
from hpcdist.ps.table import SparseTable

POLL_S = 0.02

_background = Background()
_memory: dict[str, np.ndarray] = {}  # of snapshots


@dataclass(frozen=True)
class Target:
    """Where an attempt at a checkpoint goes."""

    directory: str
    attempt: int
    manifest: str = MANIFEST

    def path(self, kind: str, index: int | None, count: int) -> Path:
        """Return the file of a writer; without ``index``, the file that all write."""
        name = part_name(kind, index, count, self.attempt, self.manifest)
        return Path(self.directory) / name


def fingerprint(program: Program) -> str:
    """Return a digest that is equal for Programs that compute the same."""
    return hashlib.sha256(exact_text(program).encode()).hexdigest()


@with_the_living
def save(
    executor: Executor,
    dirname: str | Path,
    step: int,
    main_program: Program | None = None,
    *,
    reader: Resumable | None = None,
    extra: Any = None,
    keep: int | None = None,
    compression: str | None = None,
    asynchronous: bool = False,
    single_file: bool = False,
    finite: bool = False,
    scope: Scope | None = None,
) -> Path:
    """Save the whole job after a step; return the directory of the checkpoint, below ``dirname``.

    Every trainer calls this after the same step (servers are asked, and save beside each other).
    Saved are the persistable variables of ``main_program`` and what servers keep for it, the
    position of ``reader``, random numbers, and ``extra``, plain data of trainer 0. When it
    returns, the checkpoint is whole and on disk. With ``asynchronous`` only a copy has been made:
    the write goes on beside training, and `wait` tells when it is done; an error comes then, or at
    the next `save`. ``keep`` is how many checkpoints stay. ``compression``: None, "lz4", "zstd".
    With ``single_file`` all servers, or without servers all trainers, write one file together:
    that needs an h5py that was built with MPI.
    With ``finite`` it is a NotFiniteError if parameters, or their optimizer state, are not.
    Raises CheckpointError, on all trainers, if it cannot be saved: older checkpoints stay.
    """
    peers = peers_here()
    wait()
    main = main_program if main_program is not None else default_main_program()
    program = peers.program(main)
    scope = scope if scope is not None else global_scope()
    if step < 0:
        raise CheckpointError(f"step: expected a number of at least 0, got {step}")
    if single_file:
        check_possible(peers.group, asynchronous=asynchronous, compression=compression)
    note(dirname)
    counted = together(peers, lambda: peers.settle(program))[peers.trainer]

    def begin() -> Any:
        peers.catch_up(program)
        target = None
        if peers.trainer == 0:
            lock.take(Path(dirname))
            target = _new_target(directory_of(dirname, step), MANIFEST, keep)
        return [target, lock.job_name(), own_state(executor, reader, counted)]

    begun = together(peers, begin)
    target = Target(*begun[0][0])
    lock.job_name(agreed=begun[0][1])  # whoever is trainer 0 when this one has died
    states = [state for _, _, state in begun]
    label = Label(f"trainer {peers.trainer}", step, fingerprint(main))
    shares = _shares_of(peers, program, scope)
    writers = [k for k, share in enumerate(shares) if share or not (k or peers.servers)]
    content = Content(shares[peers.trainer], scope, tables_of(program, scope))
    if finite:
        _check_finite(peers, content, target)
    joint = single_file and peers.group is not None
    awaited = _awaited(target, peers, writers, joint)
    own = target.path("trainer", peers.trainer, peers.trainers)

    def write() -> None:
        if joint and not peers.servers:
            write_together(awaited[0], content, label, peers.group)
        elif own in awaited:
            write_or_say(content, own, label, compression)

    def finish() -> None:
        if peers.trainer == 0:
            lock.check(Path(dirname))
            _finish(target, awaited, peers.deadline_s, states, extra)
            if keep is not None:
                prune(dirname, keep, step)

    def ask() -> None:
        if peers.trainer == 0 and peers.servers:
            peers.ask(_request(target, label, compression, asynchronous, single_file))

    def give_up() -> None:
        if peers.trainer == 0:  # make room
            drop_attempts(Path(target.directory), target.attempt + 1)

    if asynchronous:
        together(peers, ask)
        if own in awaited:
            content.snapshot(_memory)
        _background.start(in_sequence([write, finish]), give_up, control.installed())
        return Path(target.directory)
    try:
        together(peers, in_sequence([ask, write]))
        together(peers, finish)
    except CheckpointError:
        give_up()
        raise
    return Path(target.directory)


def wait() -> None:
    """Wait until what `save` writes beside training is on disk. Every trainer calls this.

    Raises CheckpointError, on all trainers, if it could not be written on one: older checkpoints
    stay, and training can go on.
    """
    job = _background.job
    error = _background.result()
    if job is not None and job is control.installed():
        _agree(error)
    elif error is not None:
        raise error


@with_the_living
def _agree(error: HpcdistError | None) -> None:
    def mine() -> None:
        if error is not None:
            raise error

    together(peers_here(), mine)


def busy() -> bool:
    """Tell whether a checkpoint is being written beside training."""
    return _background.busy


def save_alone(
    directory: Path,
    manifest: str,
    held: Sequence[Held],
    scope: Scope | None,
    program: str,
    *,
    tables: Sequence[SparseTable] = (),
    extra: Any = None,
    compression: str | None = None,
) -> None:
    """Save variables of this process, with no other rank taking part."""
    check_names([h.piece.name for h in held])
    target = Target(*_new_target(directory, manifest, None))
    own = []
    if held or tables:
        own = [target.path("trainer", 0, 1)]
        label = Label("trainer 0", 0, program)
        Content(held, scope or Scope(), tables).write(own[0], label, compression)
    _finish(target, own, 0.0, (), extra, program)


def save_by_servers(
    peers: Peers,
    directory: Path,
    manifest: str,
    main: Program,
    compression: str | None = None,
) -> None:
    """Save what servers have, and trainer 0 beside it, which alone calls this."""
    program, scope = peers.program(main), global_scope()
    target = Target(*_new_target(directory, manifest, None))
    label = Label("trainer 0", 0, fingerprint(main))
    peers.ask(_request(target, label, compression))
    own = target.path("trainer", 0, 1)
    Content(_own_variables(peers, program, scope), scope).write(own, label, compression)
    awaited = [target.path("server", k, peers.servers) for k in range(peers.servers)]
    _finish(target, [*awaited, own], peers.deadline_s, (), None)


def save_rows(
    peers: Peers,
    directory: Path,
    manifest: str,
    held: Sequence[Held],
    scope: Scope,
    program: str,
    tables: Sequence[str],
) -> None:
    """Save some variables, and the rows of ``tables`` from where they are, to be looked up there.

    Trainer 0 alone calls this. The rows are the servers', if there are any, else this process's.
    """
    check_names([*(h.piece.name for h in held), *tables])
    here = [] if peers.servers else [_table(name) for name in tables]
    target = Target(*_new_target(directory, manifest, None))
    label = Label("trainer 0", 0, program)
    peers.ask({**_request(target, label, None), "rows_of": list(tables)})
    own = target.path("trainer", 0, 1)
    Content(held, scope, here, inference_runs).write(own, label)
    awaited = [target.path("server", k, peers.servers) for k in range(peers.servers)]
    _finish(target, [*awaited, own], peers.deadline_s, (), None)


def _table(name: str) -> SparseTable:
    found = global_scope().find_var(name)
    if found is None or not isinstance(found.value, SparseTable):
        raise CheckpointError(
            f"table {name!r} has no rows in this scope: run the startup program first"
        )
    return found.value


# -- the steps of it -------------------------------------------------------------------------------
def _new_target(directory: Path, manifest: str, keep: int | None) -> list[Any]:
    if keep is not None and keep < 1:
        raise CheckpointError(f"keep: expected at least 1 checkpoint, got {keep}")
    try:
        begin_step(directory)
        return [str(directory), next_attempt(directory, manifest), manifest]
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be made: {error.strerror}") from None


def _request(
    target: Target,
    label: Label,
    compression: str | None,
    asynchronous: bool = False,
    single_file: bool = False,
) -> dict[str, Any]:
    """Return what servers are told that are to save."""
    return {
        "do": SAVE,
        "directory": str(Path(target.directory).resolve()),
        "manifest": target.manifest,
        "attempt": target.attempt,
        "step": label.step,
        "program": label.program,
        "compression": compression,
        "asynchronous": asynchronous,
        "single_file": single_file,
    }


def _check_finite(peers: Peers, content: Content, target: Target) -> None:
    """Raise the same NotFiniteError on all trainers if parameters are not finite on some rank."""

    def look() -> list[Any]:
        found = [(f"trainer {peers.trainer}", content.not_finite())]
        if peers.trainer == 0:
            answers = peers.ask({"do": FINITE})
            found += [(f"server {k}", name) for k, name in enumerate(answers)]
        return [[who, name] for who, name in found if name is not None]

    for who, name in (found for ranks in together(peers, look) for found in ranks):
        if peers.trainer == 0:
            drop_unfinished(Path(target.directory))
        raise NotFiniteError(f"{who}: {name!r} holds NaN or infinity")


def _awaited(target: Target, peers: Peers, writers: Sequence[int], joint: bool) -> list[Path]:
    """Return the files that a checkpoint will have; ``joint``: servers, or else trainers, one."""
    servers = [target.path("server", k, peers.servers) for k in range(peers.servers)]
    trainers = [target.path("trainer", k, peers.trainers) for k in writers]
    if joint and servers:
        servers = [target.path("server", None, peers.servers)]
    elif joint:
        trainers = [target.path("trainer", None, peers.trainers)]
    return servers + trainers


def _own_variables(peers: Peers, program: Program, scope: Scope) -> list[Held]:
    """Return the variables that trainers hold whole, and no server has."""
    held = whole_variables(program, scope)
    overview = program.distribution.records if peers.servers else None
    elsewhere = set()
    if overview is not None:
        elsewhere = {record.origin.name for record in overview.distributed_vars}
    check_names([h.piece.name for h in held] + list(elsewhere))
    return [h for h in held if h.piece.name not in elsewhere]


def _shares_of(peers: Peers, program: Program, scope: Scope) -> list[list[Held]]:
    """Return what each trainer writes: what all have alike once, and what each has of its own.

    With servers trainer 0 writes what all have alike, without them each a share. Of what each has
    of its own trainer 0's stands under the plain name, unless that is the servers'.
    """
    every = whole_variables(program, scope)
    held = _own_variables(peers, program, scope)
    own = individual(program)
    alike = [h for h in held if h.local not in own]
    found: list[list[Held]] = [[] for _ in range(peers.trainers)]
    if peers.servers or peers.trainers == 1:
        found[0] += alike
    else:
        by_name = {h.piece.name: h for h in alike}
        for k, rows in enumerate(_shares(alike, peers.trainers)):
            for name, begin, end in rows:
                piece = replace(by_name[name].piece, begin=begin, end=end, path=path_of(name))
                found[k].append(Held(name, piece))
    plain = {h.local for h in held}
    for k, share in enumerate(found):
        for h in every:
            if h.local in own:
                share.append(individually(h, k) if k or h.local not in plain else h)
    return found


def _shares(held: Sequence[Held], writers: int) -> list[list[tuple[str, int, int]]]:
    shapes = {h.piece.name: h.piece.whole for h in held}
    sizes = {h.piece.name: np.dtype(h.piece.dtype).itemsize for h in held}
    return shares(shapes, sizes, writers)


def _finish(
    target: Target,
    awaited: Sequence[Path],
    deadline_s: float,
    states: Sequence[Any],
    extra: Any,
    program: str = "",
) -> None:
    """Wait for all parts, then write the manifest; ``program`` is for one without parts."""
    parts = [_await(path, deadline_s) for path in awaited]
    directory = Path(target.directory)
    manifest = Manifest(0, program, extra=extra)
    if parts:
        manifest = joined(_without_repeats(parts), states, extra)
    write_manifest(directory / target.manifest, manifest)
    finish_step(directory)
    drop_attempts(directory, target.attempt, target.manifest)


def _await(path: Path, deadline_s: float) -> tuple[PartFile, Part]:
    """Wait until a writer's file is there under its name: then it is whole."""
    began = time.monotonic()
    while not path.exists():
        if (failure := failure_words(path)) is not None:
            raise CheckpointError(failure)
        if time.monotonic() - began > deadline_s:
            raise CheckpointError(
                f"{path}: has not come within {deadline_s:g} s: the checkpoint is not saved; all "
                "ranks must see the same directory"
            )
        time.sleep(POLL_S)
    with StoredFile(path) as file:
        assert isinstance(file.facts, Part)
        return PartFile(path.name, file.head.file_bytes, file.head.facts), file.facts


def _without_repeats(parts: list[tuple[PartFile, Part]]) -> list[tuple[PartFile, Part]]:
    """Let a variable that several writers have alike be that of the first of them."""
    seen: set[Any] = set()
    kept = []
    for file, part in parts:
        pieces = []
        for piece in part.pieces:
            key = (piece.name, piece.begin, piece.end, piece.copy)
            if key not in seen:
                pieces.append(piece)
            seen.add(key)
        kept.append((file, replace(part, pieces=tuple(pieces))))
    return kept

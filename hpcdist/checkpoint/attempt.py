"""One attempt at a checkpoint: where its files go, what servers are asked, and its manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.checkpoint import begin_step, drop_attempts, finish_step, next_attempt
from hpcdist.checkpoint.described import Described
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.local import Label
from hpcdist.checkpoint.manifest import joined, part_name, write_manifest
from hpcdist.checkpoint.metadata import Manifest, Part, PartFile
from hpcdist.checkpoint.read import StoredFile
from hpcdist.checkpoint.serving import SAVE, failure_words

POLL_S = 0.02


@dataclass(frozen=True)
class AttemptTarget:
    """Where an attempt at a checkpoint goes."""

    directory: str
    attempt: int
    manifest: str = MANIFEST

    def path(self, kind: str, index: int | None, count: int) -> Path:
        """Return the file of a writer; without ``index``, the file that all write."""
        name = part_name(kind, index, count, self.attempt, self.manifest)
        return Path(self.directory) / name


def new_target(directory: Path, manifest: str, keep: int | None) -> list[Any]:
    """Make the directory of a step; return the fields of an `AttemptTarget` that nobody wrote to.

    One process calls it, for all writers. CheckpointError if ``keep`` is below 1, or the directory
    cannot be made.
    """
    if keep is not None and keep < 1:
        raise CheckpointError(f"keep: expected at least 1 checkpoint, got {keep}")
    try:
        begin_step(directory)
        return [str(directory), next_attempt(directory, manifest), manifest]
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be made: {error.strerror}") from None


@contextmanager
def attempting(target: AttemptTarget) -> Iterator[None]:
    """Leave nothing of an attempt that fails: what an earlier one has saved stays."""
    try:
        yield
    except BaseException:
        drop_attempts(Path(target.directory), target.attempt + 1, target.manifest)
        raise


def request(
    target: AttemptTarget,
    label: Label,
    compression: str | None,
    asynchronous: bool = False,
    single_file: bool = False,
) -> dict[str, Any]:
    """Return the request to the servers that are to save."""
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


def complete(
    target: AttemptTarget,
    awaited: Sequence[Path],
    deadline_s: float,
    states: Sequence[Any],
    extra: object,
    program: str = "",
    described: Described | None = None,
) -> None:
    """Wait for all parts, then write the manifest; ``program`` is for one without parts."""
    parts = [_await(path, deadline_s) for path in awaited]
    directory = Path(target.directory)
    manifest = Manifest(0, program, extra=extra)
    if parts:
        manifest = joined(_without_repeats(parts), states, extra)
        manifest = replace(manifest, described=described)
    write_manifest(directory / target.manifest, manifest)
    finish_step(directory)
    drop_attempts(directory, target.attempt, target.manifest)


def _await(path: Path, deadline_s: float) -> tuple[PartFile, Part]:
    """Wait until a writer's file is there under its name: then it is complete."""
    began = time.monotonic()
    while not path.exists():
        if (failure := failure_words(path)) is not None:
            raise CheckpointError(failure)
        if time.monotonic() - began > deadline_s:
            raise CheckpointError(
                f"{path}: did not appear within {deadline_s:g} s, so the checkpoint is not saved; "
                "all ranks must see the same directory"
            )
        time.sleep(POLL_S)
    with StoredFile(path) as file:
        assert isinstance(file.facts, Part)
        return PartFile(path.name, file.head.file_bytes, file.head.facts), file.facts


def _without_repeats(parts: list[tuple[PartFile, Part]]) -> list[tuple[PartFile, Part]]:
    """Keep only the first writer's copy of a variable that several writers have."""
    seen: set[object] = set()
    unrepeated = []
    for file, part in parts:
        pieces = []
        for piece in part.pieces:
            key = (piece.name, piece.begin, piece.end, piece.copy)
            if key not in seen:
                pieces.append(piece)
            seen.add(key)
        unrepeated.append((file, replace(part, pieces=tuple(pieces))))
    return unrepeated

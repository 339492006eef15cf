"""A checkpoint open for reading, and the directory that contains it."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.base.replaced import TEMPORARY, make_folders, sync_directory
from hpcdist.checkpoint.directories import (
    PRUNED,
    STEP,
    UNFINISHED,
    left_over,
    steps,
)
from hpcdist.checkpoint.files import open_plain
from hpcdist.checkpoint.layout import HEAD_BYTES, MAGIC, MANIFEST
from hpcdist.checkpoint.manifest import prefix_of
from hpcdist.checkpoint.metadata import Manifest, Part
from hpcdist.checkpoint.plan import Saved, copy_for, reads_of, variables_of
from hpcdist.checkpoint.read import Job, StoredFile, run

logger = logging.getLogger("hpcdist.checkpoint")
_LEFT = re.compile(rf"({TEMPORARY}|\.tmp)$")  # of files that a crash has left incomplete
_PART = re.compile(r"(?:(?:server|trainer)-\d+|servers|trainers)-of-\d+\.(\d+)\.h5(?:\.failed)?")


class Checkpoint:
    """All files of one checkpoint, open; `with` closes them.

    ``path`` is its directory, or its manifest. Raises CheckpointError if anything but the data
    itself is missing, damaged or foreign; data is checked when it is read.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> path = fluid.checkpoint.save(exe, tempfile.mkdtemp(), 7)
        >>> with fluid.checkpoint.Checkpoint(path) as saved:
        ...     print({name: one.shape for name, one in saved.variables.items()})
        {'fc_0.w_0': (3, 1), 'fc_0.b_0': (1,)}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        manifest = self.path / MANIFEST if self.path.is_dir() else self.path
        if not os.path.lexists(self.path):
            raise CheckpointError(f"{self.path}: there is no such file or directory")
        if not os.path.lexists(manifest):
            raise CheckpointError(f"{self.path}: not a checkpoint (no {manifest.name})")
        with StoredFile(manifest) as file:
            if not isinstance(file.facts, Manifest):
                raise CheckpointError(
                    f"{manifest} is a single part of a checkpoint: give its directory or its "
                    "manifest"
                )
            self.facts: Manifest = file.facts
        self.manifest = manifest
        self.variables: dict[str, Saved] = variables_of(self.facts.pieces, str(manifest))
        self.files: list[StoredFile] = []
        try:
            for part in self.facts.files:
                part_path = manifest.parent / part.file
                if not os.path.lexists(part_path):
                    raise CheckpointError(f"{part_path}: missing; {manifest} needs it")
                self.files.append(StoredFile(part_path, part.facts))
            self._check_parts()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()

    @property
    def step(self) -> int:
        """The step that was saved."""
        return self.facts.step

    def has(self, name: str) -> bool:
        """Return whether a variable was saved."""
        return name in self.variables

    def saved(self, name: str) -> Saved:
        """Return the facts of a variable; CheckpointError if it was not saved."""
        variable = self.variables.get(name)
        if variable is None:
            raise CheckpointError(
                f"{self.manifest}: has no variable {name!r}; it has {_some(list(self.variables))}"
            )
        return variable

    def jobs(self, name: str, begin: int, end: int, out: np.ndarray) -> list[Job]:
        """Return calls that fill ``out`` with rows ``begin:end`` of a variable.

        ``out`` [end - begin, ...] must have the variable's dtype and row shape: CheckpointError
        otherwise.
        """
        saved = self.saved(name)
        self._check_fit(saved, (end - begin, *saved.shape[1:]), out, begin)
        if saved.copies:
            return [lambda: self._read_copies(saved.copies, out)]
        jobs = []
        for read in reads_of(saved, self.facts.pieces, begin, end):
            target = out[read.at : read.at + read.end - read.begin]
            path = self.facts.pieces[read.piece].path
            jobs += self._home(read.piece).jobs(path, read.begin, read.end, target)
        return jobs

    def copy_jobs(self, name: str, begin: int, end: int, out: np.ndarray) -> list[Job]:
        """Return calls that fill ``out`` with the copy that belongs to a parameter's rows.

        Where no block had just these rows, it is the least of all copies: beta powers only fall, so
        that is the one that counted most steps.
        """
        saved = self.saved(name)
        if not saved.copies:
            return self.jobs(name, 0, saved.shape[0], out)
        self._check_fit(saved, saved.shape, out)
        copy = copy_for(saved, self.facts.pieces, begin, end)
        return [lambda: self._read_copies(saved.copies if copy is None else (copy,), out)]

    def read(self, name: str) -> np.ndarray:
        """Return a whole variable.

        Returns an array of the shape and dtype in the manifest; CheckpointError if it is missing or
        damaged.
        """
        saved = self.saved(name)
        out = np.empty(saved.shape, saved.dtype)
        run(self.jobs(name, 0, saved.shape[0], out))
        return out

    def check_data(self) -> None:
        """Compare all data with its checksums."""
        run([job for file in self.files for job in file.check_data()])

    def _check_fit(
        self, saved: Saved, shape: tuple[int, ...], out: np.ndarray, begin: int = 0
    ) -> None:
        rows_fit = begin + shape[0] <= saved.shape[0]
        if not rows_fit or out.shape != shape or out.dtype.name != saved.dtype:
            raise CheckpointError(
                f"{self.manifest}: {saved.name!r} is {saved.dtype}{list(saved.shape)}, expected "
                f"{out.dtype.name}{list(out.shape)}"
                + (f" from row {begin} on" if begin else "")
                + ": the program differs from the one that was saved"
            )

    def _read_copies(self, copies: Sequence[int], out: np.ndarray) -> None:
        arrays = [np.empty_like(out) for _ in copies]
        for i, copy in zip(copies, arrays):
            for job in self._home(i).jobs(self.facts.pieces[i].path, 0, len(out), copy):
                job()
        np.copyto(out, np.minimum.reduce(arrays))

    def _home(self, piece: int) -> StoredFile:
        return self.files[self.facts.homes[piece]]

    def _check_parts(self) -> None:
        """Check that all that the manifest names is in its part, of its shape."""
        facts = self.facts
        for file in self.files:
            if not isinstance(file.facts, Part):
                raise CheckpointError(f"{file.path}: expected a part of a checkpoint")
        for piece, home in zip(facts.pieces, facts.homes):
            self._check_dataset(home, piece.path, piece.shape, piece.dtype)
        for table, home in zip(facts.tables, facts.table_homes):
            for name, dtype, shape in table.datasets:
                self._check_dataset(home, f"{table.path}/{name}", shape, dtype)

    def _check_dataset(self, home: int, path: str, shape: tuple[int, ...], dtype: str) -> None:
        stored = self.files[home].stored(path)
        if (stored.shape, stored.dtype) != (shape, dtype):
            raise CheckpointError(
                f"{self.files[home].path}: dataset {path!r} is {stored.dtype}"
                f"{list(stored.shape)}, but the manifest expects {dtype}{list(shape)}"
            )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:8])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 8 else shown or "none"


# -- a directory of checkpoints ----------------------------------------------------------------
def latest(root: str | Path) -> Path | None:
    """Return the directory of the newest checkpoint below ``root`` that can be read.

    None if there is none yet; CheckpointError if there are some, and none of them can be read. One
    that cannot is passed over with a warning. Data is only checked when it is read.

    Examples:
        >>> import tempfile
        >>> fluid.checkpoint.latest(tempfile.mkdtemp()) is None
        True
    """
    reasons = []
    for _, path in reversed(steps(root)):
        reason = unreadable(path)
        if reason is None:
            return path
        logger.warning("skipping a checkpoint that cannot be read: %s", reason)
        reasons.append(reason)
    if reasons:
        raise CheckpointError(
            f"{root}: has {len(reasons)} checkpoint{'s' * (len(reasons) > 1)}, none of which can "
            f"be read: {reasons[0]}: repair it, or move them away to start from scratch"
        )
    return None


def unreadable(path: Path) -> str | None:
    """Return why a checkpoint, found in a directory, cannot be read; None if it can be."""
    try:
        if path.is_symlink():
            raise CheckpointError(f"{path}: is a symbolic link, which is not followed")
        with Checkpoint(path):
            return None
    except CheckpointError as error:
        return str(error)


def next_attempt(directory: Path, manifest: str = MANIFEST) -> int:
    """Return a number that no part in ``directory`` has in its name."""
    used = [_attempt(path, manifest) for path in directory.iterdir()]
    return 1 + max(used, default=0)


def _attempt(path: Path, manifest: str) -> int:
    name = _LEFT.sub("", path.name)
    prefix = prefix_of(manifest)
    match = _PART.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return int(match[1]) if match else 0


def drop_attempts(directory: Path, before: int, manifest: str = MANIFEST) -> None:
    """Delete the parts of attempts before ``before``, except those that the manifest names.

    What cannot be deleted stays: a later save tries again.
    """
    try:
        needed = _needed(directory / manifest)
        for path in directory.iterdir():
            if 0 < _attempt(path, manifest) < before and path.name not in needed:
                path.unlink(missing_ok=True)
    except (CheckpointError, OSError) as error:
        logger.warning("%s: parts of older attempts stay: %s", directory, error)


def _needed(manifest: Path) -> set[str]:
    """Return the files of the checkpoint whose manifest this is; none if there is no manifest."""
    if not os.path.lexists(manifest):
        return set()
    with StoredFile(manifest) as file:
        facts = file.facts
    return {part.file for part in facts.files} if isinstance(facts, Manifest) else set()


def begin_step(directory: Path) -> None:
    """Make the directory of a checkpoint, which is `unfinished` until `finish_step`."""
    if not directory.exists():
        make_folders(directory)
        (directory / UNFINISHED).touch()


def drop_unfinished(directory: Path) -> None:
    """Remove the directory of a checkpoint that is not written after all."""
    with suppress(OSError):
        if os.listdir(directory) == [UNFINISHED]:
            shutil.rmtree(directory)


def finish_step(directory: Path) -> None:
    """Record that a checkpoint has its manifest."""
    with suppress(OSError):  # the manifest tells it too
        (directory / UNFINISHED).unlink(missing_ok=True)


def prune(root: str | Path, keep: int, saved: int) -> None:
    """Keep the newest ``keep`` checkpoints and that of step ``saved``; delete the others.

    What crashed saves have left before step ``saved`` goes too. A checkpoint that cannot be read is
    not deleted, and does not count.
    """
    newest = {saved}
    for step, path in reversed(steps(root)):
        if len(newest) < keep or step in newest:
            if unreadable(path) is None:
                newest.add(step)
        elif (reason := unreadable(path)) is None:
            _delete(path)
        else:
            logger.warning("not deleting a checkpoint that cannot be read: %s", reason)
    for path in Path(root).iterdir():
        match = STEP.fullmatch(path.name.removesuffix(PRUNED))
        if match and int(match[1]) < saved and left_over(path):
            shutil.rmtree(path, ignore_errors=True)


def _delete(path: Path) -> None:
    """Delete a checkpoint, wherever a crash may come; it stays if the disk refuses."""
    aside = path.with_name(path.name + PRUNED)  # under this name it is no checkpoint any more
    try:
        path.rename(aside)
        try:
            sync_directory(path.parent)
        except OSError:
            aside.rename(path)
            raise
    except OSError as error:
        logger.warning("%s: cannot be deleted: %s", path, error.strerror)
        return
    shutil.rmtree(aside, ignore_errors=True)


def is_checkpoint(path: Path) -> bool:
    """Return whether there is a file that begins as a checkpoint's files do."""
    if not path.is_file():
        return False
    with open_plain(path) as file:
        return bytes(file.read(HEAD_BYTES)).startswith(MAGIC.encode())

"""Where saved values come from: a checkpoint, or files of Fluid and Paddle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.checkpoint import Checkpoint, is_checkpoint
from hpcdist.checkpoint.fluid_files import Tensor, tensor_of, tensors_of
from hpcdist.checkpoint.layout import MANIFEST, path_of
from hpcdist.checkpoint.metadata import OTHER
from hpcdist.checkpoint.pickled import is_pickled, stored_arrays
from hpcdist.checkpoint.plan import Saved
from hpcdist.checkpoint.read import Job


class Source(Protocol):
    """Saved variables that can be read by rows."""

    manifest: Path

    def has(self, name: str) -> bool:
        """Return whether a variable was saved."""

    def saved(self, name: str) -> Saved:
        """Return the facts of a variable; CheckpointError if it was not saved."""

    def jobs(self, name: str, begin: int, end: int, out: np.ndarray) -> list[Job]:
        """Return calls that fill ``out`` with rows ``begin:end``; CheckpointError if unfit."""

    def copy_jobs(self, name: str, begin: int, end: int, out: np.ndarray) -> list[Job]:
        """Return calls that fill ``out`` with the copy that belongs to a parameter's rows."""


@dataclass(frozen=True)
class Pickled:
    """An array of a pickled file in memory, since it is text there: in place of a `Tensor`."""

    file: Path
    array: np.ndarray

    @property
    def dtype(self) -> str:
        """The element type."""
        return self.array.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.array.shape

    def read(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Return rows ``begin:end``."""
        return self.array[begin:end] if self.shape else self.array


class FluidFiles:
    """Variables that Fluid has saved: each in a separate file, or all of ``names`` in one.

    Also those of one pickled file, which has their names.
    """

    def __init__(self, directory: Path, filename: str | None, names: Sequence[str]) -> None:
        self.manifest = directory if filename is None else directory / filename
        self._directory = directory
        self._together: Mapping[str, Tensor | Pickled] | None = None
        if filename is not None and is_pickled(self.manifest):
            self._together = {
                name: found if isinstance(found, Tensor) else Pickled(self.manifest, found)
                for name, found in stored_arrays(self.manifest).items()
            }
        elif filename is not None:
            tensors = tensors_of(self.manifest.parent, self.manifest.name, len(names))
            self._together = dict(zip(sorted(names), tensors))

    def __enter__(self) -> FluidFiles:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing stays open."""

    def has(self, name: str) -> bool:
        """Return whether a variable was saved."""
        if self._together is not None:
            return name in self._together
        return (self._directory / path_of(name)).is_file()

    def _tensor(self, name: str) -> Tensor | Pickled:
        if self._together is not None and name in self._together:
            return self._together[name]
        if self._together is not None or not self.has(name):
            raise CheckpointError(f"{self.manifest}: has no variable {name!r}")
        return tensor_of(self._directory, path_of(name))

    def saved(self, name: str) -> Saved:
        """Return the facts of a variable; CheckpointError if it was not saved."""
        tensor = self._tensor(name)
        return Saved(name, OTHER, tensor.dtype, tensor.shape or (1,), ())

    def jobs(self, name: str, begin: int, end: int, out: np.ndarray) -> list[Job]:
        """Return calls that fill ``out`` with rows ``begin:end``; CheckpointError if unfit."""
        tensor, saved = self._tensor(name), self.saved(name)
        shape = (end - begin, *saved.shape[1:])
        if end > saved.shape[0] or out.shape != shape or out.dtype.name != saved.dtype:
            raise CheckpointError(
                f"{tensor.file}: {name!r} is {saved.dtype}{list(saved.shape)}, expected "
                f"{out.dtype.name}{list(out.shape)}: the program differs from the one saved"
            )
        if isinstance(tensor, Tensor) and out.flags.c_contiguous:
            return [partial(tensor.fill, out, begin)]
        if not tensor.shape:
            return [lambda: np.copyto(out, tensor.read().reshape(1))]
        return [lambda: np.copyto(out, tensor.read(begin, end))]

    def copy_jobs(self, name: str, begin: int, end: int, out: np.ndarray) -> list[Job]:
        """Return calls that fill ``out`` with the variable: there is one copy."""
        return self.jobs(name, 0, len(out), out)


def open_saved(
    directory: Path, filename: str | None, names: Sequence[str]
) -> AbstractContextManager[Checkpoint | FluidFiles]:
    """Open a saved directory, in whichever format; ``names`` are to be loaded."""
    manifest = directory / (filename or MANIFEST)
    if is_checkpoint(manifest):
        return Checkpoint(manifest)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: there is no such directory")
    if filename is not None and not manifest.is_file():
        raise CheckpointError(f"{manifest}: there is no such file")
    if filename is None and manifest.exists():
        return Checkpoint(manifest)  # which says what is wrong with it
    if filename is None and not any((directory / path_of(name)).is_file() for name in names):
        raise CheckpointError(
            f"{directory}: neither a checkpoint (no {MANIFEST}) nor files of Fluid's with the "
            "names of the variables"
        )
    return FluidFiles(directory, filename, names)

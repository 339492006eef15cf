"""One file that all writers write at the same time: HDF5 over MPI-IO.

Creating a dataset is collective in HDF5, so ranks first exchange what each will write. Then every
rank writes its data and checksums without waiting for others; one rank writes facts and head.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.base.hdf5 import h5py
from hpcdist.base.replaced import create_beside, take_place
from hpcdist.checkpoint.layout import FACTS, HEAD_BYTES
from hpcdist.checkpoint.local import Content, Label
from hpcdist.checkpoint.metadata import Part, Stored, from_json, to_json
from hpcdist.checkpoint.ranks import agreed
from hpcdist.checkpoint.write import finish, stored_at
from hpcdist.comm.base import Transport

PIECE_BYTES = 256 << 20  # of one call: MPI counts bytes in 32 bits
AWAITED = "the others' part of a file that all write"


def check_possible(group: Transport | None, *, asynchronous: bool, compression: str | None) -> None:
    """Raise CheckpointError, which says how to get it, if ranks cannot write one file here."""
    if not h5py.get_config().mpi:
        raise CheckpointError(
            "single_file=True needs an h5py that was built with MPI, which those of PyPI are not: "
            "docs/checkpoints.md says how to build one; or leave single_file out: a file for each "
            "writer restores on any number of ranks as well"
        )
    for option, requested in (
        ("asynchronous", asynchronous),
        ("compression", compression is not None),
    ):
        if requested:
            raise CheckpointError(
                f"single_file=True: all ranks write at the same time, which excludes {option}=: "
                "leave one of them out"
            )
    if group is not None and (group.tolerant or group.native is None):
        raise CheckpointError(
            "single_file=True: HDF5 cannot go on when a rank dies, so not under --with-ft: leave "
            "single_file out"
            if group.tolerant
            else "single_file=True: these ranks are not connected by MPI"
        )


def write_together(path: Path, content: Content, label: Label, group: Transport) -> None:
    """Write one part of a checkpoint by all ranks of ``group``: collective among them.

    Every rank gives its ``content``, with ``label.writer`` different on each. The file comes into
    being whole and on disk, or not at all: then CheckpointError on all ranks.
    """
    names = _agreed(group, lambda: "" if group.rank else _created(path))
    temporary = path.with_name(names[0])
    try:
        facts, offset, extents = _write(temporary, content, label, group)
        # Each host has its pages to sync to disk.
        _agreed(group, lambda: _on_disk(temporary))
        if group.rank == 0:
            _on_disk(temporary, lambda fd: finish(fd, facts, offset, extents))
            take_place(temporary, path)
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:  # HDF5 raises either when a disk is full
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    finally:
        if group.rank == 0:
            temporary.unlink(missing_ok=True)


def _created(path: Path) -> str:
    """Create the file that all will write, which HDF5 would create in place of a link too."""
    temporary, descriptor = create_beside(path)
    os.close(descriptor)
    return temporary.name


def _write(
    temporary: Path, content: Content, label: Label, group: Transport
) -> tuple[bytes, int, list[tuple[int, int]]]:
    """Write all but the head; return the facts, where they lie, and (offset, bytes) of data."""
    below = label.writer.replace(" ", "-")  # the group that this rank's datasets stand in
    planned = _agreed(group, lambda: _plan(content, label, below))
    file = h5py.File(
        temporary, "w", driver="mpio", comm=group.native, libver="v110", userblock_size=HEAD_BYTES
    )
    try:
        for path, shape, dtype, attrs in (entry for entries in planned for entry in entries):
            file.create_dataset(path, tuple(shape), dtype).attrs.update(attrs)
        written = _agreed(group, lambda: _write_local(file, content, label, below))
        part = _joined([_part_of(encoded) for encoded in written])
        facts = to_json(part)
        text = h5py.string_dtype("utf-8", len(facts))
        dataset = file.create_dataset(FACTS, (), text)
        if group.rank == 0:
            dataset[()] = np.array(facts, text)
        attrs = {"writer": part.writer, "step": part.step, "program": part.program}
        file.attrs.update({"content": "part of a checkpoint", **attrs})
        file.flush()
        offset = int(dataset.id.get_offset())
    finally:
        file.close()
    return facts, offset, [e for s in part.stored.values() for e in zip(s.offsets, s.sizes)]


def _plan(content: Content, label: Label, below: str) -> list[Any]:
    """Return (path, shape, dtype, attributes) of what this rank will write."""
    return [
        (f"{below}/{e.path}", e.array.shape, e.array.dtype.name, dict(e.attrs))
        for e in content.entries(label)[1]
    ]


def _write_local(file: Any, content: Content, label: Label, below: str) -> str:
    """Write this rank's arrays, waiting for nobody; return its facts as JSON."""
    finished, entries = content.entries(label)
    stored = {}
    for entry in entries:
        path = f"{below}/{entry.path}"
        stored[path] = write_array(file[path], entry.array)
    part = finished()
    pieces = [replace(piece, path=f"{below}/{piece.path}") for piece in part.pieces]
    tables = [replace(table, path=f"{below}/{table.path}") for table in part.tables]
    of_rank = replace(part, pieces=tuple(pieces), tables=tuple(tables), stored=stored)
    return to_json(of_rank).decode()


def write_array(dataset: Any, array: np.ndarray) -> Stored:
    """Write an array into a dataset of its shape; return where its bytes are in the file."""
    if not array.size:
        return stored_at(array, 0)
    rows = max(1, PIECE_BYTES // (array.nbytes // len(array)))
    for first in range(0, len(array), rows):
        dataset[first : first + rows] = array[first : first + rows]
    return stored_at(array, int(dataset.id.get_offset()))


def _part_of(encoded: str) -> Part:
    part = from_json(encoded.encode(), "what another rank has written")
    assert isinstance(part, Part)
    return part


def _joined(parts: Sequence[Part]) -> Part:
    """Return the facts of all ranks as those of one writer."""
    first, last = parts[0].writer, parts[-1].writer
    return Part(
        first if first == last else f"{first} to {last}",
        parts[0].step,
        parts[0].program,
        tuple(piece for part in parts for piece in part.pieces),
        tuple(table for part in parts for table in part.tables),
        {path: stored for part in parts for path, stored in part.stored.items()},
    )


def _on_disk(path: Path, write: Callable[[int], Any] | None = None) -> None:
    """Bring a file to disk, after what ``write`` does with its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if write is not None:
            write(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _agreed(group: Transport, compute: Callable[[], object]) -> list[Any]:
    """Do something on every rank of a group; return all results, or raise on all. Collective."""
    return agreed(lambda data: group.allgather_bytes(data, None, AWAITED), compute, "writer")

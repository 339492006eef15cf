"""One process's part of a checkpoint: writing its variables, and reading them back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.checkpoint import Checkpoint
from hpcdist.checkpoint.divided import SUMMED, Combined
from hpcdist.checkpoint.kept import SNAPSHOT, LocalPiece, StepCounter, Values
from hpcdist.checkpoint.manifest import part_entry_attrs, variable_attrs
from hpcdist.checkpoint.metadata import OPTIMIZER, PARAMETER, Part, PartFile, Piece, TablePart
from hpcdist.checkpoint.read import Job, run
from hpcdist.checkpoint.rows import (
    adapted,
    check_fits,
    check_order,
    metadata_as,
    runs_of,
    stretch,
)
from hpcdist.checkpoint.sources import Source
from hpcdist.checkpoint.write import Entry, write_part
from hpcdist.ps.batch import owners_of
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.table import SparseTable

Runs = Callable[[SparseTable], Iterator[tuple[TablePart, Any]]]
COPIED_BYTES = 16 << 20  # of an array that one thread copies in a row
LOADED_ROWS = 1 << 16  # rows of a table that are read at a time


@dataclass(frozen=True)
class Label:
    """What a writer writes on its part."""

    writer: str
    step: int
    program: str


class Content:
    """What a process is about to write: arrays as they are, or copied by `snapshot`."""

    def __init__(
        self,
        variables: Sequence[LocalPiece],
        values: Values,
        tables: Sequence[SparseTable] = (),
        runs: Runs = runs_of,
    ) -> None:
        """``runs`` says in which form the rows of tables are written."""
        self._runs_of = runs
        self._pieces = [h.piece for h in variables]
        self._arrays = [_piece_array(h, values) for h in variables]
        self._tables = tables
        self._runs: list[tuple[TablePart, Any]] | None = None

    def snapshot(self, memory: dict[str, np.ndarray]) -> None:
        """Copy everything, in a few threads; ``memory`` is kept from one snapshot to the next."""
        jobs = []
        for i, (piece, array) in enumerate(zip(self._pieces, self._arrays)):
            copy = memory.get(piece.path)
            if copy is None or copy.shape != array.shape or copy.dtype != array.dtype:
                copy = memory[piece.path] = np.empty(array.shape, array.dtype)
            jobs += _copies(array, copy)
            self._arrays[i] = copy
        run(jobs)
        self._runs = [
            (part, [_aside(table, array) for array in arrays])
            for table in self._tables
            for part, arrays in self._runs_of(table)
        ]

    def not_finite(self) -> str | None:
        """Return a parameter, or a piece of optimizer state, with NaN or infinity; None without."""
        for piece, array in zip(self._pieces, self._arrays):
            if piece.role in (PARAMETER, OPTIMIZER) and not _finite(array):
                return piece.name
        for table in self._tables:
            for first in range(0, len(table), LOADED_ROWS):
                _, *kept = table.export(first, first + LOADED_ROWS)
                rows, state = table.decoded(*kept)
                if not (_finite(rows) and _finite(state)):
                    return table.name
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of the variables."""
        return sum(array.nbytes for array in self._arrays)

    def write(self, path: Path, label: Label, compression: str | None = None) -> PartFile:
        """Write a part of a checkpoint."""
        return write_part(path, *self.entries(label), compression)

    def entries(self, label: Label) -> tuple[Callable[[], Part], Iterator[Entry]]:
        """Return the entries to write, and a function that describes them once all are written."""
        parts: list[TablePart] = []
        part = Part(label.writer, label.step, label.program, tuple(self._pieces))
        return lambda: replace(part, tables=tuple(parts)), self._entries(part, parts)

    def _entries(self, part: Part, tables: list[TablePart]) -> Iterator[Entry]:
        for piece, array in zip(self._pieces, self._arrays):
            yield Entry(piece.path, _on_host(array), part_entry_attrs(piece, part))
        runs: Any = self._runs
        if runs is None:
            runs = (run for table in self._tables for run in self._runs_of(table))
        for table, arrays in runs:
            tables.append(table)
            for (name, dtype, _), array in zip(table.datasets, arrays):
                role = PARAMETER if name in ("ids", "rows") else OPTIMIZER
                attrs = variable_attrs(table.name, role, dtype, part)
                yield Entry(f"{table.path}/{name}", array, attrs)


def _aside(table: SparseTable, array: np.ndarray) -> np.ndarray:
    """Return an array of a run, on the disk if that is where the table has its rows."""
    if table.tier is None or not array.size:
        return array
    copy = table.tier.space(array.shape, array.dtype)
    copy[...] = array
    return copy


def _piece_array(variable: LocalPiece, values: Values) -> Any:
    array = values.array_of(variable.local)
    if array is None:
        raise CheckpointError(
            f"variable {variable.local!r} has no value to be saved: run the startup program first"
        )
    piece = variable.piece
    if array.size == math.prod(piece.shape):
        return array.reshape(piece.shape)
    return array.reshape(piece.whole)[piece.begin : piece.end]  # this writer's share of the rows


def _finite(array: Any) -> bool:
    """Return whether all elements are finite; numpy's functions act where the array is."""
    if array.dtype.kind != "f" or not array.size:
        return True
    rows = max(1, COPIED_BYTES * len(array) // array.nbytes)
    return all(
        bool(np.isfinite(array[first : first + rows]).all()) for first in range(0, len(array), rows)
    )


def _on_host(array: object) -> np.ndarray:
    return np.ascontiguousarray(on_host(array))


def _copies(array: Any, out: np.ndarray) -> list[Job]:
    """Return calls that together copy an array; what is on a GPU is copied at once."""
    if not isinstance(array, np.ndarray):
        array.get(out=out)
        return []
    rows = max(1, COPIED_BYTES * len(array) // max(1, array.nbytes))
    pieces = [slice(first, first + rows) for first in range(0, len(array), rows)]
    return [partial(np.copyto, out[piece], array[piece]) for piece in pieces]


# -- taking up -------------------------------------------------------------------------------------
def load_shards(checkpoint: Source, variables: Sequence[LocalPiece], values: Values) -> None:
    """Overwrite variables with their saved values, in place: nothing is held twice.

    Everything is compared first: CheckpointError, and nothing has changed, if a variable is missing
    or of another shape or dtype.
    """
    jobs, uploads = [], []
    for h in variables:
        array = values.array_of(h.local)
        ready = isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable
        target = array if ready else np.empty(h.piece.shape, h.piece.dtype)
        if h.overlaps and not ready and array is not None:
            target[...] = on_host(array).reshape(target.shape)
        jobs += _jobs_for(checkpoint, h, target.reshape(h.piece.shape))
        if not ready:
            uploads.append((h, target))
    run(jobs)
    for h, target in uploads:
        shape = None if (present := values.array_of(h.local)) is None else present.shape
        values.take(h.local, target if shape is None else target.reshape(shape))


def _jobs_for(checkpoint: Source, variable: LocalPiece, out: np.ndarray) -> Any:
    piece = variable.piece
    if variable.combined is not None:
        return _combined(checkpoint, variable.combined, out)
    if variable.overlaps:
        return _overlapping(checkpoint, piece, out)
    is_saved = checkpoint.has(piece.name)
    base = piece.name.removesuffix(SNAPSHOT)
    if not is_saved and base != piece.name and checkpoint.has(base):
        # The parameter when trainers last averaged it.
        return checkpoint.jobs(base, piece.begin, piece.end, out)
    saved = checkpoint.saved(piece.name)
    if saved.shape != piece.whole:
        raise CheckpointError(
            f"{checkpoint.manifest}: {piece.name!r} is {saved.dtype}{list(saved.shape)}, expected "
            f"{piece.dtype}{list(piece.whole)}: the program differs from the one that was saved"
        )
    if piece.copy:
        return checkpoint.copy_jobs(piece.name, piece.begin, piece.end, out)
    return checkpoint.jobs(piece.name, piece.begin, piece.end, out)


def counted(source: Source, variable: LocalPiece, counter: StepCounter | None) -> LocalPiece:
    """Return a schedule's restored step counts; asynchronous trainers count otherwise.

    Each holds its part of the number of the next step, which servers add up; elsewhere the counter
    has that of the last step. Where other trainers had counted, or nobody, the first one has all.
    """
    if counter is None:
        saved = _saved_counts(source, variable.local)
        if not saved or variable.piece.dtype != "int64":
            return variable
        return replace(variable, combined=Combined(saved, SUMMED, further=-1))
    saved = _saved_counts(source, counter.name)
    if variable.local not in counter.parts or len(saved) == len(counter.parts):
        return variable
    names, further = (saved, 0) if saved else ((counter.name,), 1)
    first = variable.local == counter.parts[0]
    return replace(variable, combined=Combined(names, SUMMED, first, further))


def _saved_counts(source: Source, counter: str) -> tuple[str, ...]:
    """Return the names of what asynchronous trainers had counted."""
    names = (f"{counter}.trainer_{k}" for k in itertools.count())
    return tuple(itertools.takewhile(source.has, names))


def _overlapping(checkpoint: Source, piece: Piece, out: np.ndarray) -> list[Job]:
    """Return the call that fills as much of a value as was saved in another shape."""
    shape = checkpoint.saved(piece.name).shape
    end = min(piece.end, shape[0])
    if end <= piece.begin:
        return []
    values = np.empty((end - piece.begin, *shape[1:]), piece.dtype)
    reads = checkpoint.jobs(piece.name, piece.begin, end, values)

    def copy() -> None:
        for job in reads:
            job()
        both = tuple(slice(0, min(pair)) for pair in zip(values.shape, out.shape))
        out[both] = values[both]

    return [copy]


def _combined(checkpoint: Source, combined: Combined, out: np.ndarray) -> list[Job]:
    """Return the call that makes one value of several saved ones, of which each is read whole."""
    values = [np.empty_like(out) for _ in combined.names]
    reads = [
        job
        for name, value in zip(combined.names, values)
        for job in checkpoint.jobs(name, 0, len(value), value)
    ]

    def combine() -> None:
        for job in reads:
            job()
        np.copyto(out, combined.of(values))

    return [combine]


def check_loadable(source: Source, variables: Sequence[LocalPiece], *, data: bool) -> None:
    """Raise the error that `load_shards` would; with ``data`` also that of damaged data."""
    for h in variables:
        out = np.empty(h.piece.shape, h.piece.dtype)
        jobs = _jobs_for(source, h, out)
        if data:
            run(jobs)


# -- tables ----------------------------------------------------------------------------------------
def check_table(
    source: Source, table: SparseTable, server: int, servers: int, *, partial: bool = False
) -> None:
    """Raise the error that `load_table` would; with ``partial`` rows need not be the same.

    Data is compared with its checksums only if the table has rows: they shall not be lost for
    others that turn out to be damaged.
    """
    checkpoint, parts = _parts_of(source, table)
    for home, part in parts:
        if not partial:
            check_fits(table, part, str(checkpoint.files[home].path))
    if len(table):
        read = _rows_of_server(checkpoint, parts, server, servers)
        count = sum(len(ids) for _, ids, *_ in read)
        if table.dict_size is not None and count > table.dict_size:
            raise CheckpointError(
                f"{checkpoint.manifest}: table {table.name!r} has {count} rows for this server, "
                f"but may have {table.dict_size}: build it as it was saved"
            )
    for companion in table.companions:
        if table_parts(checkpoint, companion.name):
            check_table(checkpoint, companion, server, servers, partial=partial)


def load_table(source: Source, table: SparseTable, server: int, servers: int) -> None:
    """Load a server's rows of a table, a few at a time, reading hardly any others.

    What the table has is dropped; call `check_table` first. On an error the table is left empty.
    """
    checkpoint, parts = _parts_of(source, table)
    table.clear()
    clocks = [part.clock for _, part in parts if part.clock]
    table.step, table.day = map(max, zip((0, 0), *clocks))
    try:
        for part, ids, rows, state, metadata in _rows_of_server(checkpoint, parts, server, servers):
            values = adapted(table, part, ids, rows, state, metadata)
            if isinstance(table, PolicyTable):
                table.load(ids, *values, metadata_as(table, part, metadata))
            else:
                table.load(ids, *values)
        for companion in table.companions:
            if table_parts(checkpoint, companion.name):
                load_table(checkpoint, companion, server, servers)
    except BaseException:
        table.clear()
        raise
    writers = list(dict.fromkeys(home for home, _ in parts))
    shared = [part.shared for home, part in parts]
    if len(writers) == servers:
        shared = [part.shared for home, part in parts if home == writers[server]]
    if len(table.shared) and all(len(values) == len(table.shared) for values in shared):
        table.shared[...] = np.min(np.array(shared, np.float32), axis=0)


def _parts_of(source: Source, table: SparseTable) -> tuple[Checkpoint, list[tuple[int, TablePart]]]:
    """Return the writers of a table's rows: (number of the file, facts)."""
    if not isinstance(source, Checkpoint):
        raise CheckpointError(f"{source.manifest}: holds no rows of table {table.name!r}")
    parts = table_parts(source, table.name)
    if not parts:
        raise CheckpointError(f"{source.manifest}: has no table {table.name!r}")
    return source, parts


def table_parts(checkpoint: Checkpoint, name: str) -> list[tuple[int, TablePart]]:
    """Return the writers of a table's rows: (number of the file, facts)."""
    facts = checkpoint.facts
    return [(h, t) for h, t in zip(facts.table_homes, facts.tables) if t.name == name]


def _rows_of_server(
    checkpoint: Checkpoint, parts: Sequence[tuple[int, TablePart]], server: int, servers: int
) -> Iterator[tuple[TablePart, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (part, ids, rows, state, metadata) that belong to a server."""
    for home, part in parts:
        begin, end = stretch(part.begins, server, servers)
        for first in range(begin, end, LOADED_ROWS):
            last = min(first + LOADED_ROWS, end)
            file, count = checkpoint.files[home], last - first
            read: dict[str, np.ndarray]
            read = {"state": np.empty((count, 0), np.float32), "metadata": np.empty((count, 0))}
            read |= {n: np.empty((count, *s[1:]), dtype) for n, dtype, s in part.datasets}
            jobs = []
            for name, _, _ in part.datasets:
                jobs += file.jobs(f"{part.path}/{name}", first, last, read[name])
            run(jobs)
            ids, rows, state, metadata = (read[n] for n in ("ids", "rows", "state", "metadata"))
            check_order(part, first, ids, file.name)
            local = owners_of(ids, servers) == server
            yield part, ids[local], rows[local], state[local], metadata[local]

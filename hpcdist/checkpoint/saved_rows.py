"""Rows of a table in the files of an inference model: looked up by id, read on demand.

The files are mapped into memory and paged in by the system, so a table may be larger than memory,
and processes of one machine share its pages.
"""

from __future__ import annotations

import mmap

import numpy as np
import xxhash

from hpcdist.base.errors import CheckpointError, TableError
from hpcdist.base.plain_data import typed
from hpcdist.checkpoint.checkpoint import Checkpoint
from hpcdist.checkpoint.layout import damaged
from hpcdist.checkpoint.metadata import Stored, TablePart
from hpcdist.checkpoint.read import StoredFile
from hpcdist.checkpoint.rows import BY_MIX, ORDER, storage_of
from hpcdist.ps.batch import owners_of
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable


class SavedRows:
    """The rows of the table ``name`` that a model was saved with, of all servers that had some.

    CheckpointError if they are not there, or not in an order in which they can be looked up. The
    files must stay as they are; each MiB is compared with its checksum when it is first used.
    """

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        facts = checkpoint.facts
        parts = [(h, t) for h, t in zip(facts.table_homes, facts.tables) if t.name == name]
        if not parts:
            raise CheckpointError(f"{checkpoint.manifest}: has no rows of table {name!r}")
        first = parts[0][1]
        self.name, self.dim = name, first.dim
        for _, part in parts:
            if part.facts.get(ORDER) != BY_MIX or part.dim != first.dim:
                raise CheckpointError(
                    f"{checkpoint.manifest}: the rows of table {name!r} were saved for resuming "
                    "training, or come from different tables, and cannot be looked up in the "
                    "file: save the model with save_inference_model"
                )
        self._parts = [_Part(checkpoint.files[home], part) for home, part in parts]
        self._never_trained = _beginning(first, str(checkpoint.manifest))

    def __repr__(self) -> str:
        rows = sum(len(part.ids) for part in self._parts)
        return f"<SavedRows {self.name}: {rows} rows of {self.dim}>"

    def look_up(self, ids: np.ndarray, out: np.ndarray) -> None:
        """Write the rows of ``ids`` (int64 [n]) to ``out`` (float32 [n, dim], C-contiguous).

        Ids that were never trained have their initial values, as in a test program.
        """
        owners = owners_of(ids, len(self._parts))
        for k, part in enumerate(self._parts):
            chosen = np.flatnonzero(owners == k) if len(self._parts) > 1 else slice(None)
            chosen_ids = ids[chosen]
            places = part.find(chosen_ids)
            rows = np.empty((len(chosen_ids), self.dim), np.float32)
            trained = places >= 0
            rows[trained] = part.rows(places[trained])
            if not trained.all():
                new = np.empty((len(chosen_ids) - np.count_nonzero(trained), self.dim), np.float32)
                self._never_trained.read(chosen_ids[~trained], new)
                rows[~trained] = new
            out[chosen] = rows


class _Part:
    """What one writer has written: ids sorted by their mix, and their rows."""

    def __init__(self, file: StoredFile, part: TablePart) -> None:
        memory = np.frombuffer(mmap.mmap(file.descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
        self._begins = np.array(part.begins)
        self._ids = _Mapped(file, memory, f"{part.path}/ids")
        self._rows = _Mapped(file, memory, f"{part.path}/rows")
        self.ids = self._ids.bytes.view(np.int64)
        self._row_bytes = 4 * part.dim
        self._by_row = self._rows.bytes.reshape(part.count, self._row_bytes)
        self.find(np.empty(0, np.int64))  # so that it is compiled now, not at the first look-up

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return where each id stands, -1 where it does not."""
        from hpcdist.ps import batch_kernels

        places = np.empty(len(ids), np.int64)
        buckets = owners_of(ids, len(self._begins) - 1)
        self._ids.check(8 * self._begins[buckets], 8 * self._begins[buckets + 1])
        batch_kernels.find(ids, self.ids, self._begins, places)
        return places

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Return the rows at some places."""
        begins = places * self._row_bytes
        self._rows.check(begins, begins + self._row_bytes)
        return self._by_row[places].view(np.float32)


class _Mapped:
    """A dataset in a mapped file, whose chunks are compared with their checksums before use."""

    def __init__(self, file: StoredFile, memory: np.ndarray, path: str) -> None:
        stored = file.stored(path)
        self._location = file.name, path
        self._sums = stored.sums
        begin = _first_byte(stored, *self._location)
        self._starts = np.array(stored.offsets, np.int64) - begin
        self.bytes = memory[begin : begin + sum(stored.sizes)]
        self._good = np.zeros(len(stored.sums), bool)
        self._all_good = not stored.sums

    def check(self, begins: np.ndarray, ends: np.ndarray) -> None:
        """Raise CheckpointError if the bytes between are not what was written."""
        if self._all_good:
            return
        nonempty = begins < ends
        firsts = np.searchsorted(self._starts, begins[nonempty], side="right") - 1
        lasts = np.searchsorted(self._starts, ends[nonempty], side="left") - 1
        for first, last in np.unique(np.stack([firsts, lasts]), axis=1).T:
            for chunk in range(first, last + 1):
                if not self._good[chunk]:
                    self._compare(chunk)
        self._all_good = bool(self._good.all())

    def _compare(self, chunk: int) -> None:
        end = self._starts[chunk + 1] if chunk + 1 < len(self._starts) else len(self.bytes)
        data = self.bytes[self._starts[chunk] : end].data
        if xxhash.xxh3_64_hexdigest(data) != self._sums[chunk]:
            file, path = self._location
            raise damaged(file, f"dataset {path!r}, chunk {chunk} of {len(self._sums)}")
        self._good[chunk] = True


def _first_byte(stored: Stored, file: str, path: str) -> int:
    """Return where a dataset begins; CheckpointError unless it lies there as in memory."""
    begin = stored.offsets[0] if stored.offsets else 0
    sizes = np.array(stored.sizes, np.int64)
    places = begin + np.cumsum(sizes) - sizes
    total = int(np.prod(stored.shape)) * np.dtype(stored.dtype).itemsize
    if stored.packed or begin % 8 or sizes.sum() != total or (places != stored.offsets).any():
        raise CheckpointError(
            f"{file}: dataset {path!r} is compressed, or in pieces, so rows cannot be looked up in "
            "the file; save the model again"
        )
    return begin


def _beginning(part: TablePart, file: str) -> SparseTable:
    """Return an empty table, which knows how rows begin that nobody has trained."""
    try:
        initializer = typed(RowInitializer, part.facts["initializer"])
        seed = typed(int, part.facts["seed"])
        facts = part.name, part.dim, RowOptimizer("sgd"), initializer, seed
        return SparseTable(*facts, storage=storage_of(part.facts))
    except (KeyError, ValueError, TableError) as error:
        raise CheckpointError(
            f"{file}: malformed facts of table {part.name!r} ({error!r})"
        ) from None

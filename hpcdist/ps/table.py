"""A table of rows with any int64 ids: rows are created on first use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps.changes import Changes
from hpcdist.ps.repeats import merged, single
from hpcdist.ps.row_moves import NO_TURNS, RowMoves
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.row_tier import RowTier, Tier
from hpcdist.ps.table_arguments import check_finite, check_values, checked_ids, plain
from hpcdist.ps.table_metadata import RowInitializer, RowOptimizer, TableStatistics

PIECE = 2048  # rows that are looked for, then moved
TIER_PIECE = 1 << 16  # and that come up from disk at once

__all__ = ["RowInitializer", "RowOptimizer", "SparseTable", "TableStatistics"]


class SparseTable:
    """Rows of ``dim`` float32 with their optimizer state, found by id.

    A new row's values follow from ``seed`` and its id alone. ``dict_size`` is how many ids fit at
    most (None: as many as memory). ``shared`` holds the optimizer's ``shared_names``, float32;
    ``step`` counts pushes. ``storage`` says how rows and state are kept, None: in float32;
    ``tier`` on which disk those lie that were not used of late, None: all are in memory.
    """

    _words = 0  # uint32 that a table with a policy keeps with each row
    _drawn = 0  # of how many elements new rows have their initial values, 0: of all
    day = 0  # how often a table with a policy has forgotten what has expired

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: RowOptimizer,
        initializer: RowInitializer,
        seed: int,
        dict_size: int | None = None,
        *,
        storage: RowStorage | None = None,
        tier: Tier | None = None,
    ) -> None:
        if dim < 1:
            raise TableError(f"table {name!r}: a row has at least one element, got dim {dim}")
        # numba takes 0.3 s to import: only ranks that have a table need it.
        from hpcdist.ps import index_kernels, row_kernels, row_values
        from hpcdist.ps.table_memory import TableMemory

        self.name, self.dim = name, dim
        self.optimizer, self.initializer, self.seed = optimizer, initializer, seed
        self.dict_size = dict_size
        self._betas, self._powers_first = optimizer.betas, optimizer.powers_first
        self.shared = self._betas.copy()
        self.changes: Changes | None = None  # once the table is published
        self._width = optimizer.state_width(dim)
        self.storage = storage or RowStorage()
        self.row_bytes, widths = self.storage.row_bytes(dim), optimizer.state_widths(dim)
        self.state_bytes = self.storage.state_bytes(widths)
        size = self.storage.record_bytes(dim, widths)
        stride = 4 + (size if tier is None else 4) + 4 * self._words
        self._new_memory = functools.partial(TableMemory, name, stride)
        self.tier: RowTier | None = None
        self.clear()
        self._index, self._rows = index_kernels, row_kernels
        self._packed = None
        self.beginning = replace(initializer, drawn=initializer.drawn or self._drawn)
        if storage is not None or tier is not None:
            from hpcdist.ps.packed_rows import PackedRows

            self._packed = PackedRows(self.storage, dim, optimizer, self.beginning, seed)
            if tier is not None:
                self.tier = RowTier(name, tier, size, self._packed.begin)
        width, start, first = dim, self.beginning, optimizer.first_state
        if self._packed is not None:  # it begins rows: the index makes records of zeros
            width, start, first = 0, RowInitializer("constant", 0.0), 0.0
        self._beginning = (  # what the kernels take to begin a row
            np.array([width, self._memory.shift, self._memory.stride, 4 * self._words]),
            np.uint64(row_values.mixed(np.int64(seed))),
            row_values.KINDS[start.kind],
            start.constants(first),
        )
        rounded = None if self.storage.same_bytes(None) else self._packed
        self._moves = RowMoves(dim, optimizer, initializer, seed, rounded)
        self._pulled = self._pushed = 0
        self._compile()

    def __len__(self) -> int:
        return self._memory.rows

    def clear(self) -> None:
        """Forget all rows, and what they share: the table is as it was made."""
        self._memory = self._new_memory()
        if self.tier is not None:
            self.tier.clear()
        self.step = 0
        self.shared[...] = self._betas
        if self.changes is not None:
            self.changes.all()

    def pull(self, ids: Array, out: Array, *, create: bool = True) -> None:
        """Write the rows of ``ids`` (int64 [n], repeats allowed) to ``out`` (float32 [n, dim]).

        Ids not seen before get their row, unless ``create`` is False: then their initial values
        are written and the table stays as it is. Raises TableError, and changes nothing, if ids
        are malformed or do not fit.
        """
        self._pulled += self._pull(ids, out, create=create)

    def read(self, ids: Array, out: Array) -> None:
        """Write rows as `pull` does, making none, and without counting them as pulled.

        To uint8 [n, row_bytes], of a table with a ``storage``: as they are kept; all must be there.
        """
        if self._packed is None or out.dtype != np.uint8:
            self._pull(ids, out, create=False, keep=False)
            return
        for part, records in self._pieces(ids, create=False, keep=False):
            self._packed.export_rows(records, out[part])

    def _pull(self, ids: Array, out: Array, *, create: bool, keep: bool = True) -> int:
        ids = checked_ids(self.name, ids, "pull")
        check_values(self.name, out, (len(ids), self.dim), "out")
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise TableError(f"table {self.name!r}, pull: out must be C-contiguous and writable")
        if create:
            self._check_room(ids)
        address, before = out.ctypes.data, len(self)
        if self._packed is not None:
            for part, records in self._pieces(ids, create=create, keep=keep):
                self._packed.read(ids[part], records, out[part], zeros=False)
        else:
            self._until_done(
                len(ids), lambda at, *table: self._index.pull(ids, at, create, address, *table)
            )
        if len(self) > before:
            self._changed(ids)
        return len(ids)

    def push(
        self,
        ids: Array,
        grads: Array,
        learning_rate: float,
        scale: float = 1.0,
        *,
        repeats: bool = True,
    ) -> None:
        """Move the rows of ``ids`` (int64 [n]) by ``grads`` (float32 [n, dim]) times ``scale``.

        Gradients of one id are added in the order given; that none comes again (not ``repeats``)
        is a promise that saves looking for it. Each call is one step of the optimizer,
        also without ids. Raises TableError, and changes nothing, if ids are malformed or do not
        fit, or if a gradient is not finite.
        """
        ids = checked_ids(self.name, ids, "push")
        check_values(self.name, grads, (len(ids), self.dim), "grads")
        grads = plain(grads)
        check_finite(self, ids, grads, learning_rate, scale)
        self._check_room(ids)
        different = merged(ids) if repeats else single(ids)
        self.step += 1
        self._step(*different, grads, learning_rate, scale)
        self._pushed += len(ids)

    def _step(
        self,
        unique: Array,
        firsts: Array,
        following: Array,
        grads: Array,
        learning_rate: float,
        scale: float,
        located: Array | None = None,
        turns: Array = NO_TURNS,
        bodies: Array | None = None,
    ) -> None:
        """Make one step with the merged gradients of ``unique``; ``located``: their records.

        ``bodies``: where their rows are, as `RowTier.bodies` says, if that is known.
        ``turns`` say how wide rows are; see `row_kernels.keep_narrow`.
        """
        if self._powers_first:
            self.shared *= self._betas
        facts = np.float32(scale), np.float32(learning_rate), self._moves.constants(self.shared)
        if not self._powers_first:
            self.shared *= self._betas
        everything = slice(0, len(unique))
        known = self._pieces(unique, located) if bodies is None else [(everything, bodies)]
        for piece, records in known:
            update = grads, firsts[piece], following, *facts
            self._moves.move(unique[piece], records, update, self.step, turns[piece])
        self._changed(unique)

    def export(self, start_row: int, stop_row: int) -> tuple[Array, Array, Array]:
        """Return (ids int64 [m], rows [m, dim], state [m, state_width]) of part of the table.

        Rows are numbered from 0 to ``len(table)``, in an order that stays as long as no row is
        created. Those of a table with a ``storage`` are as they are kept, uint8 [m, row_bytes], and
        their state [m, state_bytes]; see `decoded`.
        """
        start_row = max(0, start_row)
        count = max(0, min(stop_row, len(self)) - start_row)
        ids, records = self._memory.listed(start_row, count, self._beginning[0])
        if self._packed is not None:
            kept = self._packed.space(count)
            for part, places in self._pieces(ids, records, keep=False):
                self._packed.export(places, *(array[part] for array in kept))
            return ids, *self._packed.as_kept(*kept)
        rows = np.empty((count, self.dim), np.float32)
        state = np.empty((count, self._width), np.float32)
        self._rows.read_records(records, 0, self.dim, rows.ctypes.data)
        self._rows.read_records(records, self.dim, self._width, state.ctypes.data)
        return ids, rows, state

    def decoded(self, rows: Array, state: Array) -> tuple[Array, Array]:
        """Return rows and state, as `export` returns them, in float32."""
        if self._packed is None or rows.dtype != np.uint8:
            return rows, state
        return self._packed.decoded(rows, state)

    def load(self, ids: Array, rows: Array, state: Array) -> None:
        """Set rows and state, as `export` returns them; ids not seen before get their row.

        Both may be float32 in a table with a ``storage``, too: they are rounded as in this step.
        """
        ids = checked_ids(self.name, ids, "load")
        if self._packed is not None and rows.dtype == np.uint8:
            check_values(self.name, rows, (len(ids), self.row_bytes), "rows", np.uint8)
            check_values(self.name, state, (len(ids), self.state_bytes), "state", np.uint8)
        else:
            check_values(self.name, rows, (len(ids), self.dim), "rows")
            check_values(self.name, state, (len(ids), self._width), "state")
        self._check_room(ids)
        rows, state = plain(rows), plain(state)
        if self._packed is not None:
            for part, records in self._pieces(ids):
                self._packed.load(ids[part], records, rows[part], state[part], self.step)
        else:
            records = self._locate(ids)
            self._rows.write_records(records, 0, self.dim, rows.ctypes.data)
            self._rows.write_records(records, self.dim, self._width, state.ctypes.data)
        self._changed(ids)

    @property
    def companions(self) -> tuple[SparseTable, ...]:
        """The tables that are saved with this one."""
        return ()

    @property
    def without_row(self) -> RowInitializer:
        """The values that ids without a row give."""
        return self.beginning

    @property
    def sent_width(self) -> int:
        """The number of float32 that `pull` writes, and `push` takes, for each id."""
        return self.dim

    @property
    def state_width(self) -> int:
        """The number of float32 that an optimizer keeps with each row."""
        return self._width

    @property
    def payload_bytes(self) -> int:
        """The bytes of ids, rows and their state."""
        return len(self) * (8 + self.row_bytes + self.state_bytes)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the table takes."""
        return self._memory.nbytes + (self.tier.nbytes if self.tier else 0)

    def statistics(self) -> TableStatistics:
        """Return the statistics of the table."""
        sizes = len(self), self.nbytes, self.payload_bytes
        done = self._pulled, self._pushed, self.tier.disk_bytes if self.tier else 0
        return TableStatistics(self.name, *sizes, *done)

    # -- inside --

    def _changed(self, ids: Array) -> None:
        if self.changes is not None:
            self.changes.touch(ids)

    def _compile(self) -> None:
        """Load every kernel now: none shall be compiled in the middle of a step."""
        ids, rows = np.empty(0, np.int64), np.empty((0, self.dim), np.float32)
        self._pull(ids, rows, create=True)
        self._locate(ids, create=False)
        self._rows.first_not_finite(rows.reshape(-1).view(np.uint32))
        merged(ids)
        self._moves.compile()
        self._memory.compile()

    def _until_done(self, count: int, run: Callable[..., int]) -> None:
        """Call ``run(at, *what the kernels take)`` until it has come to ``count``."""
        memory = self._memory
        at = 0
        while True:
            tables = memory.book, memory.directory, memory.segments, memory.chunks
            at = run(at, *tables, *self._beginning)
            if at == count:
                return
            memory.grow()

    def _locate(self, ids: Array, create: bool = True) -> Array:
        """Return the addresses of the ids' records, 0 of those that have none and get none."""
        if self._packed is None or self.tier is not None or not create:
            return self._found(ids, create)
        records = self._found(ids, create=False)
        new = np.flatnonzero(records == 0)
        if len(new):
            ids = ids[new]
            records[new] = made = self._found(ids, create=True)
            self._packed.begin(ids, made)
        return records

    def _pieces(
        self, ids: Array, records: Array | None = None, create: bool = True, keep: bool = True
    ) -> Iterator[tuple[slice, Array]]:
        """Yield parts of ids, and where their rows are, as if their records were there.

        A part at a time: its records are still in the cache when they are moved. ``records``, if
        they have been located; 0 of those that have none and get none. If not ``keep``, rows that
        are on disk stay there, and what is yielded is a copy.
        """
        begin = 0
        while begin < len(ids):
            part = slice(begin, begin + PIECE)
            found = self._locate(ids[part], create) if records is None else records[part]
            if self.tier is not None:
                bodies = np.empty(len(found), np.int64)
                if not (keep and self.tier.in_memory(found, bodies)):
                    part = slice(begin, begin + min(TIER_PIECE, self.tier.capacity))
                    found = self._locate(ids[part], create) if records is None else records[part]
                    bodies = self.tier.bodies(ids[part], found, keep=keep)
                found = bodies
            yield part, found
            begin = part.stop

    def _found(self, ids: Array, create: bool) -> Array:
        records = np.empty(len(ids), np.int64)
        locate: Any = self._index.locate
        self._until_done(
            len(ids), lambda at, *table: locate(ids, at, len(ids), create, records, *table)
        )
        return records

    @property
    def _limit(self) -> tuple[int, str, str]:
        """How many rows fit, what says so, and what to do if they do not."""
        most = self._memory.most_rows
        if self.tier is not None:
            most = min(most, self.tier.most_rows)
        if self.dict_size is not None and self.dict_size < most:
            return self.dict_size, "dict_size", "make the table larger"
        return most, "the most that one server can address", "use more servers"

    def _surely_fit(self, ids: Array) -> bool:
        return len(self) + len(ids) <= self._limit[0]

    def _check_room(self, ids: Array) -> None:
        if self.tier is not None:
            self.tier.reserve(len(ids))
        if self._surely_fit(ids):
            return
        limit, why, advice = self._limit
        unique, firsts, _ = merged(ids)
        new = firsts[self._locate(unique, create=False) == 0]
        if len(self) + len(new) > limit:
            raise TableError(
                f"table {self.name!r} is full: it has {len(self)} of at most {limit} ids ({why}), "
                f"and this request adds {len(new)}, the first of them {ids[new.min()]}; "
                f"nothing has been changed; {advice}"
            )

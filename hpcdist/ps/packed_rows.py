"""The records of a table whose rows, or their state, are not kept in float32."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.comm.base import Array
from hpcdist.ps import packed_kernels as kernels
from hpcdist.ps.packed_lanes import LANES
from hpcdist.ps.row_kernels import PASSES
from hpcdist.ps.row_moves import NO_TURNS
from hpcdist.ps.row_storage import ROWS, RowStorage
from hpcdist.ps.row_values import KINDS, mixed
from hpcdist.ps.table_metadata import RowInitializer, RowOptimizer


@functools.cache
def _passes(formula: str) -> Any:
    return kernels.moving_pass(PASSES[formula])


class PackedRows:
    """Reads, makes and writes records as a `RowStorage` says.

    Rows move in float32, by the passes of `row_kernels`, and are rounded once.
    """

    def __init__(
        self,
        storage: RowStorage,
        dim: int,
        optimizer: RowOptimizer,
        initializer: RowInitializer,
        seed: int,
    ) -> None:
        widths = optimizer.state_widths(dim)
        self.storage, self._dim, self._widths = storage, dim, widths
        self.row_bytes, self.state_bytes = storage.row_bytes(dim), storage.state_bytes(widths)
        self._state_at = 4 + round_up(self.row_bytes, 4)
        width = widths[0] if widths else 0
        end = self._state_at + self.state_bytes
        state = len(widths), width, storage.halves(width), self._state_at, end
        self._facts = np.array([ROWS.index(storage.rows), dim, storage.by_chance, *state])
        self._seed_key = np.uint64(mixed(np.int64(seed)))
        self._beginning = (
            self._seed_key,
            KINDS[initializer.kind],
            initializer.constants(optimizer.first_state),
        )
        self._pass = _passes(optimizer.formula)
        self._compile()

    def read(self, ids: Array, records: Array, out: Array, *, zeros: bool) -> None:
        """Write rows float32 [n, dim]; where there is no record: zeros, or a new row's values."""
        kernels.read(ids, records, zeros, out, self._facts, *self._beginning)

    def begin(self, ids: Array, records: Array) -> None:
        """Give new records their first values and state."""
        kernels.begin(ids, records, self._facts, *self._beginning)

    def move(self, ids: Array, records: Array, update: Sequence[Any], step: int, more: Any) -> None:
        """Move records: ``update`` is what passes of `row_kernels` take behind records.

        ``more``: whether values are shrunk before, and by which part; whether they are kept within
        bounds, and the bounds; turns, and what whole rows begin with (`row_kernels.keep_narrow`).
        """
        self._pass(ids, records, *update, self._facts, self._seed_key, step, more)

    def space(self, count: int) -> tuple[Array, Array]:
        """Return arrays for the bytes of so many: uint8 [n, row_bytes] and [n, state_bytes]."""
        widths = self.row_bytes, self.state_bytes
        rows, state = (np.empty((count, width), np.uint8) for width in widths)
        return rows, state

    def export(self, records: Array, rows: Array, state: Array) -> None:
        """Write the bytes of records to arrays, as `space` returns them."""
        self.export_rows(records, rows)
        kernels.copy_out(records, self._state_at, state)

    def export_rows(self, records: Array, rows: Array) -> None:
        """Write the bytes of values only."""
        assert records.all(), "there is one for each id"
        kernels.copy_out(records, 4, rows)

    def as_kept(self, rows: Array, state: Array) -> tuple[Array, Array]:
        """Return exported bytes as a table gives them: without a storage as float32."""
        if self.storage.same_bytes(None):
            return rows.view(np.float32), state.view(np.float32)
        return rows, state

    def load(self, ids: Array, records: Array, rows: Array, state: Array, step: int) -> None:
        """Write what `export` returns, or round float32 [n, dim] and [n, state_width]."""
        if rows.dtype == np.uint8:
            kernels.copy_in(records, 4, rows)
            kernels.copy_in(records, self._state_at, state)
            return
        count, width = len(ids), 1 + self._dim + sum(self._widths)
        memory = np.empty(count * width + LANES, np.float32)
        joined = memory[: count * width].reshape(count, width)
        joined[:, 1 : 1 + self._dim], joined[:, 1 + self._dim :] = rows, state
        kernels.pack(ids, records, joined, step, self._facts, self._seed_key, False)

    def decoded(self, rows: Array, state: Array) -> tuple[Array, Array]:
        """Return in float32 what `export` returns."""
        stored = self.storage
        return stored.rows_of(rows, self._dim), stored.state_of(state, self._widths)

    def _compile(self) -> None:
        ids, nothing = np.empty(0, np.int64), np.empty((0, self._dim), np.float32)
        self.read(ids, ids, nothing, zeros=False)
        self.begin(ids, ids)
        one, hyper, none = np.float32(1), np.zeros(8, np.float32), np.empty(0, np.int32)
        more = False, one, False, one, one, NO_TURNS, *self._beginning[1:]
        self.move(ids, ids, (nothing, none, none, one, one, hyper), 0, more)
        kept = self.space(0)
        self.export(ids, *kept)
        self.load(ids, ids, *kept, 0)

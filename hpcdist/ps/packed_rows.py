"""The records of a table whose rows, or their state, are not kept in float32."""

from __future__ import annotations

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.comm.base import Array
from hpcdist.ps import packed_kernels as kernels
from hpcdist.ps.row_storage import ROWS, RowStorage
from hpcdist.ps.row_values import KINDS, mixed
from hpcdist.ps.table_metadata import RowInitializer, RowOptimizer


class PackedRows:
    """Reads, makes and writes records as a `RowStorage` says.

    Rows move in float32: `unpack` copies records to memory of its own, whose addresses it returns,
    in the layout that `row_kernels` take; `pack` rounds what came of them.
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
        state = len(widths), width, storage.halves(width), self._state_at
        self._facts = np.array([ROWS.index(storage.rows), dim, storage.by_chance, *state])
        self._seed_key = np.uint64(mixed(np.int64(seed)))
        self._beginning = (
            self._seed_key,
            KINDS[initializer.kind],
            np.array([initializer.a, initializer.b, optimizer.first_state]),
        )
        self._moving = np.empty((0, 1 + dim + sum(widths)), np.float32)
        self._compile()

    def read(self, ids: Array, records: Array, out: Array, *, zeros: bool) -> None:
        """Write rows float32 [n, dim]; where there is no record: zeros, or a new row's values."""
        kernels.read(ids, records, zeros, out, self._facts, *self._beginning)

    def begin(self, ids: Array, records: Array) -> None:
        """Give new records their first values and state."""
        kernels.begin(ids, records, self._facts, *self._beginning)

    def unpack(self, records: Array) -> Array:
        """Return addresses of the records in float32, valid until the next call."""
        if len(records) > len(self._moving):
            self._moving = np.empty((len(records), self._moving.shape[1]), np.float32)
        kernels.unpack(records, self._moving, self._facts)
        stride = 4 * self._moving.shape[1]
        return self._moving.ctypes.data + stride * np.arange(len(records), dtype=np.int64)

    def pack(self, ids: Array, records: Array, step: int) -> None:
        """Round what `unpack` returned, once moved, into its records."""
        kernels.pack(ids, records, self._moving, step, self._facts, self._seed_key)

    def export(self, records: Array) -> tuple[Array, Array]:
        """Return the bytes of records: uint8 [n, row_bytes] and [n, state_bytes]."""
        rows = np.empty((len(records), self.row_bytes), np.uint8)
        state = np.empty((len(records), self.state_bytes), np.uint8)
        kernels.copy_out(records, 4, rows)
        kernels.copy_out(records, self._state_at, state)
        return rows, state

    def load(self, ids: Array, records: Array, rows: Array, state: Array, step: int) -> None:
        """Write what `export` returns, or round float32 [n, dim] and [n, state_width]."""
        if rows.dtype == np.uint8:
            kernels.copy_in(records, 4, rows)
            kernels.copy_in(records, self._state_at, state)
            return
        joined = np.hstack([np.zeros((len(ids), 1), np.float32), rows, state])
        kernels.pack(ids, records, joined, step, self._facts, self._seed_key)

    def decoded(self, rows: Array, state: Array) -> tuple[Array, Array]:
        """Return in float32 what `export` returns."""
        stored = self.storage
        return stored.rows_of(rows, self._dim), stored.state_of(state, self._widths)

    def _compile(self) -> None:
        ids, nothing = np.empty(0, np.int64), np.empty((0, self._dim), np.float32)
        self.read(ids, ids, nothing, zeros=False)
        self.begin(ids, ids)
        self.unpack(ids)
        self.pack(ids, ids, 0)
        self.load(ids, ids, *self.export(ids), 0)

"""One step of a table's optimizer: the passes of `row_kernels`, and what goes around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdist.comm.base import Array
from hpcdist.ps.repeats import single
from hpcdist.ps.table_metadata import RowInitializer, RowOptimizer

if TYPE_CHECKING:
    from hpcdist.ps.packed_rows import PackedRows

NO_TURNS = np.empty(0, np.uint8)  # all rows are whole


class RowMoves:
    """Moves rows of ``dim`` elements, in float32 or, with ``packed``, rounded once."""

    def __init__(
        self,
        dim: int,
        optimizer: RowOptimizer,
        initializer: RowInitializer,
        seed: int,
        packed: PackedRows | None,
    ) -> None:
        from hpcdist.ps import row_kernels, row_values  # which import numba

        self._dim, self._optimizer, self._packed = dim, optimizer, packed
        self._rows, self._pass = row_kernels, row_kernels.PASSES[optimizer.formula]
        self._constants = np.array(optimizer.constants, np.float32)
        self._shrinks = bool(optimizer.decoupled_decay or optimizer.rate_decay)
        self._bounds = np.array(optimizer.weight_bounds or (0, 0), np.float32)
        self._floats = optimizer.state_width(dim)
        self._seed_key = np.uint64(row_values.mixed(np.int64(seed)))
        # What rows begin with that become whole.
        self._whole = (
            row_values.KINDS[initializer.kind],
            initializer.constants(optimizer.first_state),
        )

    def constants(self, shared: Array) -> Array:
        """Return float32 [n], what passes take besides the rate; ``shared``: powers of all rows."""
        return np.concatenate([self._constants, shared])

    def move(self, ids: Array, records: Array, update: Any, step: int, turns: Array) -> None:
        """Move records by what passes take behind them: gradients, their places, and constants.

        ``turns``: see `row_kernels.keep_narrow`.
        """
        moved, rate, rows = self._optimizer, update[4], np.empty((0, self._dim), np.float32)
        part = np.float32(moved.decoupled_decay) + rate * np.float32(moved.rate_decay)
        bounded = moved.weight_bounds is not None
        if moved.changes_gradients:
            rows = np.empty((len(ids), self._dim), np.float32)
        if self._packed is not None:
            if moved.changes_gradients:
                self._packed.read(ids, records, rows, zeros=False)
                update = self._prepared(rows - rows * part if self._shrinks else rows, *update)
            more = self._shrinks, part, bounded, *self._bounds, turns, *self._whole
            self._packed.move(ids, records, update, step, more)
            return
        if self._shrinks:
            self._rows.shrink_records(records, self._dim, part)
        if moved.changes_gradients:
            self._rows.read_records(records, 0, self._dim, rows.ctypes.data)
            update = self._prepared(rows, *update)
        states = records + (4 + 4 * self._dim)
        self._pass(records, states, *update)
        if bounded:
            self._rows.bound_records(records, self._dim, *self._bounds)
        if len(turns):
            self._keep_narrow(ids, records, states, turns)

    def _keep_narrow(self, ids: Array, records: Array, states: Array, turns: Array) -> None:
        facts = self._dim, self._floats, self._seed_key, *self._whole
        self._rows.keep_narrow(ids, records, states, turns, *facts)

    def _prepared(
        self, rows: Array, grads: Array, firsts: Array, following: Array, *facts: Any
    ) -> tuple[Any, ...]:
        """Return the update of rows, their gradients clipped, with the penalty's derivative."""
        scale, *rest = facts
        sums = np.empty_like(rows)
        self._rows.write_merged(grads, firsts, following, sums)
        sums *= scale
        if self._optimizer.clip_norm:
            self._rows.clip_rows(sums, np.float32(self._optimizer.clip_norm))
        sums += np.float32(self._optimizer.l2_decay) * rows
        sums += np.float32(self._optimizer.l1_decay) * np.sign(rows)
        _, firsts, following = single(rows)
        return sums, firsts, following, np.float32(1), *rest

    def compile(self) -> None:
        """Load every kernel now: none shall be compiled in the middle of a step."""
        ids, rows = np.empty(0, np.int64), np.empty((0, self._dim), np.float32)
        places, one = np.empty(0, np.int32), np.float32(1)
        self._pass(ids, ids, rows, places, places, one, one, np.zeros(8, np.float32))
        self._rows.clip_rows(rows, one)
        self._rows.shrink_records(ids, self._dim, one)
        self._rows.bound_records(ids, self._dim, one, one)
        self._rows.narrow_gradients(NO_TURNS, places, places, rows)
        self._keep_narrow(ids, ids, ids, NO_TURNS)

"""Rows beside the shows and clicks of their ids, as tables that count these take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array


class WideRows:
    """Rows [n, width] of a look-up, and memory [n, width + 2] in which they travel.

    ``shows``: shows and clicks, each [examples] or [n]; none if rows are only looked up. Examples
    that are fewer than ids have the same number of them.
    """

    def __init__(self, table: str, values: Array, shows: Sequence[Array]) -> None:
        self.rows = np.zeros((len(values), values.shape[1] + 2), np.float32)
        self._values, self._shows = values, shows
        for counts in shows:
            if len(values) % len(counts) if len(counts) else len(values):
                raise TableError(
                    f"table {table!r}: {len(values)} ids are looked up for {len(counts)} numbers "
                    "of shows or clicks: expected as many ids for each example"
                )

    def copy_out(self) -> None:
        """Copy rows to the values."""
        self._values[...] = self.rows[:, :-2]

    def copy_in(self) -> None:
        """Copy the values, shows and clicks to the rows."""
        self.rows[:, :-2] = self._values
        for column, counts in enumerate(self._shows, self._values.shape[1]):
            self.rows[:, column] = np.repeat(counts, len(self.rows) // max(1, len(counts)))

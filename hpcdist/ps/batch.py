"""The ids of a batch: each once, grouped by server, with the place of its row in the batch's
memory.

The server of a row depends on its id alone (`owners_of`). One message per server requests the rows
of all tables, and the rows of one server are contiguous, so that they are received, and their
gradients sent, in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.comm.base import Array
from hpcdist.division import round_up
from hpcdist.errors import TableError
from hpcdist.trace.events import Count
from hpcdist.trace.recorder import recorder

LINE = 64  # bytes; rows of a table begin on a cache line of the batch's memory


@dataclass(frozen=True)
class TableSpec:
    """A table as both ends know it: rows of ``width`` float32.

    At most ``dict_size`` ids in all may be used (None: any number). ``padding`` is the id that
    stands for nothing: it is neither asked for nor moved (None: there is no such id).
    """

    name: str
    width: int
    dict_size: int | None = None
    padding: int | None = None

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return 4 * self.width

    def __str__(self) -> str:
        most = "any number of" if self.dict_size is None else f"{self.dict_size}"
        return f"{self.name} float32[{most} ids, {self.width}]"


def owners_of(ids: Array, servers: int) -> Array:
    """Return the server (int64) that each id lives on: a stable mix of its bits, no modulus."""
    from hpcdist.ps import batch_kernels

    out = np.zeros(len(ids), np.int64)
    if servers > 1:
        batch_kernels.owners(ids, servers, out)
    return out


def sort_by_mix(ids: Array) -> None:
    """Sort ids in place by the mix that `owners_of` goes by.

    ids: int64 [n].
    """
    from hpcdist.ps import batch_kernels

    keys = ids.view(np.uint64)
    batch_kernels.to_mix(keys)
    keys.sort()
    batch_kernels.from_mix(keys)


def rows_layout(tables: Sequence[TableSpec], counts: Sequence[int]) -> tuple[list[int], int]:
    """Return the byte at which each table's rows begin in one server's rows, and their end."""
    begins, end = [], 0
    for table, count in zip(tables, counts, strict=True):
        begins.append(end)
        end += round_up(count * table.row_bytes, LINE)
    return begins, end


def split_ids(message: Array, tables: int) -> list[Array]:
    """Return the ids of each table in a message: a count for each of ``tables``, then the ids.

    message: int64 [tables + all ids]; TableError if the counts do not fit. Called on servers.
    """
    counts, behind = message[:tables], message[tables:]
    if len(counts) < tables or (counts < 0).any() or counts.sum() != len(behind):
        raise TableError(
            f"malformed message: {len(message)} numbers do not hold the ids of {tables} tables, "
            f"counts {counts.tolist()}"
        )
    ends = np.cumsum(counts)
    return [behind[e - n : e] for e, n in zip(ends, counts)]


def rows_of(tables: Sequence[TableSpec], counts: Sequence[int], memory: Array) -> list[Array]:
    """Return each table's rows [n, width] in the memory (uint8) of one server's rows."""
    begins, _ = rows_layout(tables, counts)
    return [
        memory[begin : begin + n * t.row_bytes].view(np.float32).reshape(n, t.width)
        for t, begin, n in zip(tables, begins, counts, strict=True)
    ]


class LookupBatch:
    """The ids that one batch looks up in each table, and the memory of their rows.

    ``index`` works them out; then ``messages[k]`` (int64) is what server k is told: the number of
    ids for every table, then the ids. ``replies[k]`` (uint8) is where its answer goes: ``rows[k]``,
    each table's from a cache line on, then ``row_counts[k]`` (int64), how many ids the server
    has of each table. The memory is kept from batch to batch and grows when it must.
    """

    def __init__(self, tables: Sequence[TableSpec], servers: int) -> None:
        from hpcdist.ps import batch_kernels, row_kernels  # numba takes 0.3 s to import

        self._kernels = batch_kernels
        self._first_not_finite = row_kernels.first_not_finite
        self.tables = tuple(tables)
        self.messages: list[Array] = []
        self.replies: list[Array] = []
        self.rows: list[Array] = []
        self.row_counts: list[Array] = []
        self._servers = servers
        self._ids = np.empty(0, np.int64)
        self._memory = np.empty(0, np.uint8)
        self._heads = np.empty(0, np.int32)
        # By table, in the memory of scratch arrays.
        self._unique: list[Array] = []
        self._places: list[Array] = []
        self._where: list[Array] = []
        self._scratch: list[tuple[Array, Array, Array]] = [_scratch(0) for _ in self.tables]

    def index(self, ids: Sequence[Array]) -> None:
        """Take the ids of each table: int64 [n], in the order of the batch, with repeats."""
        owners = self._once_each(ids)
        servers, count = self._servers, len(self.tables)
        counts = np.zeros((count, servers), np.int64)
        for row, owner in zip(counts, owners):
            if len(owner):
                row[:] = np.bincount(owner, minlength=servers) if servers > 1 else len(owner)
        recorder.count(Count.LOOKED_UP, int(counts.sum()))
        starts = np.zeros(servers + 1, np.int64)  # of the servers' messages, in numbers
        np.cumsum(count + counts.sum(axis=0), out=starts[1:])
        if starts[-1] > len(self._ids):
            self._ids = np.empty(_roomy(int(starts[-1])), np.int64)
        self.messages = [self._ids[b:e] for b, e in itertools.pairwise(starts)]
        begins, spans, end = [], [], 0  # of rows: by server and table; by server
        for server in range(servers):
            self.messages[server][:count] = counts[:, server]
            offsets, nbytes = rows_layout(self.tables, counts[:, server].tolist())
            begins.append([end + offset for offset in offsets])
            spans.append((end, end + nbytes))
            end += nbytes + round_up(8 * count, LINE)
        if end > len(self._memory):
            self._memory = line_aligned(_roomy(end))
        self.rows = [self._memory[b:e] for b, e in spans]
        self.replies = [self._memory[b : e + 8 * count] for b, e in spans]
        self.row_counts = [self._memory[e : e + 8 * count].view(np.int64) for _, e in spans]
        self._address(owners, starts[:-1] + count, begins)

    def parts(self, server: int) -> tuple[list[Array], list[Array]]:
        """Return what one server has to do with: the ids and the rows [n, width] of each table."""
        message = self.messages[server]
        counts = message[: len(self.tables)].tolist()
        return split_ids(message, len(counts)), rows_of(self.tables, counts, self.rows[server])

    def take(self, table: int, starts: Array, outs: Array) -> None:
        """Copy rows out: those of the table's ids ``starts[k]:starts[k + 1]`` to ``outs[k]``.

        ``outs`` (int64) are the addresses of float32 [n, width], C-contiguous.
        """
        self._kernels.take_rows(*self._lying(table), starts, outs)

    def clear(self) -> None:
        """Set all rows to zero, before gradients are added up in them."""
        for rows in self.rows:
            rows[:] = 0

    def add(self, table: int, starts: Array, values: Array) -> None:
        """Add values to rows: those at the address ``values[k]`` to the rows that `take` copies."""
        self._kernels.add_rows(*self._lying(table), starts, values)

    def check_finite(self, quantity: str) -> None:
        """Refuse rows that hold NaN or infinity, before any of them is sent or applied."""
        # All bytes at once first: what lies between tables' rows may tell wrongly of a bad one.
        if all(self._first_not_finite(rows.view(np.uint32)) < 0 for rows in self.rows):
            return
        for t, table in enumerate(self.tables):
            rows, where = self._elements, self._where[t]
            bad = self._kernels.first_not_finite(rows, where, table.width)
            if bad >= 0:
                row = rows[where[bad] : where[bad] + table.width]
                raise TableError(
                    f"table {table.name!r}: {quantity} of id {self._unique[t][bad]} is not finite "
                    f"({_sample(row)}); no table is changed in this step; look for a "
                    "division by zero or an overflow, or lower the learning rate"
                )

    # -- inside --

    def _once_each(self, ids: Sequence[Array]) -> list[Array]:
        self._unique, self._places, self._where = [], [], []
        owners: list[Array] = []
        first: dict[tuple[int, int | None], int] = {}  # table by its ids and padding
        for t, (table, table_ids) in enumerate(zip(self.tables, ids, strict=True)):
            twin = first.setdefault((id(table_ids), table.padding), t)
            if twin != t:  # the very same ids
                self._unique.append(self._unique[twin])
                self._places.append(self._places[twin])
                self._where.append(np.empty(len(self._unique[twin]), np.int64))
                owners.append(owners[twin])
                continue
            n = len(table_ids)
            if n > len(self._scratch[t][0]):
                self._scratch[t] = _scratch(_roomy(n))
            unique, places, where = (array[:n] for array in self._scratch[t])
            heads = 2 << n.bit_length()
            if heads > len(self._heads):
                self._heads = np.empty(heads, np.int32)
            padding = 0 if table.padding is None else table.padding
            different = self._kernels.once_each(
                table_ids, padding, table.padding is not None, self._heads[:heads], unique, places
            )
            self._unique.append(unique[:different])
            self._places.append(places)
            self._where.append(where[:different])
            owners.append(owners_of(unique[:different], self._servers))
        return owners

    def _address(
        self, owners: Sequence[Array], next_id: Array, begins: Sequence[Sequence[int]]
    ) -> None:
        for t, table in enumerate(self.tables):
            if not len(self._unique[t]):
                continue
            next_row = np.array([begin[t] // 4 for begin in begins], np.int64)
            self._kernels.address(
                self._unique[t],
                owners[t],
                table.width,
                next_id,
                next_row,
                self._ids,
                self._where[t],
            )

    def _lying(self, table: int) -> tuple[Array, Array, Array, int]:
        width = self.tables[table].width
        return self._elements, self._places[table], self._where[table], width

    @property
    def _elements(self) -> Array:
        return self._memory.view(np.float32)


def line_aligned(nbytes: int) -> Array:
    """Return uninitialized uint8 that begins on a cache line; a multiple of it long."""
    nbytes = round_up(nbytes, LINE)
    raw = np.empty(nbytes + LINE, np.uint8)
    skip = -raw.ctypes.data % LINE
    return raw[skip : skip + nbytes]


def _scratch(n: int) -> tuple[Array, Array, Array]:
    return np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n, np.int64)


def _roomy(n: int) -> int:
    """Leave room for a somewhat larger batch, so that memory is seldom taken anew."""
    return n + n // 4


def _sample(row: Any) -> str:
    values = ", ".join(f"{value:g}" for value in row[:4])
    return f"{values}, ..." if len(row) > 4 else values

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

from hpcdist.base.division import round_up
from hpcdist.base.errors import TableError
from hpcdist.base.trace.events import Count
from hpcdist.base.trace.recorder import recorder
from hpcdist.comm.base import Array

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


def ids_of_parts(parts: int) -> Array:
    """Return an id of each part, int64 [parts]: ``owners_of(ids_of_parts(n), n)`` counts to n."""
    from hpcdist.ps import batch_kernels

    least = [-(-(part << 32) // parts) << 32 for part in range(parts)]
    mixes = np.array(least, np.uint64)
    batch_kernels.from_mix(mixes)
    return mixes.view(np.int64)


def sort_by_mix(ids: Array) -> None:
    """Sort ids in place by the mix that `owners_of` goes by.

    ids: int64 [n].
    """
    from hpcdist.ps import batch_kernels

    mixes = ids.view(np.uint64)
    batch_kernels.to_mix(mixes)
    mixes.sort()
    batch_kernels.from_mix(mixes)


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
        # What the kernels read and write, of all tables.
        self._tables = np.zeros((len(self.tables), 7), np.int64)
        self._tables[:, batch_kernels.PADS] = [t.padding is not None for t in self.tables]
        self._tables[:, batch_kernels.WIDTH] = [t.width for t in self.tables]
        self._padded = np.array([t.padding or 0 for t in self.tables], np.int64)
        self._unique, self._where = np.empty(0, np.int64), np.empty(0, np.int64)
        self._places, self._heads = np.empty(0, np.int32), np.empty(0, np.int32)

    def index(self, ids: Sequence[Array]) -> None:
        """Take the ids of each table: int64 [n], in the order of the batch, with repeats."""
        servers, count = self._servers, len(self.tables)
        counts = self._once_each(ids)
        recorder.count(Count.LOOKED_UP, int(counts.sum()))
        starts = np.zeros(servers + 1, np.int64)  # of the servers' messages, in numbers
        np.cumsum(count + counts.sum(axis=0), out=starts[1:])
        if starts[-1] > len(self._ids):
            self._ids = np.empty(_roomy(int(starts[-1])), np.int64)
        self.messages = [self._ids[b:e] for b, e in itertools.pairwise(starts)]
        next_row = np.empty((count, servers), np.int64)
        spans, end = [], 0  # of rows, by server
        for server in range(servers):
            self.messages[server][:count] = counts[:, server]
            offsets, nbytes = rows_layout(self.tables, counts[:, server].tolist())
            next_row[:, server] = offsets
            next_row[:, server] += end
            spans.append((end, end + nbytes))
            end += nbytes + round_up(8 * count, LINE)
        if end > len(self._memory):
            self._memory = line_aligned(_roomy(end))
        self.rows = [self._memory[b:e] for b, e in spans]
        self.replies = [self._memory[b : e + 8 * count] for b, e in spans]
        self.row_counts = [self._memory[e : e + 8 * count].view(np.int64) for _, e in spans]
        next_id, next_row = starts[:-1] + count, next_row // 4
        self._kernels.address(self._unique, self._tables, next_id, next_row, self._ids, self._where)

    def parts(self, server: int) -> tuple[list[Array], list[Array]]:
        """Return the parts of one server: the ids and the rows [n, width] of each table."""
        message = self.messages[server]
        counts = message[: len(self.tables)].tolist()
        return split_ids(message, len(counts)), rows_of(self.tables, counts, self.rows[server])

    def take(self, moves: Array) -> None:
        """Copy rows out, for look-ups of any tables.

        moves: int64 [look-ups, 4], each a table, the first of its ids and how many, and the address
        of float32 [how many, width], C-contiguous, that the rows are copied to.
        """
        self._kernels.take_rows(*self._lying, moves)

    def clear(self) -> None:
        """Set all rows to zero, before gradients are added up in them."""
        for rows in self.rows:
            rows[:] = 0

    def add(self, moves: Array) -> None:
        """Add values to rows, in the order of the moves: those at the addresses of `take`."""
        self._kernels.add_rows(*self._lying, moves)

    def check_finite(self, quantity: str) -> None:
        """Refuse rows that hold NaN or infinity, before any of them is sent or applied."""
        kernels = self._kernels
        # All bytes at once first: what lies between tables' rows may tell wrongly of a bad one.
        if all(self._first_not_finite(rows.view(np.uint32)) < 0 for rows in self.rows):
            return
        for table, facts in zip(self.tables, self._tables, strict=True):
            begin, different, origin = facts[[kernels.BEGIN, kernels.DIFFERENT, kernels.WHERE]]
            rows, where = self._elements, self._where[origin : origin + different]
            bad = kernels.first_not_finite(rows, where, table.width)
            if bad >= 0:
                row = rows[where[bad] : where[bad] + table.width]
                raise TableError(
                    f"table {table.name!r}: {quantity} of id {self._unique[begin + bad]} is not "
                    f"finite ({_sample(row)}); no table is changed in this step; look for a "
                    "division by zero or an overflow, or lower the learning rate"
                )

    # -- inside --

    def _once_each(self, ids: Sequence[Array]) -> Array:
        """Find each table's different ids; return how many there are: int64 [tables, servers]."""
        kernels = self._kernels
        first: dict[tuple[int, int | None], int] = {}  # table by its ids and padding
        own: list[Array] = []
        end = most = different = 0
        facts = []
        for t, (table, table_ids) in enumerate(zip(self.tables, ids, strict=True)):
            twin = first.setdefault((id(table_ids), table.padding), t)
            if twin == t:
                own.append(table_ids)
                facts.append((t, end, len(table_ids)))
                end += len(table_ids)
                most = max(most, len(table_ids))
            else:  # the very same ids
                facts.append((twin, *facts[twin][1:]))
            different += facts[-1][-1]
        self._tables[:, kernels.TWIN : kernels.COUNT + 1] = facts
        self._scratch(end, different, 2 << most.bit_length())
        counts = np.zeros((len(facts), self._servers), np.int64)
        kernels.once_each(
            own[0] if len(own) == 1 and own[0].flags.carray else np.concatenate(own),
            self._tables,
            self._padded,
            self._heads,
            self._unique,
            self._places,
            counts,
        )
        return counts

    def _scratch(self, ids: int, different: int, heads: int) -> None:
        """Keep arrays of at least so many elements."""
        if ids > len(self._places):
            self._unique = np.empty(_roomy(ids), np.int64)
            self._places = np.empty(_roomy(ids), np.int32)
        if different > len(self._where):
            self._where = np.empty(_roomy(different), np.int64)
        if heads > len(self._heads):
            self._heads = np.empty(heads, np.int32)

    @property
    def _lying(self) -> tuple[Array, Array, Array, Array]:
        return self._elements, self._places, self._where, self._tables

    @property
    def _elements(self) -> Array:
        return self._memory.view(np.float32)


def line_aligned(nbytes: int) -> Array:
    """Return uninitialized uint8 that begins on a cache line; a multiple of it long."""
    nbytes = round_up(nbytes, LINE)
    raw = np.empty(nbytes + LINE, np.uint8)
    skip = -raw.ctypes.data % LINE
    return raw[skip : skip + nbytes]


def _roomy(n: int) -> int:
    """Leave room for a somewhat larger batch, so that memory is seldom taken anew."""
    return n + n // 4


def _sample(row: Any) -> str:
    values = ", ".join(f"{value:g}" for value in row[:4])
    return f"{values}, ..." if len(row) > 4 else values

"""Tables divided among the trainers, for jobs without servers.

The mix of an id decides which trainer has the row, as it would among that many servers. Look-ups
and gradients of rows are exchanged collectively: each trainer sends every other its part.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.base.trace.events import Cause
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.collective import RankGroup
from hpcdist.ps.batch import LookupBatch, TableSpec, line_aligned, rows_layout, rows_of, split_ids
from hpcdist.ps.table import SparseTable
from hpcdist.ps.table_rpc import check_room, move
from hpcdist.ps.wire import unended

HEAD_TAG, IDS_TAG, ROWS_TAG = 1, 2, 3
_WHAT = ("look rows up", "push gradients of tables")


class ShardedTables:
    """This trainer's rows of all tables, and its exchange of rows with the other trainers.

    Gradients move tables as on synchronous servers: added in trainer order, and divided by the
    number of trainers if they are to be a ``mean``. ``pull`` and ``push`` are collective, on
    batches made for as many servers as there are trainers.
    """

    restored = 0  # rows are never asked for ahead

    def __init__(
        self,
        transport: Transport,
        specs: Sequence[TableSpec],
        tables: Sequence[SparseTable],
        deadline_s: float,
        *,
        mean: bool = True,
    ) -> None:
        """``transport`` is of all trainers and of nobody else's messages."""
        self._transport = transport
        self._specs = tuple(specs)
        self._tables = tuple(tables)
        self._deadline_s = deadline_s
        self._group = RankGroup(transport, tuple(range(transport.size)), deadline_s)
        self._mean = mean
        self._met = 0  # how often all trainers have
        self._names = ", ".join(spec.name for spec in self._specs)
        self._others = [k for k in range(transport.size) if k != transport.rank]
        self._answers = [line_aligned(0) for _ in range(transport.size)]  # kept, and grown
        self._ids = [np.empty(0, np.int64) for _ in range(transport.size)]

    def pull(self, batch: LookupBatch, *, create: bool = True) -> None:
        """Fill the batch's rows, making rows that nobody has touched if asked. Collective."""
        asked = self._exchange_ids(batch, _WHAT[0])
        receives = [(k, batch.replies[k]) for k in self._others]
        sends = []
        for k, ids in enumerate(asked):
            mine = k == self._transport.rank
            counts = [len(i) for i in ids]
            _, end = rows_layout(self._specs, counts)
            answer = batch.replies[k] if mine else self._room(k, end + 8 * len(self._tables))
            for table, wanted, rows in zip(
                self._tables, ids, rows_of(self._specs, counts, answer), strict=True
            ):
                if len(wanted):
                    table.pull(wanted, rows, create=create)
            if not mine:
                sends.append((k, answer))
        for k in range(len(asked)):  # when all of this trainer's rows are made
            answer = batch.replies[k] if k == self._transport.rank else self._answers[k]
            _, end = rows_layout(self._specs, [len(i) for i in asked[k]])
            row_counts = answer[end : end + 8 * len(self._tables)].view(np.int64)
            row_counts[:] = [len(table) for table in self._tables]
        self._exchange(ROWS_TAG, sends, receives, _WHAT[0])
        check_room(batch, "trainer")

    def start_pull(self, batch: LookupBatch) -> None:
        """Do as `pull`: all trainers meet for it."""
        self.pull(batch)

    def finish_pull(self, batch: LookupBatch) -> None:
        """Nothing is under way."""

    def push(self, batch: LookupBatch, rates: Sequence[float]) -> None:
        """Move all tables by the mean of the gradients in all trainers' rows. Collective.

        ``rates`` are the learning rates by table, the same on all trainers.
        """
        told = self._exchange_ids(batch, _WHAT[1], rates)
        counts = [[len(i) for i in ids] for ids in told]
        given = []
        for k, numbers in enumerate(counts):
            _, end = rows_layout(self._specs, numbers)
            given.append(batch.rows[k] if k == self._transport.rank else self._room(k, end))
        self._exchange(
            ROWS_TAG,
            [(k, batch.rows[k]) for k in self._others],
            [(k, given[k]) for k in self._others],
            _WHAT[1],
        )
        sent = [
            list(zip(ids, rows_of(self._specs, numbers, rows), strict=True))
            for ids, numbers, rows in zip(told, counts, given, strict=True)
        ]
        move(self._tables, sent, rates, mean=self._mean)

    def finish(self) -> None:
        """Nothing is under way."""

    # -- inside --

    def _exchange_ids(
        self, batch: LookupBatch, what: str, rates: Sequence[float] = ()
    ) -> list[list[Array]]:
        """Return the ids of each table that each trainer has for this one."""
        rank = self._transport.rank
        self._met += 1
        of = zlib.crc32(self._names.encode())
        said = zlib.crc32(np.array(rates, np.float64).tobytes())
        sizes = [
            np.array([len(message), _WHAT.index(what), self._met, of, said], np.int64)
            for message in batch.messages
        ]
        heads = np.empty((len(sizes), 5), np.int64)
        heads[rank] = sizes[rank]
        self._exchange(
            HEAD_TAG,
            [(k, sizes[k]) for k in self._others],
            [(k, heads[k]) for k in self._others],
            what,
        )
        self._check_alike(heads, rates)
        lengths = heads[:, 0]
        for k in self._others:
            if lengths[k] > len(self._ids[k]):
                self._ids[k] = np.empty(int(lengths[k]) * 5 // 4, np.int64)
        messages = [ids[:n] for ids, n in zip(self._ids, lengths, strict=True)]
        messages[rank] = batch.messages[rank]
        self._exchange(
            IDS_TAG,
            [(k, batch.messages[k]) for k in self._others],
            [(k, messages[k]) for k in self._others],
            what,
        )
        return [split_ids(message, len(self._tables)) for message in messages]

    def _check_alike(self, heads: Array, rates: Sequence[float]) -> None:
        """Refuse trainers that do not all do the same: they would take rows for gradients."""
        rank = self._transport.rank
        for k in self._others:
            if (heads[k, 1:3] != heads[rank, 1:3]).any():
                doing = [
                    f"trainer {t} is to {_WHAT[heads[t, 1]]} (exchange {heads[t, 2]})"
                    for t in (rank, k)
                ]
                raise CommError(
                    f"tables that live on trainers: {' but '.join(doing)}; every trainer must look "
                    "up and step equally often, in the same order"
                )
            if heads[k, 3] != heads[rank, 3]:
                raise CommError(
                    f"tables that live on trainers: trainer {rank} is to {_WHAT[heads[rank, 1]]} "
                    f"({self._names}), but trainer {k} runs a program of other tables; every "
                    "trainer must run the same programs, in the same order"
                )
            if heads[k, 4] != heads[rank, 4]:
                raise CommError(
                    f"trainers {rank} and {k} push with different learning rates in one step: "
                    f"trainer {rank} has {list(rates)}, by table; set them alike on all trainers"
                )

    def _room(self, trainer: int, nbytes: int) -> Array:
        if nbytes > len(self._answers[trainer]):
            self._answers[trainer] = line_aligned(nbytes + nbytes // 4)
        return self._answers[trainer][:nbytes]

    def _exchange(
        self,
        tag: int,
        sends: Sequence[tuple[int, Array]],
        receives: Sequence[tuple[int, Array]],
        what: str,
    ) -> None:
        """Send and receive at once; what is empty does not travel, as both ends know."""
        transport = self._transport
        coming = [(k, transport.irecv(data, k, tag)) for k, data in receives if data.nbytes]
        going: list[Request] = [transport.isend(data, k, tag) for k, data in sends if data.nbytes]

        describe = self._group.lacking(
            lambda: f"all trainers to {what}",
            lambda: [coming[i][0] for i in unended(transport, [r for _, r in coming])],
            Cause.TABLE,
        )
        transport.wait_all(
            [*(request for _, request in coming), *going], describe, self._deadline_s
        )

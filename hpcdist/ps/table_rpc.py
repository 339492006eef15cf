"""Tables on servers: rows requested and gradients sent, one message per server.

A request is a control header, then `LookupBatch.messages`: counts and ids of all tables. The answer
to TABLE_PULL (TABLE_PEEK: without creating rows) is `LookupBatch.replies`; a large one comes in
pieces, so that the server looks up rows while others are in flight. TABLE_PUSH is followed by the
gradients, in the order of the rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from hpcdist.base.errors import CommError, TableError
from hpcdist.base.trace.events import Cause, Count, EventKind
from hpcdist.base.trace.recorder import recorder
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.ps.batch import LookupBatch, TableSpec, line_aligned, rows_layout, rows_of, split_ids
from hpcdist.ps.messages import REQUEST_TAG, ROWS_TAG, VALUE_TAG, Header, MessageKind, encode_header
from hpcdist.ps.row_exchange import Messages, RowExchangeClient, RowExchangeServer
from hpcdist.ps.table import SparseTable
from hpcdist.ps.wire import finish_sends

PIECE = 1 << 20  # bytes of an answer that travel together
NO_IDS = np.empty(0, np.int64)
IDS, ROWS, GRADIENTS = "ids of tables", "rows of tables", "gradients of tables"  # as traces say


class TableClient(RowExchangeClient):
    """A trainer's exchange of tables' rows with all servers."""

    def __init__(
        self, transport: Transport, cluster: Cluster, trainer_id: int, deadline_s: float
    ) -> None:
        super().__init__(transport, cluster, trainer_id, deadline_s)
        self._pending: Messages = []  # for rows that are waited for later
        self._pulls = 0  # how often rows have been asked for
        self._asked = self._answered = 0  # `pushes` when rows were last asked for, and have come
        self.pushes = 0  # steps whose gradients have been sent
        self.restored = 0  # how often the servers' tables have been loaded

    def pull(self, batch: LookupBatch, *, create: bool = True) -> None:
        """Fill the batch's rows, as they are after all updates of the steps before this one.

        Without ``create`` rows that nobody has touched are answered, but not made.
        """
        self.start_pull(batch, create=create)
        self.finish_pull(batch)

    def start_pull(self, batch: LookupBatch, *, create: bool = True) -> None:
        """Ask all servers for rows; until `finish_pull` the batch must stay as it is.

        The rows are as they are when the servers answer, after all updates of the steps before
        this one.
        """
        waiting = self._pending
        kind = MessageKind.TABLE_PULL if create else MessageKind.TABLE_PEEK
        self._pulls += 1
        self._asked = self.pushes
        for rank, message, reply in zip(self._cluster.servers, batch.messages, batch.replies):
            for piece in _pieces(reply):
                waiting.append((rank, self._transport.irecv(piece, rank, VALUE_TAG)))
            begin = time.monotonic_ns()
            waiting += self._post(rank, kind, message)
            _note(EventKind.SENT, IDS, begin, message.nbytes, rank, self._pulls)

    def finish_pull(self, batch: LookupBatch) -> None:
        """Wait for the rows; TableError if the servers together hold more ids than a table may."""
        self._finish_pending()
        now = time.monotonic_ns()
        for rank, reply in zip(self._cluster.servers, batch.replies):
            _note(EventKind.RECEIVED, ROWS, now, reply.nbytes, rank, self._pulls)
        check_room(batch, "server")

    def settle(self, tables: Sequence[TableSpec]) -> None:
        """Wait until the servers have applied what they must have before they answer for rows.

        Synchronously that is what all trainers have pushed in as many steps as this one.
        """
        nothing = LookupBatch(tables, len(self._cluster.servers))
        nothing.index([NO_IDS] * len(tables))
        self.finish()
        self.start_pull(nothing, create=False)
        self.finish_pull(nothing)

    def push(self, batch: LookupBatch, rates: Sequence[float] = ()) -> None:
        """Start sending the gradients in the batch's rows; they must stay until `finish`.

        Servers have learning ``rates`` of their own. They take gradients of one step at a time:
        after a step without look-ups, whose answers say so, this waits until they have applied it.
        """
        if self._answered < self.pushes:
            self.settle(batch.tables)
        for rank, message, rows in zip(self._cluster.servers, batch.messages, batch.rows):
            begin = time.monotonic_ns()
            self.sending += self._post(rank, MessageKind.TABLE_PUSH, message)
            if len(rows):
                self.sending.append((rank, self._transport.isend(rows, rank, ROWS_TAG)))
            nbytes = message.nbytes + rows.nbytes
            _note(EventKind.SENT, GRADIENTS, begin, nbytes, rank, self.pushes + 1)
        self.pushes += 1

    def close(self) -> None:
        """Wait until nothing is under way: not what was pushed, and no rows asked for."""
        self._finish_pending()
        self.finish()

    def _finish_pending(self) -> None:
        if self._pending:
            step = self.pushes
            self._await(
                self._pending,
                Cause.TABLE,
                lambda: f"trainer {self._trainer}, step {step + 1}: waiting for rows of tables",
            )
            self._pending.clear()
            self._answered = self._asked

    def _post(self, rank: int, kind: MessageKind, message: Array) -> Messages:
        header = encode_header(kind, self._trainer, self.pushes, message.nbytes)
        parts = (header, message)
        return [(rank, self._transport.isend(part, rank, REQUEST_TAG)) for part in parts]


class TableServer(RowExchangeServer):
    """A server's part of every table: answers for rows, takes gradients and applies them."""

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        tables: Sequence[tuple[TableSpec, SparseTable]],
        deadline_s: float,
    ) -> None:
        super().__init__(transport, ranks, deadline_s)
        self._specs = [spec for spec, _ in tables]
        self._tables = [table for _, table in tables]
        # By trainer, kept from step to step: memory of ids asked for, while no request that lies in
        # it waits for its answer; ids pushed, gradients, rows.
        self._pull_ids = [NO_IDS] * len(ranks)
        self._push_ids = [NO_IDS] * len(ranks)
        self._gradients = [line_aligned(0) for _ in ranks]
        self._replies = [line_aligned(0) for _ in ranks]
        self._sending: list[list[Request]] = [[] for _ in ranks]
        self._asks = [0] * len(ranks)  # how often a trainer has asked for rows
        # pushed[k][t] is (ids, gradients) that trainer k sent of table t in the step being merged.
        self._pushed: list[list[tuple[Array, Array]]] = [[] for _ in ranks]

    def take_pull(self, trainer: int, header: Header) -> None:
        """Receive the ids of a TABLE_PULL or TABLE_PEEK; `answer` replies when it may."""
        begin = time.monotonic_ns()
        ids, memory = self._take(trainer, header, self._pull_ids[trainer])
        self._pull_ids[trainer] = NO_IDS  # an evaluation asks while rows ahead are not yet answered
        self._asks[trainer] = number = self._asks[trainer] + 1
        _note(EventKind.RECEIVED, IDS, begin, header.length, self._ranks[trainer], number)
        create = header.kind is MessageKind.TABLE_PULL

        def answer() -> None:
            self._reply(trainer, ids, create, number)
            self._pull_ids[trainer] = memory

        self._pulls.append((trainer, header.step, answer))

    def take_push(self, trainer: int, header: Header) -> None:
        """Receive the ids and gradients of a TABLE_PUSH."""
        begin = time.monotonic_ns()
        ids, self._push_ids[trainer] = self._take(trainer, header, self._push_ids[trainer])
        counts = [len(i) for i in ids]
        _, end = rows_layout(self._specs, counts)
        if end > len(self._gradients[trainer]):
            self._gradients[trainer] = line_aligned(end + end // 4)
        gradients = self._gradients[trainer][:end]
        if end:
            self._receive(trainer, ROWS_TAG, [gradients], GRADIENTS)
        nbytes, rank = header.length + end, self._ranks[trainer]
        _note(EventKind.RECEIVED, GRADIENTS, begin, nbytes, rank, header.step + 1)
        self._pushed[trainer] = list(zip(ids, rows_of(self._specs, counts, gradients)))

    def apply(
        self, contributors: Sequence[int], rates: Sequence[float], *, mean: bool = True
    ) -> None:
        """Move all tables by the mean, or the sum, of what the contributors sent; see `move`."""
        move(self._tables, [self._pushed[k] for k in contributors], rates, mean=mean)

    # -- inside --

    def _take(self, trainer: int, header: Header, buffer: Array) -> tuple[list[Array], Array]:
        """Receive counts and ids; return the ids by table, and the buffer that they lie in."""
        count, rest = divmod(header.length, 8)
        if rest:
            raise CommError(
                f"malformed message: {header.kind.name} of trainer {trainer} has {header.length} "
                "bytes, expected a multiple of 8: int64 numbers"
            )
        if count > len(buffer):
            buffer = np.empty(count + count // 4, np.int64)
        message = buffer[:count]
        self._receive(trainer, REQUEST_TAG, [message], IDS)
        return split_ids(message, len(self._tables)), buffer

    def _reply(self, trainer: int, ids: Sequence[Array], create: bool, number: int) -> None:
        started = time.monotonic_ns()
        counts = [len(i) for i in ids]
        begins, end = rows_layout(self._specs, counts)
        total = end + 8 * len(self._tables)
        self._finish(trainer)
        if total > len(self._replies[trainer]):
            self._replies[trainer] = line_aligned(total + total // 4)
        reply = self._replies[trainer][:total]
        pieces, sent = _pieces(reply), 0
        for table, begin, table_ids, rows in zip(
            self._tables, begins, ids, rows_of(self._specs, counts, reply)
        ):
            row_bytes = 4 * table.sent_width
            step = max(1, PIECE // row_bytes)
            for first in range(0, len(table_ids), step):
                part = slice(first, first + step)
                table.pull(table_ids[part], rows[part], create=create)
                ready = begin + min(first + step, len(table_ids)) * row_bytes
                while (sent + 1) * PIECE <= ready:
                    self._send(trainer, pieces[sent])
                    sent += 1
        reply[end:].view(np.int64)[:] = [len(table) for table in self._tables]
        for piece in pieces[sent:]:
            self._send(trainer, piece)
        _note(EventKind.SENT, ROWS, started, total, self._ranks[trainer], number)

    def _send(self, trainer: int, piece: Array) -> None:
        request = self._transport.isend(piece, self._ranks[trainer], VALUE_TAG)
        self._sending[trainer].append(request)

    def _finish(self, trainer: int) -> None:
        """Wait until the last answer has left: the trainer has it, or it would not ask again."""
        finish_sends(
            self._transport,
            self._sending[trainer],
            lambda: f"sending rows of tables to trainer {trainer}",
            self._deadline_s,
        )
        self._sending[trainer].clear()

    def close(self) -> None:
        """Wait until all answers have left."""
        for trainer in range(len(self._ranks)):
            self._finish(trainer)


def move(
    tables: Sequence[SparseTable],
    sent: Sequence[Sequence[tuple[Array, Array]]],
    rates: Sequence[float],
    *,
    mean: bool = True,
) -> None:
    """Move tables by the mean, or the sum, of what trainers sent: ``sent[k][t]``: (ids, gradients).

    ``rates`` are by table. Gradients of one id are added in trainer order. A gradient that is no
    number changes nothing: TableError.
    """
    for t, (table, rate) in enumerate(zip(tables, rates, strict=True)):
        if not math.isfinite(rate):
            raise TableError(f"table {table.name!r}: expected a finite learning rate, got {rate}")
        ids, gradients = sent[0][t]
        if len(sent) > 1:
            ids = np.concatenate([pushed[t][0] for pushed in sent])
            gradients = np.concatenate([pushed[t][1] for pushed in sent])
        scale = 1.0 / len(sent) if mean else 1.0
        table.push(ids, gradients, rate, scale, repeats=len(sent) > 1)
    recorder.count(Count.HELD, sum(map(len, tables)))


def check_room(batch: LookupBatch, holders: str) -> None:
    """Raise TableError if all that hold a table's rows together hold more ids than it may have."""
    for t, table in enumerate(batch.tables):
        in_use = [int(counts[t]) for counts in batch.row_counts]
        if table.dict_size is not None and sum(in_use) > table.dict_size:
            raise TableError(too_many(table.name, table.dict_size, in_use, holders))


def too_many(name: str, dict_size: int, in_use: Sequence[int], holders: str = "server") -> str:
    """Return the words for a table of which its ``holders`` together hold too many ids."""
    where = ", ".join(f"{holders} {k}: {n}" for k, n in enumerate(in_use))
    return (
        f"table {name!r} is full: it has room for {dict_size} ids, and {sum(in_use)} are in use "
        f"({where}); raise size[0] of the embedding, or give -1 for any number of ids"
    )


def _note(kind: EventKind, name: str, begin_ns: int, nbytes: int, peer: int, number: int) -> None:
    """Note a message in those steps whose details are noted: on both its ends, by its number."""
    if not number & recorder.mask:
        recorder.message(kind, name, begin_ns, nbytes, peer, number)


def _pieces(reply: Array) -> list[Array]:
    return [reply[begin : begin + PIECE] for begin in range(0, len(reply), PIECE)]

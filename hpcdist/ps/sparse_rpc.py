"""Rows of tables by index: requested in the forward pass, their gradients sent in the backward
pass.

How many rows there are is different in every step, so each exchange begins with a control message
(PULL or PUSH), and the arrays follow it. CHANGED asks for the rows that trainers have pushed to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.base.trace.events import Cause, Count, waits_for_cause
from hpcdist.base.trace.recorder import recorder
from hpcdist.comm.base import Array, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import waits_for_ranks
from hpcdist.ps.messages import REPLY_TAG, REQUEST_TAG, ROWS_TAG, VALUE_TAG, Header, MessageKind
from hpcdist.ps.packets import VarSpec
from hpcdist.ps.row_exchange import Messages, RowExchangeClient, RowExchangeServer
from hpcdist.ps.wire import finish_sends, post_message, receive_message


@dataclass(frozen=True)
class RowRequest:
    """Rows ``ids`` (int64 [n], numbered within the server's part) of a table, wanted in ``out``."""

    endpoint: str
    table: str
    ids: Array
    out: Array  # [n, width], C-contiguous


class SentRows(NamedTuple):
    """A server's part of a trainer's sparse gradient: ``rows`` int64 [n], ``values`` [n, ...].

    ``beside_rows``: whether the gradient has rows, on this server or on another.
    """

    rows: Array
    values: Array
    beside_rows: bool = False


class RowClient(RowExchangeClient):
    """A trainer's exchange of rows with all servers."""

    def __init__(
        self, transport: Transport, cluster: Cluster, trainer_id: int, deadline_s: float
    ) -> None:
        super().__init__(transport, cluster, trainer_id, deadline_s)
        self._unfinished: list[Array] = []  # arrays that are being sent

    def pull(self, requests: Sequence[RowRequest], step: int) -> None:
        """Fill every request's ``out``: all servers are asked first, then all are waited for.

        A request for no rows is made too: its answer says that the server has ended the last step,
        without which a trainer could push twice in one step.
        """
        recorder.count(Count.LOOKED_UP, sum(len(request.ids) for request in requests))
        waiting: Messages = []
        for request in requests:
            rank = self._cluster.rank_of_endpoint(request.endpoint)
            waiting.append((rank, self._transport.irecv(request.out, rank, VALUE_TAG)))
            payload = [request.table, len(request.ids)]
            waiting += self._post(rank, MessageKind.PULL, step, payload, (request.ids,))
        tables = ", ".join(sorted({r.table for r in requests}))
        self._await(
            waiting,
            Cause.TABLE,
            lambda: f"trainer {self._trainer}, step {step + 1}: waiting for rows of {tables}",
        )

    def push(self, endpoint: str, gradient: str, sent: SentRows, step: int) -> None:
        """Start sending a sparse gradient, of which there may be no rows; it is copied first."""
        rank, count = self._cluster.rank_of_endpoint(endpoint), len(sent.rows)
        arrays = (np.array(sent.rows), np.array(sent.values)) if count else ()
        self._unfinished += arrays
        payload = [gradient, count, sent.beside_rows]
        self.sending += self._post(rank, MessageKind.PUSH, step, payload, arrays)

    def changed(
        self, endpoint: str, table: str, gradient: str, like: Array, step: int
    ) -> tuple[Array, Array]:
        """Return the rows pushed to since this trainer last asked, by anyone: indices, values.

        ``like`` is an array of the server's part of the table.
        """
        rank = self._cluster.rank_of_endpoint(endpoint)

        @waits_for_cause(Cause.TABLE)
        def describe() -> str:
            return f"trainer {self._trainer}, step {step + 1}: waiting for changed rows of {table}"

        requests = self._post(rank, MessageKind.CHANGED, step, [table, gradient], ())
        self._await(requests, Cause.TABLE, describe)
        with waits_for_ranks(lambda: [rank]):
            header, count = receive_message(
                self._transport, rank, REPLY_TAG, describe, self._deadline_s
            )
        if header.kind is not MessageKind.VALUE:
            raise CommError(f"{describe()}: {count}")
        rows, values = _rows_like(like, count)
        if count:
            receives = [(rank, self._transport.irecv(a, rank, VALUE_TAG)) for a in (rows, values)]
            self._await(receives, Cause.TABLE, describe)
        return rows, values

    def finish(self) -> None:
        """Wait until everything pushed has been taken."""
        super().finish()
        self._unfinished.clear()

    def _post(
        self, rank: int, kind: MessageKind, step: int, payload: Any, arrays: Sequence[Array]
    ) -> Messages:
        requests = post_message(
            self._transport, rank, REQUEST_TAG, kind, self._trainer, step, payload
        )
        requests += [self._transport.isend(a, rank, ROWS_TAG) for a in arrays]
        return [(rank, request) for request in requests]


class RowServer(RowExchangeServer):
    """A server's part of every table: receives gradients, answers for rows."""

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        tables: Sequence[VarSpec],
        arrays: Any,
        deadline_s: float,
        *,
        tracked: bool = False,
    ) -> None:
        super().__init__(transport, ranks, deadline_s)
        self._arrays = arrays
        self._specs = {spec.name: spec for spec in tables}
        # changed[gradient][k, row]: someone has pushed to the row since trainer k last asked.
        self._changed = {
            spec.name: np.zeros((len(ranks), spec.shape[0]), bool) for spec in tables if tracked
        }
        # gradients[name][k] is what trainer k sent in the step being merged.
        self.gradients: dict[str, list[SentRows]] = {
            spec.name: [SentRows(*_rows_like(spec, 0))] * len(ranks) for spec in tables
        }

    def take_push(self, trainer: int, payload: Any) -> str:
        """Receive the arrays that a PUSH announces; return the name of the gradient."""
        name, count, beside_rows = _announced(payload, MessageKind.PUSH)
        spec = self._specs.get(name)
        if spec is None:
            raise CommError(
                f"trainer {trainer} sent rows of {name!r}, which has no sparse gradient"
            )
        rows, values = _rows_like(spec, count)
        if count:
            self._receive(trainer, ROWS_TAG, (rows, values), f"rows of {name}")
            _check_ids(name, rows, spec.shape[0], trainer)
        self.gradients[name][trainer] = SentRows(rows, values, beside_rows)
        if name in self._changed:
            self._changed[name][:, rows] = True
        return name

    def take_pull(self, trainer: int, header: Header, payload: Any) -> None:
        """Receive the ids that a PULL announces; the answer goes out when the step allows it."""
        table, count, _ = _announced(payload, MessageKind.PULL)
        ids = np.empty(count, np.int64)
        self._receive(trainer, ROWS_TAG, (ids,), f"ids of {table}")
        if table not in self._arrays:
            raise CommError(
                f"trainer {trainer} asked for rows of {table!r}, which is not on this server"
            )
        _check_ids(table, ids, len(self._arrays[table]), trainer)
        self._pulls.append((trainer, header.step, partial(self._reply, trainer, table, ids)))

    def _reply(self, trainer: int, table: str, ids: Array) -> None:
        values = np.take(self._arrays[table], ids, axis=0)
        request = self._transport.isend(values, self._ranks[trainer], VALUE_TAG)
        words = f"sending rows of {table} to trainer {trainer}"
        finish_sends(self._transport, [request], words.__str__, self._deadline_s)

    def answer_changed(self, trainer: int, header: Header, payload: Any) -> None:
        """Send a trainer the rows that were pushed to since it last asked, as they are now."""
        table, gradient = payload
        if gradient not in self._changed or table not in self._arrays:
            raise CommError(
                f"trainer {trainer} asked for changed rows of {table!r}, which are not tracked here"
            )
        changed = self._changed[gradient][trainer]
        rows = np.flatnonzero(changed)
        changed[:] = False
        rank = self._ranks[trainer]
        answer = post_message(
            self._transport, rank, REPLY_TAG, MessageKind.VALUE, trainer, header.step, len(rows)
        )
        arrays = [rows, np.take(self._arrays[table], rows, axis=0)] if len(rows) else []
        answer += [self._transport.isend(array, rank, VALUE_TAG) for array in arrays]
        words = f"sending changed rows of {table} to trainer {trainer}"
        finish_sends(self._transport, answer, words.__str__, self._deadline_s)


def _rows_like(like: VarSpec | Array, count: int) -> tuple[Array, Array]:
    """Return room for the numbers and the values of ``count`` rows of a table."""
    return np.empty(count, np.int64), np.empty((count, *like.shape[1:]), like.dtype)


def _announced(payload: Any, kind: MessageKind) -> tuple[str, int, bool]:
    """Return the name and the number of rows that a message announces, and what a PUSH adds."""
    try:
        name, count, *more = payload
        (beside_rows,) = more if kind is MessageKind.PUSH else (False,)
        return str(name), int(count), bool(beside_rows)
    except (TypeError, ValueError) as error:
        raise CommError(f"malformed message: {kind.name} payload {payload!r}") from error


def _check_ids(name: str, ids: Array, height: int, trainer: int) -> None:
    if len(ids) and not (ids.min() >= 0 and ids.max() < height):
        raise CommError(
            f"trainer {trainer}: {name} has rows 0..{height - 1} here, "
            f"asked for {ids.min()}..{ids.max()}"
        )

"""Distributed tables at run time: pulling the rows of a batch, pushing their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from hpcdist.comm.base import Array, contiguous
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.planned_tables import check_moves
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.staging import Staging, in_order, rebound
from hpcdist.runtime.tables.make_table import bind_make, server_table
from hpcdist.runtime.tables.prefetch import coming
from hpcdist.runtime.tables.wide_rows import WideRows
from hpcdist.transpiler.table_metadata import padding_in

TABLE_OPS = ("pull_sparse", "push_sparse", "make_table")


class RowExchange(Protocol):
    """Where rows come from and gradients go: the servers, or tables of this process.

    ``restored`` counts how often the tables have been loaded: rows asked for before are others.
    """

    restored: int

    def pull(self, batch: LookupBatch, *, create: bool = True) -> None:
        """Fill the batch's rows; rows nobody has touched are made if asked."""

    def start_pull(self, batch: LookupBatch) -> None:
        """Ask for the batch's rows, to be waited for by `finish_pull`."""

    def finish_pull(self, batch: LookupBatch) -> None:
        """Wait for the rows asked for."""

    def push(self, batch: LookupBatch, rates: Sequence[float]) -> None:
        """Take the gradients that lie in the batch's rows.

        ``rates`` are the learning rates by table; none if servers have them.
        """

    def finish(self) -> None:
        """Release the batch's memory."""


def bind_steps(
    ops: Sequence[Operator],
    binding: Binding,
    tables: Sequence[TableSpec],
    servers: int,
    exchange: Callable[[], RowExchange],
    *,
    ahead: bool = False,
) -> dict[int, Call]:
    """Return the calls of ``pull_sparse`` and ``push_sparse``, by the id of the operator.

    ``tables`` are all that the servers have; those that an operator does not name get no ids. With
    ``ahead``, in asynchronous mode, rows are asked for a step before, if the script says what comes
    (`rows_ahead`); in other modes they must hold all updates of the step between.
    """
    calls: dict[int, Call] = {}
    pulled: dict[tuple[tuple[str, str], ...], _PulledBatch] = {}
    for op in ops:
        if op.type == "pull_sparse":
            turn = _PulledBatch([_padded(spec, op) for spec in tables], servers)
            pulled[_looked_up(op)] = turn
            early = ahead and op.attrs["create"]
            calls[id(op)] = _bind_pull(op, binding, turn, exchange, ahead=early)
        elif op.type == "push_sparse":
            indexed = pulled.get(_looked_up(op))
            turn = indexed or _PulledBatch(tables, servers)
            calls[id(op)] = _bind_push(op, binding, turn, exchange, indexed=indexed is not None)
    return calls


def bind_local(
    ops: Sequence[Operator],
    binding: Binding,
    owner: int,
    owners: int,
    exchange_of: Callable[[Sequence[SparseTable]], RowExchange],
) -> dict[int, Call]:
    """Return operators' calls on tables whose rows are here, or on as many ``owners`` like this.

    ``owner`` numbers this one. ``exchange_of`` is given the tables, by name.
    """
    makes = [op for op in ops if op.type == "make_table"]
    calls = {id(op): bind_make(op, binding, owner, owners) for op in makes}
    steps = [op for op in ops if id(op) not in calls]
    if not steps:
        return calls
    names = sorted({look_up.table for op in steps for look_up in op.attrs["lookups"]})
    tables = [server_table(binding, name) for name in names]
    for op in steps:
        for table in op.attrs.get("tables", ()):
            check_moves(server_table(binding, table.parameter), table)
    exchange = exchange_of(tables)
    specs = [TableSpec(table.name, table.sent_width, table.dict_size) for table in tables]
    return calls | bind_steps(steps, binding, specs, owners, lambda: exchange)


class _PulledBatch:
    """The batch of this step, and the one whose rows were asked for ahead."""

    def __init__(self, tables: Sequence[TableSpec], servers: int) -> None:
        self._tables, self._servers = tables, servers
        self.batch = LookupBatch(tables, servers)
        self._next: LookupBatch | None = None
        self._requested: list[Array] | None = None  # its ids
        self._restored = 0  # how often the tables had been loaded then

    def ask(self, ids: list[Array], exchange: RowExchange) -> None:
        """Ask for the rows of the next step's ids."""
        self._next = self._next or LookupBatch(self._tables, self._servers)
        self._next.index(ids)
        exchange.start_pull(self._next)
        self._requested, self._restored = ids, exchange.restored

    def taken(self, ids: list[Array], exchange: RowExchange) -> bool:
        """Make what was asked for ahead this step's batch, if it was for these ids."""
        if self._requested is None or self._next is None:
            return False
        exchange.finish_pull(self._next)
        same = self._restored == exchange.restored and all(
            map(np.array_equal, self._requested, ids)
        )
        self._requested = None
        if same:
            self.batch, self._next = self._next, self.batch
        return same


def _padded(spec: TableSpec, op: Operator) -> TableSpec:
    """Return the table with the padding of the look-ups of this Program."""
    return replace(spec, padding=padding_in(spec.name, op.attrs["lookups"]))


def _looked_up(op: Operator) -> tuple[tuple[str, str], ...]:
    """Return (table, ids) of every look-up, in the order in which an index has them."""
    tables = [look_up.table for look_up in op.attrs["lookups"]]
    return tuple(sorted(zip(tables, op.input("Ids")), key=lambda pair: pair[0]))


class _LookUps:
    """The look-ups of an operator by table: ids one after the other, and addresses of values.

    Tables of which the same ids are looked up share one array of them.
    """

    def __init__(
        self, op: Operator, staging: Staging, batch: LookupBatch, values: Sequence[str]
    ) -> None:
        self._names: list[tuple[str, ...]] = []  # of the ids, by table
        self._wide: list[WideRows] = []  # of tables that take shows and clicks
        shows = op.attrs.get("shows", ((),) * len(op.attrs["lookups"]))
        by_table: dict[str, list[int]] = {}
        for i, look_up in enumerate(op.attrs["lookups"]):
            by_table.setdefault(look_up.table, []).append(i)
        joined: dict[tuple[str, ...], Array] = {}
        self._copies: list[tuple[list[Array], Array]] = []
        self._alive: list[Array] = []  # as long as their addresses are
        self.flat: list[Array] = []
        moves: list[tuple[int, int, int, int]] = []
        for number, table in enumerate(batch.tables):
            look_ups = by_table.get(table.name, [])
            names = tuple(op.input("Ids")[i] for i in look_ups)
            self._names.append(names)
            parts = [staging.host(name).reshape(-1) for name in names]
            if names not in joined:
                joined[names] = self._joined(parts)
            self.flat.append(joined[names])
            first = 0
            for i, part in zip(look_ups, parts, strict=True):
                array = contiguous(staging.host(values[i]))
                if table.width != array.shape[-1]:
                    here = [staging.host(name).reshape(-1) for name in shows[i]]
                    wide = WideRows(table.name, array.reshape(len(part), -1), here)
                    self._wide.append(wide)
                    array = wide.rows
                self._alive.append(array)
                moves.append((number, first, len(part), array.ctypes.data))
                first += len(part)
        self.moves = np.array(moves, np.int64).reshape(-1, 4)  # as `LookupBatch.take` wants them

    def _joined(self, parts: list[Array]) -> Array:
        if len(parts) == 1 and parts[0].dtype == np.int64:
            return parts[0]
        flat = np.empty(sum(map(len, parts)), np.int64)
        if parts:
            self._copies.append((parts, flat))
        return flat

    def ids(self) -> list[Array]:
        """Return the ids of every table of the batch."""
        for parts, flat in self._copies:
            np.concatenate(parts, out=flat)
        return self.flat

    def narrow(self) -> None:
        """Copy the rows of tables that take shows and clicks to where they are used."""
        for wide in self._wide:
            wide.copy_out()

    def widen(self) -> None:
        """Put the gradients of such rows beside their shows and clicks."""
        for wide in self._wide:
            wide.copy_in()

    def coming(self) -> list[Array] | None:
        """Return the ids of the next batch by table; None if the script has not told them."""
        joined: dict[tuple[str, ...], Array] = {}
        for names in self._names:
            if names not in joined:
                parts = coming(names)
                if parts is None:
                    return None
                joined[names] = np.concatenate([np.empty(0, np.int64), *parts])
        return [joined[names] for names in self._names]


def _bind_pull(
    op: Operator,
    binding: Binding,
    turn: _PulledBatch,
    exchange: Callable[[], RowExchange],
    *,
    ahead: bool,
) -> Call:
    create = op.attrs["create"]

    def make() -> Call | None:
        staging = Staging(binding.arrays, binding.backend, {})
        looked_up = _LookUps(op, staging, turn.batch, op.output("Out"))

        def pull() -> None:
            through = exchange()
            through.finish()
            ids = looked_up.ids()
            if not (ahead and turn.taken(ids, through)):
                turn.batch.index(ids)
                through.pull(turn.batch, create=create)
            turn.batch.take(looked_up.moves)
            looked_up.narrow()
            following = looked_up.coming() if ahead else None
            if following is not None:
                turn.ask(following, through)

        return in_order(staging.down(op.input("Ids")), pull, staging.up(op.output("Out")))

    return rebound(binding, make)


def _bind_push(
    op: Operator,
    binding: Binding,
    turn: _PulledBatch,
    exchange: Callable[[], RowExchange],
    *,
    indexed: bool,
) -> Call:
    """``indexed``: the batch is indexed already, by the pull of the same look-ups."""
    read = [*op.input("Grads"), *op.input("Shows")]
    read += [] if indexed else op.input("Ids")

    def make() -> Call | None:
        staging = Staging(binding.arrays, binding.backend, {})
        looked_up = _LookUps(op, staging, turn.batch, op.input("Grads"))
        moved_at = _rates_of(op, binding)
        rates = [moved_at[table.name] for table in turn.batch.tables if moved_at]

        def push() -> None:
            batch = turn.batch
            if not indexed:
                exchange().finish()
                batch.index(looked_up.ids())
            batch.clear()
            looked_up.widen()
            batch.add(looked_up.moves)
            batch.check_finite("the gradient")
            exchange().push(batch, [float(rate.reshape(-1)[0]) for rate in rates])

        return in_order(staging.down(read), push)

    return rebound(binding, make)


def _rates_of(op: Operator, binding: Binding) -> dict[str, Array]:
    """Return the learning rates by table, where this form of the Program has them; {}: elsewhere.

    Those that a step computes are temporaries, which lie elsewhere for batches of another size.
    """
    tables = dict.fromkeys(look_up.table for look_up in op.attrs["lookups"])
    names = op.input("LearningRate")
    return {table: binding.arrays[name] for table, name in zip(tables, names)}


class LocalTables:
    """Tables of this process, for Programs that train alone: pulled and pushed as from a server."""

    restored = 0  # rows are never asked for ahead

    def __init__(self, tables: Sequence[SparseTable]) -> None:
        self._tables = tables

    def pull(self, batch: LookupBatch, *, create: bool = True) -> None:
        """Write the float32 rows of all ids into the batch; ``create`` those that are new."""
        for table, ids, rows in zip(self._tables, *batch.parts(0)):
            table.pull(ids, rows, create=create)

    def start_pull(self, batch: LookupBatch) -> None:
        """Pull at once: nothing is gained by waiting."""
        self.pull(batch)

    def finish_pull(self, batch: LookupBatch) -> None:
        """Nothing is under way."""

    def push(self, batch: LookupBatch, rates: Sequence[float]) -> None:
        """Update the rows of the batch's ids by its gradients, with the tables' rates."""
        for table, ids, rows, rate in zip(self._tables, *batch.parts(0), rates):
            table.push(ids, rows, rate, repeats=False)  # the batch has each id once

    def finish(self) -> None:
        """Nothing is under way."""

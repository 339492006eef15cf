"""Distributed tables of a job without servers: their rows are divided among the trainers."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.trace.position import here
from hpcdist.comm.base import Transport
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.sharded_tables import ShardedTables
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.tables.pull_push import bind_local


class TrainersTables:
    """This trainer's rows of all tables, and what exchanges them for each Program.

    A Program's backward divides by the number of trainers, so that gradients of rows are added up.
    """

    together: tuple[str, ...] = ("pull_sparse", "push_sparse")  # all trainers run these together

    def __init__(self, trainers: Transport, deadline_s: float) -> None:
        self._trainers = trainers
        self._deadline_s = deadline_s
        self._connected: Transport | None = None
        # By names of tables: all forms of a Program, and Programs of the same tables, share one, so
        # that it counts what trainers do alike, whatever sizes of batches they compile for.
        self._exchanges: dict[tuple[str, ...], tuple[Sequence[SparseTable], ShardedTables]] = {}

    @property
    def _group(self) -> Transport:
        """A transport of all trainers for rows. The first use is collective."""
        if self._connected is None:
            here.doing = "making a communicator for rows of tables"
            self._connected = self._trainers.split(0, self._trainers.rank)
            here.doing = ""
        return self._connected

    def bind(self, ops: Sequence[Operator], binding: Binding) -> dict[int, Call]:
        """Return the calls of operators of tables in a step, by id. The first is collective."""
        trainers = self._trainers
        return bind_local(ops, binding, trainers.rank, trainers.size, self._exchange_of)

    def _exchange_of(self, tables: Sequence[SparseTable]) -> ShardedTables:
        names = tuple(table.name for table in tables)
        known, exchange = self._exchanges.get(names, ((), None))
        if exchange is None or any(one is not other for one, other in zip(known, tables)):
            specs = [TableSpec(table.name, table.sent_width, table.dict_size) for table in tables]
            exchange = ShardedTables(self._group, specs, tables, self._deadline_s, mean=False)
            self._exchanges[names] = tables, exchange
        return exchange

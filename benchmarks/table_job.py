"""One trainer and the servers of one table over MPI, for sparse_table.py and huge_table.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hpcdist.comm.cluster import Cluster
from hpcdist.comm.world import mpi_world
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import Hello
from hpcdist.ps.packet_exchange import ServerArrays
from hpcdist.ps.server import PsServer
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable

RATE = 0.01


class Trainer:
    """The table as a trainer sees it: pulls and pushes of a batch that is indexed."""

    def __init__(self, client: PsClient, servers: int, spec: TableSpec) -> None:
        self._client = client
        self.batch = LookupBatch([spec], servers)

    def pull(self) -> None:
        """Begin a step: fetch the rows of the batch."""
        self._client.post_receives()
        self._client.tables.pull(self.batch)

    def push(self) -> None:
        """End the step: send what is in the rows as gradients."""
        self._client.tables.push(self.batch)
        self._client.wait_receives()


class TimedTable(SparseTable):
    """A table that keeps (rows, new rows, milliseconds of the processor) of every step."""

    def __init__(self, *facts: Any) -> None:
        self.steps: list[tuple[int, int, float]] = []
        self._spent_s = 0.0
        super().__init__(*facts)
        self._spent_s = 0.0  # not what compiling took

    def pull(self, *arguments: Any, **how: Any) -> None:
        begin = time.thread_time()
        super().pull(*arguments, **how)
        self._spent_s += time.thread_time() - begin

    def push(self, *arguments: Any, **how: Any) -> None:
        begin = time.thread_time()
        super().push(*arguments, **how)
        spent_s = time.thread_time() - begin + self._spent_s
        before = self.steps[-1][0] if self.steps else 0
        self.steps.append((len(self), len(self) - before, spent_s * 1e3))
        self._spent_s = 0.0


def run(
    dim: int,
    optimizer: RowOptimizer,
    initializer: RowInitializer,
    work: Callable[[Trainer], None],
    report: Callable[[int, TimedTable], None],
) -> None:
    """Run ``work`` on rank 0 and a server on each other rank; servers ``report`` at the end."""
    transport = mpi_world()
    servers = transport.size - 1
    cluster = Cluster((0,), tuple(range(1, servers + 1)))
    spec = TableSpec("table", dim)
    if transport.rank == 0:
        client = PsClient(transport, cluster, 0, fingerprint="table")
        client.connect([ServerArrays(e, (), (), {}, {}, (), (spec,)) for e in cluster.endpoints])
        work(Trainer(client, servers, spec))
        client.close()
        return
    table = TimedTable("table", dim, optimizer, initializer, 1)
    hello = Hello(1, True, "table", (), (), (), (spec,))
    index = transport.rank - 1
    server = PsServer(transport, cluster, index, expected=hello, arrays={}, tables=[table])
    apply = server.tables.apply
    server.serve(lambda step: None, lambda packet, who: [partial(apply, who, [RATE])])
    report(index, table)

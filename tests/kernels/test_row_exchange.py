"""Rows of tables between trainers and servers, over ranks that are threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from hpcdist.comm import loopback
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import CommError, TableError
from hpcdist.ps import table_rpc
from hpcdist.ps.async_shards import AsyncShards
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import REQUEST_TAG, Hello, MessageKind, encode_header
from hpcdist.ps.packet_exchange import ServerArrays
from hpcdist.ps.server import PsServer
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.support.threads import run_threads

SPECS = (TableSpec("deep", 4, padding=0), TableSpec("wide", 1))
ADAM = RowOptimizer("adam", epsilon=1e-8)
ENDS = [-(2**63), 2**63 - 1]
RATE = 0.1


def new_table(spec: TableSpec, optimizer: RowOptimizer = ADAM) -> SparseTable:
    return SparseTable(spec.name, spec.width, optimizer, RowInitializer(), 3, spec.dict_size)


def ids_of(trainer: int, step: int) -> list[np.ndarray]:
    rng = np.random.default_rng([trainer, step])
    return [np.array([*rng.integers(-5, 5, 30), *ENDS], np.int64) for _ in SPECS]


def gradients_of(trainer: int, step: int) -> list[np.ndarray]:
    rng = np.random.default_rng([trainer, step, 1])
    return [rng.normal(size=(32, spec.width)).astype("float32") for spec in SPECS]


@dataclass
class Job:
    """Trainers and servers that exchange rows of tables and nothing else."""

    trainers: int
    servers: int
    specs: tuple[TableSpec, ...] = SPECS
    is_async: bool = False
    told: dict[int, Any] = field(default_factory=dict)  # by trainer
    tables: dict[int, list[SparseTable]] = field(default_factory=dict)  # by server
    world: list[loopback.LoopbackTransport] = field(default_factory=list)  # trainers first

    def run(self, train: Any) -> Job:
        """Serve until ``train(trainer, client)`` has ended on every trainer."""
        world = self.world = loopback.world(self.trainers + self.servers)
        ranks = range(len(world))
        cluster = Cluster(tuple(ranks[: self.trainers]), tuple(ranks[self.trainers :]))
        bodies = [lambda k=k: self._train(world[k], cluster, k, train) for k in cluster.trainers]
        for k, rank in enumerate(cluster.servers):
            bodies.append(lambda k=k, rank=rank: self.serve(world[rank], cluster, k))
        run_threads(bodies)
        return self

    def _train(self, transport: Any, cluster: Cluster, trainer: int, train: Any) -> None:
        try:
            client = PsClient(
                transport, cluster, trainer, fingerprint="", sync_mode=not self.is_async
            )
            none: Any = {"gradient_arrays": {}, "parameter_arrays": {}}
            plan = [ServerArrays(e, (), (), (), self.specs, **none) for e in cluster.endpoints]
            client.connect(plan)
            self.told[trainer] = train(trainer, client)
            client.close()
        except BaseException:
            transport.abort(1)
            raise

    def serve(self, transport: Any, cluster: Cluster, server: int) -> None:
        self.tables[server] = [new_table(spec) for spec in self.specs]
        expected = Hello(self.trainers, not self.is_async, "", (), (), (), self.specs)
        served = PsServer(
            transport,
            cluster,
            server,
            expected=expected,
            arrays={},
            shards=AsyncShards(self.trainers, 1) if self.is_async else None,
            tables=self.tables[server],
        )
        rates = [RATE] * len(self.specs)
        try:
            apply = served.tables.apply
            served.serve(lambda step: None, lambda packet, who: [partial(apply, who, rates)])
        except BaseException:
            transport.abort(1)
            raise


def train_steps(steps: int, servers: int) -> Any:
    """Return what pulls and pushes in every step, and tells all rows pulled as bytes."""

    def train(trainer: int, client: PsClient) -> list[bytes]:
        batch = LookupBatch(SPECS, servers)
        told = []
        for step in range(steps):
            batch.index(ids_of(trainer, step))
            client.tables.pull(batch)
            told += [rows_taken(batch, t).tobytes() for t in range(len(SPECS))]
            batch.clear()
            for t, values in enumerate(gradients_of(trainer, step)):
                batch.add(np.array([(t, 0, len(values), values.ctypes.data)]))
            client.tables.push(batch)
            client.post_receives()
            client.wait_receives()
        return told

    return train


def rows_taken(batch: LookupBatch, table: int, count: int = 32) -> np.ndarray:
    out = np.empty((count, SPECS[table].width), np.float32)
    batch.take(np.array([(table, 0, count, out.ctypes.data)]))
    return out


def reference(trainers: int, steps: int) -> list[list[bytes]]:
    """Return what every trainer pulls if one table, that all share, moves by their mean."""
    tables = [new_table(spec) for spec in SPECS]
    told: list[list[bytes]] = [[] for _ in range(trainers)]
    for step in range(steps):
        pushed = []
        for k in range(trainers):
            for t, ids in enumerate(ids_of(k, step)):
                out = np.zeros((32, SPECS[t].width), np.float32)
                real = ids != 0 if SPECS[t].padding == 0 else ids == ids
                rows = np.empty((real.sum(), SPECS[t].width), np.float32)
                tables[t].pull(ids[real], rows)
                out[real] = rows
                told[k].append(out.tobytes())
                pushed.append((t, ids[real], gradients_of(k, step)[t][real]))
        for t, table in enumerate(tables):
            # Each trainer adds up its repeats before they are sent.
            merged = [added_up(ids, values) for u, ids, values in pushed if u == t]
            ids = np.concatenate([m[0] for m in merged])
            table.push(ids, np.concatenate([m[1] for m in merged]), RATE, 1 / trainers)
    return told


def added_up(ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sums: dict[int, np.ndarray] = {}
    for i, value in zip(ids.tolist(), values):
        sums[i] = sums.get(i, np.zeros_like(value)) + value
    return np.array(list(sums), np.int64), np.array(list(sums.values()))


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_any_number_of_servers_give_the_bits_of_one_table(trainers: int, servers: int) -> None:
    job = Job(trainers, servers).run(train_steps(4, servers))
    wanted = reference(trainers, 4)
    assert [job.told[k] for k in range(trainers)] == wanted


def test_answers_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rpc, "PIECE", 64)
    job = Job(2, 2).run(train_steps(3, 2))
    assert [job.told[k] for k in range(2)] == reference(2, 3)


def test_one_asynchronous_trainer_is_local_training() -> None:
    assert Job(1, 2, is_async=True).run(train_steps(4, 2)).told[0] == reference(1, 4)[0]


def test_peeking_makes_no_rows() -> None:
    def train(trainer: int, client: PsClient) -> tuple[np.ndarray, np.ndarray]:
        batch = LookupBatch(SPECS, 2)
        batch.index(ids_of(0, 0))
        client.tables.pull(batch, create=False)
        seen = rows_taken(batch, 0)
        batch.index(ids_of(0, 0))
        client.tables.pull(batch)
        return seen, rows_taken(batch, 0)

    job = Job(1, 2)
    job.run(lambda k, client: (train(k, client), [len(t) for s in (0, 1) for t in job.tables[s]]))
    (seen, made), _ = job.told[0]
    np.testing.assert_array_equal(seen, made)

    def only_peek(trainer: int, client: PsClient) -> None:
        batch = LookupBatch(SPECS, 2)
        batch.index(ids_of(0, 0))
        client.tables.pull(batch, create=False)

    assert [len(t) for s in Job(1, 2).run(only_peek).tables.values() for t in s] == [0] * 4


def test_a_table_that_is_full_over_all_servers_is_refused_with_its_name() -> None:
    specs = (TableSpec("small", 2, dict_size=10),)

    def train(trainer: int, client: PsClient) -> None:
        batch = LookupBatch(specs, 3)
        for count in (10, 11):  # ten fit, wherever they live
            batch.index([np.arange(count) * 7919])
            client.tables.pull(batch)

    with pytest.raises(TableError, match=r"'small' is full: it has room for 10 ids, and 11 are"):
        Job(1, 3, specs).run(train)


def test_a_gradient_that_is_no_number_on_a_server_changes_no_table() -> None:
    def train(trainer: int, client: PsClient) -> None:
        batch = LookupBatch(SPECS, 1)
        batch.index([np.array([5]), np.array([6])])
        client.tables.pull(batch)
        batch.clear()
        values = [np.full((1, spec.width), 3e38, np.float32) for spec in SPECS]
        batch.add(np.array([(1, 0, 1, values[1].ctypes.data)]))
        batch.rows[0][:] = np.frombuffer(b"\xff" * len(batch.rows[0]), np.uint8)  # NaNs
        client.tables.push(batch)
        client.post_receives()
        client.wait_receives()
        client.tables.pull(batch)

    job = Job(1, 1)
    with pytest.raises(TableError, match="table 'deep': the gradient of id 5"):
        job.run(train)
    rows = np.empty((1, 1), np.float32)
    first = np.empty((1, 1), np.float32)
    job.tables[0][1].pull(np.array([6]), rows)
    new_table(SPECS[1]).pull(np.array([6]), first)
    assert rows == first


@pytest.mark.parametrize(("length", "words"), [(15, "multiple of 8"), (8, "do not hold the ids")])
def test_bytes_that_are_no_request_are_refused(length: int, words: str) -> None:
    def train(trainer: int, client: PsClient) -> None:
        transport = job.world[0]
        header = encode_header(MessageKind.TABLE_PULL, 0, 0, length)
        sends = [transport.isend(p, 1, REQUEST_TAG) for p in (header, np.ones(length, np.uint8))]
        transport.wait_all(sends, lambda: "sending", 5)
        transport.barrier(5)  # where the server's refusal comes

    job = Job(1, 1)
    with pytest.raises((CommError, TableError), match=words):
        job.run(train)


def test_trainers_that_know_other_tables_are_refused() -> None:
    other = (TableSpec("deep", 5, padding=0), TableSpec("wide", 1))

    class Differs(Job):
        def serve(self, transport: Any, cluster: Cluster, server: int) -> None:
            self.specs = other
            super().serve(transport, cluster, server)

    job = Differs(1, 1, SPECS)
    with pytest.raises(CommError, match=r"distributed tables: expected .*deep float32\[any number"):
        job.run(lambda trainer, client: None)

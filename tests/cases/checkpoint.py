"""Servers of one training program, each with its scope, as checkpoints see them: no network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import hpcdist as fluid
from hpcdist.checkpoint.attempt import AttemptTarget, complete
from hpcdist.checkpoint.serving import ServerStore
from hpcdist.executor.scope import Scope
from hpcdist.ps.batch import owners_of
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from hpcdist.runtime.kept.server import ServerShards

TABLE = "ids_table"


def build(size=2000, rows=9000, width=20):
    """Return (main, startup) of a net with dense layers and a sparse table, trained by Adam."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data(name="x", shape=[None, 13], dtype="float32")
        ids = fluid.data(name="ids", shape=[None, 1], dtype="int64")
        hidden = fluid.layers.fc(fluid.layers.fc(x, size=size, act="relu"), size=width)
        looked_up = fluid.layers.embedding(ids, size=[rows, width], is_sparse=True)
        loss = fluid.layers.mean(fluid.layers.elementwise_add(hidden, looked_up))
        rate = fluid.layers.exponential_decay(0.01, 5, 0.9)
        fluid.optimizer.Adam(rate).minimize(loss)
    return main, startup


class Servers:
    """``count`` parameter servers of a program, started as a job would start them."""

    def __init__(self, main, startup, count, tables=False):
        names = [f"ps{k}:6174" for k in range(count)]
        made = fluid.DistributeTranspiler()
        made.transpile(
            0, program=main, pservers=",".join(names), trainers=2, startup_program=startup
        )
        self.programs, self.scopes, self.stores = [], [], []
        self.tables = []
        for name in names:
            program, first = made.get_pserver_programs(name)
            scope = Scope()
            fluid.Executor().run(first, scope=scope)
            if tables:
                program.global_block().create_var(TABLE, shape=(-1, 4), persistable=True)
                scope.var(TABLE).value = empty_table()
                self.tables.append(scope.find_var(TABLE).value)
            self.programs.append(program)
            self.scopes.append(scope)
            self.stores.append(ServerStore(ServerShards(program, scope), count, lambda: None))
        main.on_trainer = startup.on_trainer = None

    def held(self):
        """Yield (array, piece) of everything that the servers hold."""
        for program, scope in zip(self.programs, self.scopes):
            for held in ServerShards(program, scope).held():
                yield scope.find_var(held.local).value, held.piece

    def fill(self, whole):
        """Give every server its rows of ``whole``, arrays by name, drawn where they are missing."""
        for array, piece in self.held():
            if piece.name not in whole:
                random = np.random.default_rng(sum(map(ord, piece.name)))
                drawn = random.integers(-(2**31), 2**31, piece.whole, np.int64)
                whole[piece.name] = drawn.astype(np.int32).view(np.int32).astype(piece.dtype)
            array[...] = whole[piece.name][slice(None) if piece.copy else rows_of(piece)]

    def spoil(self):
        for array, _ in self.held():
            array[...] = 7

    def save(self, directory: Path, step=1, **how):
        target = AttemptTarget(str(directory), 1)
        directory.mkdir(parents=True, exist_ok=True)
        request = {"do": "save", "directory": str(directory), "manifest": target.manifest}
        request |= {"attempt": 1, "step": step, "program": "p", "compression": None}
        request |= {"asynchronous": False, "single_file": False, **how}
        for store in self.stores:
            store.answer(request)
        count = len(self.stores)
        awaited = [target.path("server", k, count) for k in range(count)]
        complete(target, awaited, 10.0, (), None)

    def check(self, directory, data=False):
        for store in self.stores:
            store.answer({"do": "check", "path": str(directory), "data": data})

    def load(self, directory):
        for store in self.stores:
            store.answer({"do": "load", "path": str(directory)})


def rows_of(piece):
    return slice(piece.begin, piece.end)


def empty_table():
    return SparseTable(TABLE, 4, RowOptimizer("adam"), RowInitializer("constant", 0.0), 3)


def fill_tables(tables, count=5000):
    """Give every table its rows of a drawn set; return (ids, rows, state), sorted by id."""
    random = np.random.default_rng(5)
    ids = np.unique(random.integers(-(2**62), 2**62, count))
    rows = random.random((len(ids), 4), dtype=np.float32)
    state = random.random((len(ids), 8), dtype=np.float32)
    owners = owners_of(ids, len(tables))
    for k, table in enumerate(tables):
        table.load(ids[owners == k], rows[owners == k], state[owners == k])
        table.shared[...] = [0.25, 0.5]
    return ids, rows, state


def all_rows(tables):
    """Return (ids, rows, state) of all tables, sorted by id."""
    parts = [table.export(0, len(table)) for table in tables]
    ids, rows, state = (np.concatenate(arrays) for arrays in zip(*parts))
    order = np.argsort(ids)
    return ids[order], rows[order], state[order]

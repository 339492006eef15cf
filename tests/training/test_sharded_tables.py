"""Tables shared out over trainers, over ranks that are threads."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm import loopback
from hpcdist.errors import CommError, DeadlineError, TableError
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.sharded_tables import ShardedTables
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from hpcdist.ps.table_rpc import move
from tests.support.threads import run_threads

SPECS = (TableSpec("deep", 4, padding=0), TableSpec("wide", 1))
ENDS = [-(2**63), 2**63 - 1]
RATES = [0.1, 0.2]
DEADLINE_S = 60.0


def new_tables(specs=SPECS):
    adam = RowOptimizer("adam", epsilon=1e-8)
    return [SparseTable(s.name, s.width, adam, RowInitializer(), 3, s.dict_size) for s in specs]


def ids_of(trainer, step):
    rng = np.random.default_rng([trainer, step])
    return [np.array([*rng.integers(-5, 5, 20 * trainer), *ENDS], np.int64) for _ in SPECS]


def gradients_of(trainer, step):
    rng = np.random.default_rng([trainer, step, 1])
    ids = ids_of(trainer, step)
    return [rng.normal(size=(len(i), s.width)).astype("float32") for s, i in zip(SPECS, ids)]


def fill(batch, gradients):
    batch.clear()
    for t, values in enumerate(gradients):
        batch.add(np.array([(t, 0, len(values), values.ctypes.data)]))


def rows_of(batch, specs, ids):
    found = []
    for t, spec in enumerate(specs):
        out = np.empty((len(ids[t]), spec.width), np.float32)
        batch.take(np.array([(t, 0, len(out), out.ctypes.data)]))
        found.append(out)
    return found


def trained(trainers, steps=3):
    """Return the rows that each trainer sees in each step, and at the end of some ids."""
    world = loopback.world(trainers)
    found = [[] for _ in range(trainers)]

    def train(me):
        tables = ShardedTables(world[me], SPECS, new_tables(), DEADLINE_S)
        batch = LookupBatch(SPECS, trainers)
        seen = found[me]
        for step in range(steps):
            ids = ids_of(me, step)
            batch.index(ids)
            tables.pull(batch)
            seen.append(rows_of(batch, SPECS, ids))
            fill(batch, gradients_of(me, step))
            tables.push(batch, RATES)
        last = [np.arange(-5, 6) for _ in SPECS]
        batch.index(last)
        tables.pull(batch, create=False)
        seen.append(rows_of(batch, SPECS, last))

    run_threads([lambda k=k: train(k) for k in range(trainers)])
    return found


def trained_whole(trainers, steps=3):
    """Return what `trained` does, of tables that one process has whole."""
    tables = new_tables()
    batches = [LookupBatch(SPECS, 1) for _ in range(trainers)]
    seen = [[] for _ in range(trainers)]
    for step in range(steps):
        for k, batch in enumerate(batches):
            ids = ids_of(k, step)
            batch.index(ids)
            for table, wanted, rows in zip(tables, *batch.parts(0)):
                table.pull(wanted, rows)
            seen[k].append(rows_of(batch, SPECS, ids))
            fill(batch, gradients_of(k, step))
        move(tables, [list(zip(*batch.parts(0))) for batch in batches], RATES)
    last = [np.arange(-5, 6) for _ in SPECS]
    for k, batch in enumerate(batches):
        batch.index(last)
        for table, wanted, rows in zip(tables, *batch.parts(0)):
            table.pull(wanted, rows, create=False)
        seen[k].append(rows_of(batch, SPECS, last))
    return seen


@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_rows_are_those_of_a_table_that_one_process_has_whole(trainers):
    for found, expected in zip(trained(trainers), trained_whole(trainers), strict=True):
        for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            for a, b in zip(ours, theirs, strict=True):
                assert np.array_equal(a, b), step


def test_a_table_that_is_full_says_who_holds_how_many():
    specs = (TableSpec("small", 2, dict_size=3),)
    world = loopback.world(2)

    def train(me):
        tables = ShardedTables(world[me], specs, new_tables(specs), DEADLINE_S)
        batch = LookupBatch(specs, 2)
        batch.index([np.arange(4)])
        with pytest.raises(TableError, match=r"'small' is full.*trainer 0: \d.*trainer 1: \d"):
            tables.pull(batch)

    run_threads([lambda k=k: train(k) for k in range(2)])


def test_trainers_that_do_different_things_are_refused():
    world = loopback.world(2)

    def train(me):
        tables = ShardedTables(world[me], SPECS, new_tables(), DEADLINE_S)
        batch = LookupBatch(SPECS, 2)
        batch.index(ids_of(me, 0))
        with pytest.raises(CommError, match="every trainer must look up and step equally often"):
            tables.push(batch, RATES) if me else tables.pull(batch)

    run_threads([lambda k=k: train(k) for k in range(2)])


def test_trainers_that_look_up_other_tables_are_refused():
    world = loopback.world(2)

    def train(me):
        specs = SPECS[me : me + 1]
        tables = ShardedTables(world[me], specs, new_tables(specs), DEADLINE_S)
        batch = LookupBatch(specs, 2)
        batch.index([np.arange(4)])
        with pytest.raises(CommError, match=r"look rows up \((deep|wide)\).* of other tables"):
            tables.pull(batch)

    run_threads([lambda k=k: train(k) for k in range(2)])


def test_a_trainer_that_does_not_come_is_missing():
    tables = ShardedTables(loopback.world(3)[1], SPECS, new_tables(), 0.01)
    batch = LookupBatch(SPECS, 3)
    batch.index(ids_of(1, 0))
    with pytest.raises(DeadlineError, match="to look rows up, from rank 0, 2") as late:
        tables.pull(batch)
    assert late.value.missing == (0, 2)

"""Rows in every type, moved by every optimizer, on 1, 2 and 3 servers, against a dict: equal bits.

What is saved on some servers is restored on others between the steps.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.ps.batch import owners_of
from hpcdist.ps.row_storage import RowStorage
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.support.stored_numbers import stored
from tests.support.table_model import Model

DIM, SEED = 5, 11
START = RowInitializer("uniform", -0.5, 0.25)
ADAM = RowOptimizer("adam", epsilon=1e-8)
# Any float32, and more of those that float16 rounds, has no number for, or has as 0.
BITS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.floats(-1e5, 1e5, width=32).map(lambda x: int(np.float32(x).view(np.uint32))),
    st.sampled_from([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x477FF000, 0x33000000, 1]),
)
OPTIMIZERS = [
    RowOptimizer("sgd"),
    RowOptimizer("momentum", use_nesterov=True),
    RowOptimizer("adagrad", initial_moment=0.1),
    ADAM,
    RowOptimizer("ftrl", l1=0.1, l2=0.01),
    RowOptimizer("adagrad", row_wise=True, clip_norm=0.7),
    RowOptimizer("adamax", epsilon=1e-8, weight_bounds=(-0.3, 0.2)),
    RowOptimizer("rmsprop", momentum=0.5, rate_decay=0.1),
    RowOptimizer("rmsprop", centered=True, l2_decay=0.1),
    RowOptimizer("lamb"),
]
STORAGES = [
    RowStorage(rows, state, rounding)
    for rows, state in itertools.product(
        ("float32", "float16", "bfloat16", "int8"), ("float32", "float16")
    )
    for rounding in (("",) if rows == "float32" else ("nearest", "stochastic"))
]


def made(storage, optimizer, servers, dim=DIM):
    facts = "t", dim, optimizer, START, SEED
    return [SparseTable(*facts, storage=storage) for _ in range(servers)]


def restored(tables, storage, servers):
    """Return tables with the rows of others, by the bytes that they keep."""
    new = made(storage, tables[0].optimizer, servers)
    for k, table in enumerate(new):
        table.step = tables[0].step
        table.shared[...] = tables[0].shared
        for other in tables:
            ids, *kept = other.export(0, len(other))
            mine = owners_of(ids, servers) == k
            table.load(ids[mine], *(array[mine] for array in kept))
    return new


def divided(tables, ids, do):
    owners = owners_of(ids, len(tables))
    for k, table in enumerate(tables):
        do(table, owners == k)


@settings(max_examples=150, deadline=None)
@given(
    storage=st.sampled_from(STORAGES),
    bits=st.lists(BITS, min_size=3 * DIM, max_size=3 * DIM),
    step=st.integers(0, 2**32 - 1),
    dim=st.sampled_from((DIM, 16, 37)),  # rounded sixteen at once
)
def test_any_number_is_kept_as_numpy_rounds_it(storage, bits, step, dim) -> None:
    values = np.resize(np.array(bits, np.uint32).view(np.float32), (1, 3, dim))
    (table,) = made(storage, ADAM, 1, dim)
    table.step = step
    ids = np.array([-3], np.int64)
    table.load(ids, values[:, 0].copy(), values[:, 1:].reshape(1, -1).copy())
    _, *kept = table.export(0, 1)
    with np.errstate(invalid="ignore"):
        wanted = stored(storage, values[0], SEED, -3, step)
    np.testing.assert_array_equal(np.hstack(table.decoded(*kept)), wanted.reshape(1, -1))
    out = np.empty((1, dim), np.float32)
    table.pull(ids, out)
    np.testing.assert_array_equal(out[0], wanted[0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.formula)
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: f"{s.rows}-{s.state}-{s.rounding}")
def test_rows_of_any_type_are_a_dict_of_rounded_rows(storage, optimizer) -> None:
    row_wise = {"row_wise": optimizer.row_wise}
    model = Model(
        *(DIM, optimizer, START, SEED),
        lambda row, i, step: stored(storage, row, SEED, i, step, **row_wise),
    )
    random = np.random.default_rng(len(STORAGES))
    jobs = [made(storage, optimizer, servers) for servers in (1, 2, 3)]
    for step in range(8):
        ids = random.integers(-6, 7, 12)
        wide = random.normal(size=(12, DIM)) * 10.0 ** random.integers(-6, 3, (12, 1))
        grads = wide.astype(np.float32)
        wanted = model.pull(ids, create=step % 2 == 0)
        for tables in jobs:
            out = np.full((12, DIM), np.nan, np.float32)

            def pull(table, mine, out=out, ids=ids, create=step % 2 == 0):
                rows = np.empty((int(mine.sum()), DIM), np.float32)
                table.pull(ids[mine], rows, create=create)
                out[mine] = rows

            divided(tables, ids, pull)
            np.testing.assert_array_equal(out, wanted)
            divided(tables, ids, lambda t, mine, i=ids, g=grads: t.push(i[mine], g[mine], 0.1))
        model.push(ids, grads, 0.1)
        if step == 4:
            jobs = [restored(jobs[k], storage, n) for k, n in ((1, 1), (2, 2), (0, 3))]
    for tables in jobs:
        found = {}
        for table in tables:
            ids, *kept = table.export(0, len(table))
            found |= dict(zip(ids.tolist(), zip(*table.decoded(*kept))))
        assert found.keys() == model.rows.keys()
        for row_id, (row, state) in found.items():
            values, *columns = model.rows[row_id]
            np.testing.assert_array_equal(row, values)
            widths = optimizer.state_widths(DIM)
            wanted = [column[:width] for column, width in zip(columns, widths)]
            np.testing.assert_array_equal(state, np.concatenate([state[:0], *wanted]))

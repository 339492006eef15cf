"""The ids of a batch: each once, by server, with its row in the batch's memory."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.errors import TableError
from hpcdist.ps.batch import LookupBatch, TableSpec, owners_of, rows_layout, split_ids

ENDS = [-(2**63), 2**63 - 1, 0, -1, 1]
TABLES = (TableSpec("a", 5, padding=7), TableSpec("b", 1), TableSpec("c", 16))


def some_ids(seed: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([ENDS, rng.integers(-9, 9, count), ENDS]).astype(np.int64)


def moves(table: int, arrays: list[np.ndarray]) -> np.ndarray:
    """Return what takes, or adds, look-ups of a table that follow each other."""
    ends = np.cumsum([0, *map(len, arrays)])
    rows = [(table, e, len(a), a.ctypes.data) for e, a in zip(ends, arrays)]
    return np.array(rows, np.int64)


def taken(batch: LookupBatch, table: int, count: int) -> np.ndarray:
    """Return the rows of all ids of a table, taken as two look-ups."""
    cut = count // 3
    width = batch.tables[table].width
    outs = [np.full((n, width), np.nan, np.float32) for n in (cut, count - cut)]
    batch.take(moves(table, outs))
    return np.concatenate(outs)


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_every_id_is_asked_for_once_of_its_own_server(servers: int) -> None:
    ids = [some_ids(t, 40) for t in range(3)]
    batch = LookupBatch(TABLES, servers)
    batch.index(ids)
    for t, table in enumerate(TABLES):
        parts = [split_ids(message, 3)[t] for message in batch.messages]
        for server, part in enumerate(parts):
            assert (owners_of(part, servers) == server).all()
        asked = np.concatenate(parts)
        assert len(set(asked)) == len(asked)
        assert set(asked) == set(ids[t]) - {table.padding}


@pytest.mark.parametrize("servers", [1, 3])
def test_rows_come_to_all_places_of_their_id(servers: int) -> None:
    ids = [some_ids(t, 100) for t in range(3)]
    batch = LookupBatch(TABLES, servers)
    for _ in range(2):  # the second time in memory that is there
        batch.index(ids)
        for server in range(servers):
            for own, rows in zip(*batch.parts(server)):
                rows[:] = (own % 1000)[:, None] + np.arange(rows.shape[1]) / 100
        for t, table in enumerate(TABLES):
            wanted = ((ids[t] % 1000)[:, None] + np.arange(table.width) / 100).astype("float32")
            wanted[ids[t] == (table.padding if table.padding is not None else 2**40)] = 0
            np.testing.assert_array_equal(taken(batch, t, len(ids[t])), wanted)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_gradients_of_one_id_are_added_in_the_order_of_the_batch(servers: int) -> None:
    ids = some_ids(5, 200)
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(len(ids), 5)) * 10.0 ** rng.integers(-6, 6, (len(ids), 1))).astype(
        "float32"
    )
    wanted: dict[int, np.ndarray] = {}
    for i, value in zip(ids.tolist(), values):
        wanted[i] = wanted.get(i, np.zeros(5, np.float32)) + value
    del wanted[7]  # padding
    batch = LookupBatch(TABLES[:1], servers)
    batch.index([ids])
    batch.clear()
    halves = [np.ascontiguousarray(values[:50]), np.ascontiguousarray(values[50:])]
    batch.add(moves(0, halves))
    found = {}
    for server in range(servers):
        (own,), (rows,) = batch.parts(server)
        found |= dict(zip(own.tolist(), rows.copy()))
    assert found.keys() == wanted.keys()
    for i, row in wanted.items():
        np.testing.assert_array_equal(found[i], row)


def test_tables_of_the_same_ids_have_rows_of_their_own() -> None:
    ids = some_ids(1, 30)
    batch = LookupBatch((TABLES[1], TABLES[2]), 2)
    batch.index([ids, ids])
    for server in range(2):
        for table, rows in enumerate(batch.parts(server)[1]):
            rows[:] = table + 1
    assert (taken(batch, 0, len(ids)) == 1).all()
    assert (taken(batch, 1, len(ids)) == 2).all()


def test_an_empty_batch_is_a_batch() -> None:
    batch = LookupBatch(TABLES, 2)
    batch.index([np.empty(0, np.int64)] * 3)
    assert [m.tolist() for m in batch.messages] == [[0, 0, 0]] * 2
    assert [len(rows) for rows in batch.rows] == [0, 0]
    batch.check_finite("the gradient")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_no_number_is_named(value: float) -> None:
    batch = LookupBatch(TABLES, 2)
    batch.index([np.array([4, -8], np.int64), np.array([1], np.int64), np.array([-3], np.int64)])
    batch.clear()
    batch.check_finite("the gradient")
    bad = np.zeros((1, 16), np.float32)
    bad[0, 3] = value
    batch.add(moves(2, [bad]))
    with pytest.raises(TableError, match=r"table 'c': the gradient of id -3 is not finite"):
        batch.check_finite("the gradient")


def test_where_a_row_lives_follows_from_its_id_for_ever() -> None:
    """A job that is started again with a checkpoint must look where the last one put rows."""
    ids = np.array([*ENDS, 2, 3, 12345678901234], np.int64)
    assert owners_of(ids, 1).tolist() == [0] * 8
    assert owners_of(ids, 2).tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert owners_of(ids, 7).tolist() == [0, 2, 2, 5, 6, 3, 2, 1]


def test_servers_get_equal_shares_of_dense_sparse_and_strided_ids() -> None:
    rng = np.random.default_rng(3)
    for ids in (np.arange(30000), np.arange(30000) * 1024, rng.integers(-(2**62), 2**62, 30000)):
        counts = np.bincount(owners_of(ids, 3), minlength=3)
        assert counts.min() > 9600 and counts.max() < 10400


def test_a_message_whose_counts_do_not_fit_is_refused() -> None:
    for numbers in ([2, 5], [-1, 3, 4], [1]):
        with pytest.raises(TableError, match="malformed message"):
            split_ids(np.array(numbers, np.int64), 2 if len(numbers) == 1 else 1)


def test_rows_of_tables_begin_on_cache_lines() -> None:
    assert rows_layout(TABLES, [3, 2, 1]) == ([0, 64, 128], 192)

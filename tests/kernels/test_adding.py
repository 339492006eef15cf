"""Sums of rows: the order, in place, at every length."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm.ordered_sum import CHUNK, add_in_all, add_rows

LENGTHS = [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 3]


def in_order(rows):
    total = rows[0].copy()
    for row in rows[1:]:
        total = total + row
    return total


def some(count, length):
    return np.random.default_rng(length).normal(size=(count, length)).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("count", "at"), [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 3)])
def test_rows_are_added_in_order_wherever_the_own_one_is(count, at, length):
    rows = some(count, length)
    others, own = np.delete(rows, at, 0), rows[at].copy()
    out = np.empty(length, np.float32)
    add_rows(others, own, at, out)
    assert out.tobytes() == in_order(rows).tobytes()
    add_rows(others, own, at, own)
    assert own.tobytes() == out.tobytes()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_rows_become_the_sum_where_asked(count, length):
    rows = some(count, length)
    before, begin = rows.copy(), length // 3
    add_in_all(rows, begin, length)
    assert rows[:, :begin].tobytes() == before[:, :begin].tobytes()
    for row in rows:
        assert row[begin:].tobytes() == in_order(before)[begin:].tobytes()

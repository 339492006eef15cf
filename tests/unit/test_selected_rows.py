"""SelectedRows: repeats add up, whatever their order."""

import numpy as np
import pytest

from hpcdist.ops.embedding.selected_rows import SelectedRows


def rows_of(rows, width=2, height=6):
    rows = np.array(rows, np.int64)
    value = np.arange(1, len(rows) * width + 1, dtype=np.float32).reshape(len(rows), width)
    return SelectedRows(rows, value, height)


@pytest.mark.parametrize("rows", [[], [3], [3, 1, 3, 0, 3, 1], [0, 0, 0], [5, 4, 3]])
def test_merged_rows_are_unique_ascending_and_sum_repeats(rows):
    given = rows_of(rows)
    merged = given.merged()
    assert merged.rows.tolist() == sorted(set(rows))
    for row, value in zip(merged.rows, merged.value):
        np.testing.assert_array_equal(value, given.value[given.rows == row].sum(0))
    assert merged.shape == given.shape == (6, 2)


@pytest.mark.parametrize("rows", [[], [3, 1, 3, 0]])
def test_dense_form_is_zero_where_no_row_is(rows):
    given = rows_of(rows)
    expected = np.zeros((6, 2), np.float32)
    np.add.at(expected, given.rows, given.value)
    np.testing.assert_array_equal(given.to_dense(), expected)
    dense = np.ones((6, 2), np.float32)
    given.add_to(dense)
    np.testing.assert_array_equal(dense, 1 + expected)


def test_merging_changes_nothing_in_place_and_shares_no_memory():
    given = rows_of([2, 1])
    merged = given.merged()
    merged.value[...] = 0
    assert given.rows.tolist() == [2, 1]
    assert given.value.all()
    copy = given.copy()
    copy.rows[...] = 0
    assert given.rows.tolist() == [2, 1]

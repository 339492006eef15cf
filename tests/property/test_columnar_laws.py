"""The order of an epoch: every row once, in batches that do not depend on how many read them."""

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.data.columnar.order import Order, Shuffle, key_of, permuted, share

SIZES = st.lists(st.integers(0, 40), min_size=0, max_size=12)
SHUFFLES = st.builds(
    Shuffle,
    st.none() | st.integers(0, 5),
    st.integers(1, 100),
    st.integers(1, 5),
    st.integers(1, 7),
)


def rows_of(order, begin, end):
    """Return the rows at some positions."""
    parts = [np.empty(0, np.int64)]
    for run in order.runs(begin, end):
        parts.append(order.row_numbers(run.window, run.window.places())[run.begin : run.end])
    return np.concatenate(parts).tolist()


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_a_permutation_has_every_number_once(count, key):
    assert sorted(permuted(np.arange(count), count, key).tolist()) == list(range(count))


@given(
    st.integers(1, 2**40), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), max_size=5)
)
def test_a_permutation_of_any_size_needs_no_memory_for_each_number(count, key, some):
    places = np.array([number % count for number in some], np.int64)
    there = permuted(places, count, key)
    assert ((there >= 0) & (there < count)).all()
    assert len(set(there.tolist())) == len(set(places.tolist()))


def test_all_permutations_of_four_are_about_as_frequent():
    found: dict = {}
    for seed in range(4800):
        order = tuple(permuted(np.arange(4), 4, key_of(seed, 1)).tolist())
        found[order] = found.get(order, 0) + 1
    assert len(found) == 24
    assert min(found.values()) > 140 and max(found.values()) < 260  # 200 expected


@given(SIZES, SHUFFLES, st.integers(0, 3))
def test_an_epoch_has_every_row_once(sizes, shuffle, epoch):
    order = Order(sizes, shuffle, epoch)
    rows = rows_of(order, 0, order.rows)
    assert sorted(rows) == list(range(sum(sizes)))
    if shuffle.seed is None and shuffle.lanes == 1:
        assert rows == list(range(sum(sizes)))


@given(SIZES, SHUFFLES, st.integers(1, 30), st.integers(1, 6), st.integers(1, 6), st.data())
@settings(max_examples=60)
def test_batches_are_the_same_for_any_number_of_trainers_and_restarts(
    sizes, shuffle, size, trainers, others, data
):
    order = Order(sizes, shuffle, 0)
    whole = rows_of(order, 0, order.rows)
    stop = data.draw(st.integers(0, order.rows // size)) * size  # a restart, with other trainers
    for first in range(0, order.rows, size):
        upto = min(first + size, order.rows)
        count = trainers if first < stop else others
        parts = [rows_of(order, *share(first, upto, t, count)) for t in range(count)]
        assert list(chain(*parts)) == whole[first:upto]


@given(SIZES, SHUFFLES)
def test_epochs_differ_and_seeds_differ(sizes, shuffle):
    if shuffle.seed is None or sum(sizes) < 30:
        return
    first = rows_of(Order(sizes, shuffle, 0), 0, sum(sizes))
    assert first == rows_of(Order(sizes, shuffle, 0), 0, sum(sizes))
    if shuffle.window >= 10 * shuffle.lanes:
        assert first != rows_of(Order(sizes, shuffle, 1), 0, sum(sizes))


@given(SIZES, SHUFFLES)
def test_windows_hold_little_more_than_was_asked(sizes, shuffle):
    order = Order(sizes, shuffle, 0)
    for run in order.runs(0, order.rows):
        assert run.window.rows < shuffle.window // shuffle.lanes + max(sizes) + 1


def test_a_lane_reads_its_part_of_the_blocks():
    order = Order([100] * 40, Shuffle(7, 200, 4, 8), 0)
    blocks = []
    for trainer in range(4):
        mine = set()
        for first in range(0, order.rows, 32):
            for run in order.runs(*share(first, first + 32, trainer, 4)):
                mine |= {piece.block for piece in run.window.pieces}
        blocks.append(mine)
    assert [len(mine) for mine in blocks] == [10] * 4
    assert len(set().union(*blocks)) == 40

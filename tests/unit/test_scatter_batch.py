"""Cutting a batch over trainers: every row once, and the weighted means add up."""

import numpy as np
import pytest

from hpcdist.errors import FeedError
from hpcdist.graph.rows import SAME, How, OfRows
from hpcdist.lod_tensor import create_lod_tensor
from hpcdist.runtime.batches.scatter import cut_feed, share_of
from hpcdist.runtime.batches.trainer_part import loss_weight


@pytest.mark.parametrize("trainers", [1, 2, 3, 4])
@pytest.mark.parametrize("total", [1, 2, 3, 7, 20])
def test_every_row_counts_once(total, trainers):
    shares = [share_of(total, k, trainers) for k in range(trainers)]
    counted = [row for s in shares for row in range(s.begin, s.begin + s.counted)]
    assert counted == list(range(total))
    assert sum(s.weight for s in shares) == pytest.approx(trainers)


@pytest.mark.parametrize("total", [4, 5, 1])
def test_mean_over_trainers_of_weighted_means_is_the_mean(total):
    rows = np.arange(total, dtype=np.float32) ** 2
    parts = [cut_feed({"x": rows}, frozenset({"x"}), k, 3) for k in range(3)]
    counts = parts[0][1].counts[""]
    means = [
        cut["x"].mean() * loss_weight(OfRows(How.MEAN), counts, k)
        for k, (cut, _) in enumerate(parts)
    ]
    assert np.mean(means) == pytest.approx(rows.mean())
    sums = [
        cut["x"].sum() * loss_weight(OfRows(How.SUM), counts, k) for k, (cut, _) in enumerate(parts)
    ]
    assert np.mean(sums) == pytest.approx(rows.sum())


def test_values_without_a_batch_stay_whole():
    feed = {"x": np.zeros((4, 2)), "rate": np.ones(3)}
    cut, division = cut_feed(feed, frozenset({"x"}), 1, 2)
    assert cut["x"].shape == (2, 2)
    assert cut["rate"].shape == (3,)
    assert loss_weight(SAME, division.counts[""], 1) == 1.0
    whole, division = cut_feed(feed, frozenset({"y"}), 1, 2)
    assert division is None and whole["x"].shape == (4, 2)


def test_rows_that_do_not_match_are_not_divided():
    feed = {"x": np.zeros(4), "y": np.zeros(3)}
    cut, division = cut_feed(feed, frozenset("xy"), 0, 2)
    assert cut == feed and "'x': 4, 'y': 3" in division.why_whole


def test_an_empty_batch_is_refused():
    with pytest.raises(FeedError, match="empty"):
        cut_feed({"x": np.zeros((0, 3))}, frozenset("x"), 0, 2)


def test_batches_of_different_numbers_of_sequences_are_not_divided():
    feed = {"x": create_lod_tensor(np.zeros((3, 1)), [[1, 2]]), "y": np.zeros((3, 1))}
    cut, division = cut_feed(feed, frozenset({"x", "y"}), 1, 2)
    assert "equal numbers of rows, got {'x': 2, 'y': 3}" in division.why_whole
    assert cut == feed

"""Versions that hold only rows that are worth it: which rows, and when, also after a failure."""

import numpy as np
import pytest

from hpcdist.checkpoint import published_rows
from hpcdist.checkpoint.published_rows import PublishedRows, PublishOrder
from hpcdist.checkpoint.rows import Choice
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.published.sorted_rows import ids_of
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer

POLICY = RowPolicy(score=ClickScore(nonclk_coeff=1.0, delete_threshold=0.5))
KEEP = {"t": vars(Choice(least_score=2.0, days=3.0, least_delta=2.0))}


class Published:
    """What owner 0 of 1 writes of a table: by member, ids and deleted ids."""

    def __init__(self, directory, monkeypatch):
        self.directory, self.real = str(directory), published_rows.write_rows
        facts = RowOptimizer("sgd"), RowInitializer("constant", 0.0), 0
        self.table = PolicyTable("t", 1, *facts, policy=POLICY)
        self.owner, self.written = PublishedRows(0, 1), []
        monkeypatch.setattr(published_rows, "write_rows", self.write)

    def write(self, path, tables, sizes, *, packed):
        table = tables["t"]
        self.written.append(tuple(ids_of(k).tolist() for k in (table.keys, table.deleted)))
        return self.real(path, tables, sizes, packed=packed)

    def push(self, *ids):
        self.table.push(np.array(ids), np.ones((len(ids), 1), np.float32), 0.1)

    def publish(self, number, *, base=False, committed=None):
        committed = number - 1 if committed is None else committed
        order = PublishOrder(self.directory, number, "", committed, base, None, KEEP)
        assert not self.owner.begin([self.table], order)
        self.owner.close()
        ids, deleted = self.written[-1]
        return sorted(ids), sorted(deleted)


@pytest.fixture
def made(tmp_path, monkeypatch):
    return Published(tmp_path, monkeypatch)


def test_a_version_holds_the_rows_whose_scores_are_high_enough(made):
    made.push(1, 2, 3)
    made.push(1, 2)
    assert made.publish(1, base=True) == ([1, 2], [])  # 3 has been shown once
    made.push(1, 3)
    assert made.publish(2) == ([3], [])  # 1 once since it was published
    made.push(1)
    assert made.publish(3) == ([1], [])  # which was not forgotten
    assert made.publish(4) == ([], [])
    for _ in range(40):
        made.table.shrink()
    deleted = made.publish(5)[1]
    assert deleted == [1, 2, 3]
    made.push(1)
    assert made.publish(6, base=True) == ([], [])


def test_what_a_version_had_that_never_was_is_due(made):
    made.push(1, 2)
    made.push(1)
    assert made.publish(1, base=True) == ([1], [])
    made.push(1, 2)
    made.push(1, 3)
    assert made.publish(2) == ([1, 2], [])
    made.push(3)
    assert made.publish(3, committed=1) == ([1, 2, 3], [])  # 1 and 2 are worth nothing anew
    assert made.publish(4, base=True, committed=3) == ([1, 2, 3], [])
    made.push(1)
    assert made.publish(5, committed=3) == ([1], [])  # the base was not complete

"""The lists of a table's parts: their memory is got once, and counted as far as it is used."""

import numpy as np

from hpcdist.ps import policy_table
from hpcdist.ps.mapped_memory import PAGE_BYTES
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import RowPolicy, quotas_of
from hpcdist.ps.table import RowInitializer, RowOptimizer


def test_a_budgets_lists_leave_no_holes_behind_in_memory(monkeypatch):
    """Lists that grew by and by left as much memory unused as 3 % of a large budget."""
    taken, real = [], policy_table.lasting
    monkeypatch.setattr(policy_table, "lasting", lambda size: taken.append(size) or real(size))
    policy = RowPolicy(budget_rows=30_000, parts=10)
    facts = RowOptimizer("sgd"), RowInitializer("constant", 0.0), 0
    table = PolicyTable("t", 1, *facts, policy=policy)
    for begin in range(0, 60_000, 500):
        table.push(np.arange(begin, begin + 500), np.ones((500, 1), np.float32), 0.1)
    assert len(taken) == 20, "of each part few places, then all"
    rooms = quotas_of(30_000, 10) * 17 // 16
    assert sorted(taken[10:]) == sorted((rooms * 16).tolist())
    few = PolicyTable("t", 1, *facts, policy=RowPolicy(budget_rows=30_000_000, parts=10))
    before = few.nbytes
    few.push(np.arange(500), np.ones((500, 1), np.float32), 0.1)
    assert few.nbytes - before < 10 * PAGE_BYTES + 100_000

"""Shows and clicks of a week, beside what Paddle 2.6.2's CtrCommonAccessor keeps of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from hpcdist.checkpoint.rows import inference_runs
from hpcdist.fluid.fleet.table_settings import choices_of
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import DAY, DELTA, SHOW, WIDE, ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer
from tests.golden.loader import golden

OF_MODELS = ("base_threshold", "delta_threshold", "delta_keep_days")


def test_rows_scores_and_deltas_of_a_week_are_those_of_paddle() -> None:
    """Which rows live, their shows and clicks, which a base and a delta hold, day by day."""
    recorded = golden("ctr_accessor.json")
    accessor = recorded["accessor"]
    score = ClickScore(**{k: v for k, v in accessor.items() if k not in OF_MODELS})
    policy = RowPolicy(score=score, shows=("show", "click"), parts=6)
    start = RowInitializer("constant", 0.0)
    table = PolicyTable("t", 1, RowOptimizer("sgd"), start, 0, policy=policy)
    prefix = "table_parameters.t.accessor.ctr_accessor_param."
    configs = {"t": {prefix + name: value for name, value in accessor.items()}}
    strategy = SimpleNamespace(sparse_table_configs=configs)

    def saved(*, delta: bool) -> list[int]:
        ((_, (ids, _)),) = inference_runs(table, choices_of(strategy, delta=delta))
        return sorted(ids.tolist())

    deleted = 0
    for day in recorded["days"]:
        for ids, shows, clicks in day["passes"]:
            sent = np.zeros((len(ids), 3), np.float32)
            sent[:, 1], sent[:, 2] = shows, clicks
            table.push(np.array(ids), sent, 0.1)
        ids = table.export(0, len(table))[0]
        known = table.metadata(ids)
        floats = known.view(np.float32)
        unseen = table.day - known[:, DAY].astype(np.int64)
        columns = unseen, floats[:, DELTA], floats[:, SHOW], floats[:, SHOW + 1]
        mine = dict(zip(ids.tolist(), np.stack(columns, axis=1).tolist()))
        wanted = {int(row_id): numbers for row_id, numbers in day["rows"].items()}
        assert mine.keys() == wanted.keys()
        for row_id, numbers in wanted.items():
            np.testing.assert_allclose(mine[row_id], numbers, rtol=3e-6, atol=1e-6)
        assert saved(delta=True) == day["delta"]
        assert saved(delta=False) == day["base"]
        assert saved(delta=True) == day["delta_again"]
        deleted += table.shrink()
    assert deleted > 10, "the week has rows that go"


def test_rows_widen_in_the_step_in_which_they_widen_in_paddle() -> None:
    """Narrow rows answer zeros behind the first column; the first values are zeros here, too."""
    recorded = golden("ctr_widths.json")
    policy = RowPolicy(
        score=ClickScore(**recorded["accessor"]),
        shows=("show", "click"),
        widen_at=recorded["embedx_threshold"],
    )
    start = RowInitializer("constant", 0.0)
    table = PolicyTable("t", 4, RowOptimizer("sgd"), start, 0, policy=policy)
    narrow = 0
    for push in recorded["pushes"]:
        ids = np.array([int(row_id) for row_id in push["pulled"]])
        wanted = np.array(list(push["pulled"].values()), np.float32)
        rows = np.empty((len(ids), 6), np.float32)
        table.pull(ids, rows)
        np.testing.assert_array_equal(rows[:, :4], wanted)
        narrow += int(((wanted[:, 0] != 0) & ~wanted[:, 1:].any(axis=1)).sum())
        sent = np.column_stack([push["grads"], push["shows"], push["clicks"]])
        table.push(np.array(push["ids"]), sent.astype(np.float32), recorded["learning_rate"])
        if push["ends_day"]:
            table.shrink()
    assert narrow > 10, "some rows are narrow for a while"
    known = table.metadata(table.export(0, len(table))[0])
    assert known[:, WIDE].all(), "in the end all have widened"

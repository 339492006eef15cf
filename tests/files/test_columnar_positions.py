"""Columnar files: where reading goes on, on which trainers, in which loop, with how much memory."""

import tracemalloc
from itertools import chain

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.parquet as pq  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.errors import CheckpointError, DataError  # noqa: E402
from tests.support.columnar_files import N, ids, joined, parquet, table  # noqa: E402


def test_reading_goes_on_at_a_position_with_other_trainers(tmp_path):
    path = parquet(tmp_path)

    def read(trainers=1, trainer=0):
        rows = fluid.data.read(path, ["id"], batch=24, shuffle=9, window=80, drop_last=True)
        return rows.shard(trainers, trainer) if trainers > 1 else rows

    whole = [ids(read()), ids(read())]
    second = read()
    list(second)
    assert second.epoch == 1
    assert ids(second) != whole[0]
    before = [read(3, t) for t in range(3)]
    passes = [iter(rows) for rows in before]
    used = [list(chain(*(next(it)["id"].tolist() for it in passes))) for _ in range(5)]
    states = [rows.state() for rows in before]
    after = [read(2, t) for t in range(2)]
    for rows in after:
        rows.check(states)
        rows.resume(states[0], None)
    used += [
        list(chain(*(b["id"].tolist() for b in batches))) for batches in zip(*after, strict=True)
    ]
    assert used == whole[0]
    assert [rows.epoch for rows in after] == [1, 1]


def test_a_loop_that_was_left_is_gone_on_with(tmp_path):
    rows = fluid.data.read(parquet(tmp_path), ["id"], batch=150)
    first = next(iter(rows))["id"].tolist()
    assert first + joined(rows) == list(range(400))
    assert (rows.epoch, rows.position) == (1, 0)


def test_positions_of_other_data_are_refused(tmp_path):
    path = parquet(tmp_path)
    rows = fluid.data.read(path, ["id"], batch=50, shuffle=1)
    next(iter(rows))
    state = rows.state()
    with pytest.raises(CheckpointError, match=r"its seed, window, lanes and their chunk were \[1"):
        fluid.data.read(path, batch=50, shuffle=2).check([state])
    with pytest.raises(CheckpointError, match="trainer 1 was at row 50 of epoch 3"):
        rows.check([state, {**state, "epoch": 3}])
    with pytest.raises(CheckpointError, match="saved with resumable"):
        rows.check([{"epoch": 0, "position": 1, "began": None}])
    with pytest.raises(CheckpointError, match=r"saved with data.read"):
        fluid.checkpoint.resumable(lambda: iter([])).check([state])
    pq.write_table(table(0, 31), tmp_path / "p1.parquet")
    with pytest.raises(
        CheckpointError, match=r"files were \S*p0.parquet, .*400 rows\), now .*401 rows"
    ):
        fluid.data.read(path, batch=50, shuffle=1).check([state])


@pytest.mark.parametrize(
    "state", [None, [], "x", {"rows": {}}, {"rows": {}, "epoch": 0, "position": -1, "run": None}]
)
def test_what_is_no_position_is_refused(tmp_path, state):
    rows = fluid.data.read(parquet(tmp_path), batch=10)
    with pytest.raises(CheckpointError, match="expected a position"):
        rows.check([state])


def test_behind_the_last_batch_other_files_may_be_read(tmp_path):
    path = parquet(tmp_path)
    rows = fluid.data.read(path, ["id"], batch=200)
    batches = iter(rows)
    next(batches)
    next(batches)  # the loop does not know yet that this was the last
    state = rows.state()
    assert (state["epoch"], state["position"]) == (1, 0)
    others = fluid.data.read(tmp_path / "p0.parquet", ["id"], batch=200)
    others.check([state])
    others.resume(state, None)
    assert joined(others) == list(range(N))
    assert others.epoch == 2


def test_shard_goes_on_where_the_rows_were_restored(tmp_path):
    path = parquet(tmp_path)
    rows = fluid.data.read(path, ["id"], batch=100)
    next(iter(rows))
    whole = fluid.data.read(path, ["id"], batch=100)
    whole.resume(rows.state(), None)
    parts = [whole.shard(2, t) for t in range(2)]
    assert sorted(chain(*map(joined, parts))) == list(range(100, 400))


def test_of_two_loops_over_the_same_rows_the_older_is_refused(tmp_path):
    rows = fluid.data.read(parquet(tmp_path), ["id"], batch=100)
    older, newer = rows(), rows()
    used = [next(older), next(newer)]
    with pytest.raises(DataError, match="another loop over the same rows has begun"):
        next(older)
    assert joined([*used, *newer]) == list(range(400))
    loop = rows()
    next(loop)
    rows.resume({"epoch": 1, "position": 200, "run": None}, None)
    with pytest.raises(DataError, match="or they were restored"):
        next(loop)
    assert (rows.epoch, rows.position) == (1, 200)


def test_a_batch_with_too_few_rows_for_all_trainers_is_refused(tmp_path):
    rows = fluid.data.read(parquet(tmp_path), batch=57)
    with pytest.raises(DataError, match="a batch of 1 rows cannot be divided among 2 trainers"):
        rows.shard(2, 0)
    fluid.data.read(parquet(tmp_path), batch=57, drop_last=True).shard(2, 0)


def peak(path, window):
    """Return how much memory one pass takes at most, of numpy's and pyarrow's, in bytes."""
    next(iter(fluid.data.read(path, batch=1000)))  # what is imported at first use does not count
    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    try:
        for _ in fluid.data.read(path, batch=1000, shuffle=1, window=window):
            now = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
            most = max(most, now)
    finally:
        tracemalloc.stop()
    return most


def test_memory_holds_a_window_not_the_data(tmp_path):
    rows = 1_000_000  # much more than what Arrow reads ahead
    path = tmp_path / "big.parquet"
    pq.write_table(pa.table({"id": np.arange(rows)}), path, row_group_size=10_000)
    limit = rows * 8 / 2
    assert peak(path, 20_000) < limit < peak(path, rows)

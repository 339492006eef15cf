"""Rows that widen: saved and restored elsewhere, and in inference models."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdist.checkpoint import Checkpoint
from hpcdist.checkpoint.saved_rows import SavedRows
from hpcdist.ps.batch import owners_of
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import WIDE, ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.cases.checkpoint import TABLE
from tests.support import row_servers

NARROW = RowPolicy(score=ClickScore(delete_threshold=0.0), widen_at=0.25)
WHOLE = replace(NARROW, widen_at=0.0)
INT8 = {"rows": "int8", "state": "float16"}
FACTS = RowOptimizer("adam"), RowInitializer("uniform", -0.1, 0.1), 3
EVERY = np.arange(1500)  # ids above 999 are never trained


def table_of(policy):
    if policy is None:
        return SparseTable(TABLE, 4, *FACTS)
    return PolicyTable(TABLE, 4, *FACTS, policy=policy)


def servers_of(policy, count):
    return row_servers.servers_of(lambda: table_of(policy), count)


def trained(policy, count, steps=3):
    servers = servers_of(policy, count)
    row_servers.push_batches(servers.tables, steps, seed=1, ids=1000)
    return servers


def looked_up(tables, ids=EVERY):
    out = np.empty((len(ids), 4), np.float32)
    owners = owners_of(ids, len(tables))
    for k, table in enumerate(tables):
        rows = np.empty((int((owners == k).sum()), 4), np.float32)
        table.read(ids[owners == k], rows)
        out[owners == k] = rows
    return out


def widths_of(tables):
    """Return the ids that have rows, and which of them are wide."""
    ids = np.concatenate([table.export(0, len(table))[0] for table in tables])
    wide = [table.metadata(table.export(0, len(table))[0])[:, WIDE] for table in tables]
    order = np.argsort(ids)
    return ids[order], np.concatenate(wide)[order] != 0


@pytest.mark.parametrize("kept", [{}, INT8], ids=["float32", "int8"])
@pytest.mark.parametrize("after", [1, 3])
def test_restored_on_other_servers_they_go_on_as_if_they_had_not_been_saved(tmp_path, kept, after):
    policy = replace(NARROW, **kept)
    before, now = trained(policy, 2), servers_of(policy, after)
    before.save(tmp_path)
    now.check(tmp_path, data=True)
    now.load(tmp_path)
    ids, wide = widths_of(before.tables)
    assert 20 < wide.sum() < len(ids) - 20, "there are both"
    np.testing.assert_array_equal(looked_up(now.tables), looked_up(before.tables))
    assert not looked_up(before.tables, ids[~wide])[:, 1:].any()
    for servers in (before, now):
        row_servers.push_batches(servers.tables, 4, seed=2, ids=1000)
    np.testing.assert_array_equal(looked_up(now.tables), looked_up(before.tables))
    assert widths_of(now.tables)[1].sum() == widths_of(before.tables)[1].sum() > wide.sum()


@pytest.mark.parametrize("other", [None, WHOLE], ids=["no policy", "policy"])
@pytest.mark.parametrize("kept", [{}, INT8], ids=["float32", "int8"])
def test_in_tables_without_narrow_rows_they_have_the_first_values_of_whole_ones(
    tmp_path, other, kept
):
    before, now = trained(replace(NARROW, **kept), 2), servers_of(other, 1)
    before.save(tmp_path)
    now.check(tmp_path)
    now.load(tmp_path)
    ids, wide = widths_of(before.tables)
    first = looked_up([table_of(None)], ids)
    wanted = looked_up(before.tables, ids)
    wanted[~wide, 1:] = first[~wide, 1:]
    np.testing.assert_array_equal(looked_up(now.tables, ids), wanted)


def test_rows_that_were_saved_whole_stay_so(tmp_path):
    before, now = trained(WHOLE, 1), servers_of(NARROW, 2)
    before.save(tmp_path)
    now.check(tmp_path)
    now.load(tmp_path)
    ids, wide = widths_of(now.tables)
    assert wide.all()
    np.testing.assert_array_equal(looked_up(now.tables, ids), looked_up(before.tables, ids))


def test_an_inference_model_answers_as_the_table(tmp_path):
    before = trained(NARROW, 3)
    before.save(tmp_path, rows_of=[TABLE])
    with Checkpoint(tmp_path) as checkpoint:
        found = np.empty((len(EVERY), 4), np.float32)
        SavedRows(checkpoint, TABLE).look_up(EVERY, found)
    np.testing.assert_array_equal(found, looked_up(before.tables))
    assert found[1400, 0] != 0, "of an id that was never trained, too"
    assert not found[1400, 1:].any()

"""Rows that are kept in bytes: saved as they are, restored anywhere, published, looked up."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdist.checkpoint.metadata import TablePart
from hpcdist.checkpoint.rows import check_fits, decoded, facts_of
from hpcdist.errors import CheckpointError
from hpcdist.ps.batch import owners_of
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from tests.cases.checkpoint import TABLE
from tests.support import row_servers

INT8 = RowPolicy(rows="int8", state="float16")
HALF = RowPolicy(rows="bfloat16", rounding="stochastic")
MANY = RowPolicy(rows="int8", state="float16", admit_after=2, budget_rows=600)
FACTS = RowOptimizer("adam"), RowInitializer("uniform", -0.1, 0.1), 3
EVERY = np.arange(1500)


def table_of(policy):
    if policy is None or policy.keeps_all:
        return SparseTable(TABLE, 4, *FACTS, storage=policy and policy.storage)
    return PolicyTable(TABLE, 4, *FACTS, policy=policy)


def servers_of(policy, count):
    return row_servers.servers_of(lambda: table_of(policy), count)


def train(tables, steps, seed):
    row_servers.push_batches(tables, steps, seed, ids=1000)


def kept(tables):
    """Return the bytes of rows and state by id."""
    found = {}
    for table in tables:
        ids, rows, state = table.export(0, len(table))
        joined = np.hstack([rows.view(np.uint8), state.view(np.uint8)]).tolist()
        found |= dict(zip(ids.tolist(), joined))
    return found


def looked_up(tables):
    out = np.empty((len(EVERY), 4), np.float32)
    owners = owners_of(EVERY, len(tables))
    for k, table in enumerate(tables):
        rows = np.empty((int((owners == k).sum()), 4), np.float32)
        table.read(EVERY[owners == k], rows)
        out[owners == k] = rows
    return out


@pytest.mark.parametrize("policy", [INT8, HALF, MANY], ids=["int8", "bfloat16", "admitted"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_restored_table_goes_on_as_if_it_had_not_been_saved(tmp_path, policy, after):
    before, now = servers_of(policy, 2), servers_of(policy, after)
    train(before.tables, 4, seed=1)
    before.save(tmp_path)
    train(now.tables, 1, seed=9)  # what is overwritten
    now.check(tmp_path, data=True)
    now.load(tmp_path)
    assert kept(now.tables) == kept(before.tables)
    for tables in (before.tables, now.tables):
        train(tables, 3, seed=2)
    assert kept(now.tables) == kept(before.tables)
    assert {table.step for table in now.tables} == {7}


def test_rows_of_another_type_are_converted(tmp_path):
    """From float32 to int8, by chance, and back: as a look-up gives them."""
    plain, whole, back = (servers_of(policy, n) for policy, n in ((None, 2), (INT8, 3), (None, 1)))
    train(plain.tables, 3, seed=1)
    plain.save(tmp_path / "a")
    whole.check(tmp_path / "a")
    whole.load(tmp_path / "a")
    exact, rounded = looked_up(plain.tables), looked_up(whole.tables)
    assert 0 < np.abs(rounded - exact).max() <= np.abs(exact).max() / 127
    whole.save(tmp_path / "b")
    back.check(tmp_path / "b")
    back.load(tmp_path / "b")
    known = sorted(kept(plain.tables))
    np.testing.assert_array_equal(looked_up(back.tables)[known], rounded[known])


def test_any_tool_reads_the_bytes_in_the_manifest(tmp_path):
    import h5py

    servers = servers_of(INT8, 2)
    train(servers.tables, 2, seed=1)
    servers.save(tmp_path)
    with h5py.File(tmp_path / "manifest.h5") as manifest:
        found = manifest[TABLE]
        joined = np.hstack([found["rows"][:], found["state"][:]]).tolist()
        assert dict(zip(found["ids"][:].tolist(), joined)) == kept(servers.tables)


def test_bytes_that_no_rows_have_are_refused():
    table = table_of(INT8)
    train([table], 1, seed=1)
    _, rows, state = table.export(0, len(table))
    begins = (0,) * 1024 + (len(rows),)
    good = TablePart(
        TABLE, "t/0", 4, 8, begins, (1.0, 1.0), facts_of(table), row_bytes=8, state_bytes=20
    )
    check_fits(table, good, "f")
    np.testing.assert_array_equal(decoded(good, rows, state)[0], table.decoded(rows, state)[0])
    for wrong in (
        replace(good, row_bytes=9),
        replace(good, state_bytes=16),
        replace(good, facts={**good.facts, "storage": {"rows": "int4"}}),
        replace(good, facts={**good.facts, "storage": 3}),
        replace(good, facts={k: v for k, v in good.facts.items() if k != "storage"}),
    ):
        with pytest.raises(CheckpointError, match="'ids_table': malformed facts"):
            decoded(wrong, rows, state)

"""What tables with a policy know of their rows is saved, and restored on other servers."""

import numpy as np
import pytest

from hpcdist.checkpoint import Checkpoint
from hpcdist.ps.batch import owners_of
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer
from tests.cases.checkpoint import TABLE, Servers, build, fill_tables
from tests.support import row_servers

EXACT = RowPolicy(
    admit_after=3, waiting_ids=300, budget_rows=600, score=ClickScore(delete_threshold=0.35)
)
SKETCH = RowPolicy(admit_after=3, sketch_bytes=60 * 16 * 32, expire_steps=5)


def table_with(policy):
    facts = RowOptimizer("adam"), RowInitializer("constant", 0.0), 3
    return PolicyTable(TABLE, 4, *facts, policy=policy)


def servers_with(policy, count):
    return row_servers.servers_of(lambda: table_with(policy), count)


def train(tables, steps, seed):
    """Push batches, and end a day."""
    row_servers.push_batches(tables, steps, seed, ids=4000)
    for table in tables:
        table.shrink()


def known(tables):
    """Return everything that is known of rows, and of ids that wait, by id."""
    found = {}
    for table in tables:
        for each in (table, *table.companions):
            ids, rows, state = each.export(0, len(each))
            facts = [rows, state]
            if isinstance(each, PolicyTable):
                facts.append(each.metadata(ids).view(np.float32))
            joined = np.hstack(facts).view(np.uint32).tolist()
            found |= {(each.name, i): row for i, row in zip(ids.tolist(), joined)}
    return found


@pytest.mark.parametrize("policy", [EXACT, SKETCH], ids=["exact", "sketch"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_restored_table_goes_on_as_if_it_had_not_been_saved(tmp_path, policy, after):
    before, now = servers_with(policy, 2), servers_with(policy, after)
    train(before.tables, 6, seed=1)
    before.tables[0].push(np.arange(0), np.zeros((0, 4), np.float32), 0.1)
    before.tables[1].push(np.arange(0), np.zeros((0, 4), np.float32), 0.1)
    before.save(tmp_path)
    train(now.tables, 1, seed=9)  # what is overwritten
    now.check(tmp_path, data=True)
    now.load(tmp_path)
    saved = known(before.tables)
    assert known(now.tables) == saved
    assert len({name for name, _ in saved}) == (2 if policy is EXACT else 1)  # shrink empties
    for tables in (before.tables, now.tables):
        train(tables, 4, seed=2)
    assert known(now.tables) == known(before.tables)
    assert {(t.step, t.day) for t in now.tables} == {(11, 2)}


def test_a_sketch_is_saved_with_its_table(tmp_path):
    before, now = servers_with(SKETCH, 3), servers_with(SKETCH, 2)
    for servers in (before, now):
        train(servers.tables, 1, seed=servers is now)
    ids = np.arange(4000, 4400)
    owners = owners_of(ids, 3)
    for k, table in enumerate(before.tables):
        mine = ids[owners == k]
        table.push(mine, np.zeros((len(mine), 4), np.float32), 0.1)
    before.save(tmp_path)
    now.load(tmp_path)
    assert known(now.tables) == known(before.tables)
    assert any(name == f"{TABLE}@sketch" for name, _ in known(now.tables))


def test_rows_of_files_without_metadata_count_as_looked_up_just_now(tmp_path):
    plain = Servers(*build(), 2, tables=True)
    ids, _, _ = fill_tables(plain.tables, count=50)
    plain.save(tmp_path)
    now = servers_with(EXACT, 3)
    now.check(tmp_path)
    now.load(tmp_path)
    for k, table in enumerate(now.tables):
        mine = ids[owners_of(ids, 3) == k]
        assert table.metadata(mine).tolist() == [[1, 0, 0, 0, 0, 0]] * len(mine)
        assert len(table) == len(mine)


def test_tables_without_a_policy_take_the_rows_of_those_with_one(tmp_path):
    before, plain = servers_with(EXACT, 2), Servers(*build(), 1, tables=True)
    train(before.tables, 6, seed=1)
    before.save(tmp_path)
    plain.check(tmp_path)
    plain.load(tmp_path)
    assert sorted(plain.tables[0].export(0, 10**6)[0].tolist()) == sorted(
        i for name, i in known(before.tables) if name == TABLE
    )


def test_any_tool_reads_the_metadata_in_the_manifest(tmp_path):
    import h5py

    servers = servers_with(EXACT, 2)
    train(servers.tables, 6, seed=1)
    servers.save(tmp_path)
    with h5py.File(tmp_path / "manifest.h5") as file:
        ids, words = file[f"{TABLE}/ids"][...], file[f"{TABLE}/metadata"][...]
    for table in servers.tables:
        mine = np.isin(ids, table.export(0, len(table))[0])
        np.testing.assert_array_equal(words[mine], table.metadata(ids[mine]))
    with Checkpoint(tmp_path) as checkpoint:
        parts = [part for part in checkpoint.facts.tables if part.name == TABLE]
    assert {part.metadata for part in parts} == {EXACT.metadata}
    assert {part.clock for part in parts} == {(6, 1)}


def test_rows_loaded_from_a_later_step_are_forgotten_by_their_next_look():
    """A look lowers what they are worth: the lists that rows are forgotten by must follow."""
    score = ClickScore(nonclk_coeff=0.0, delete_threshold=0.0)
    table = table_with(RowPolicy(budget_rows=8, parts=1, score=score))
    ids, metadata = np.arange(8), np.zeros((8, len(table.policy.metadata)), np.uint32)
    metadata[:, :3] = 1, 100, 0
    rows, state = np.zeros((8, 4), np.float32), np.zeros((8, table.state_width), np.float32)
    table.load(ids, rows, state, metadata)
    table.push(np.array([2, 5]), rows[:2], 0.1)
    table.push(np.array([10, 11]), rows[:2], 0.1)
    assert sorted(table.export(0, 9)[0].tolist()) == [0, 1, 3, 4, 6, 7, 11]

"""Tables whose rows do not fit into memory: what they take of memory and disk, and what fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from hpcdist.base.errors import TableError
from hpcdist.checkpoint.local import Content, Label
from hpcdist.checkpoint.published_rows import copied
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.row_tier import BUFFER_BYTES, SLOT_BYTES, Tier
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable

DIM = 8
ADAM = RowOptimizer("adam")
START = RowInitializer("uniform", -0.5, 0.25)


def made(tmp_path, rows: int = 0, **more) -> SparseTable:
    tier = Tier(str(tmp_path), rows=rows, **more) if rows or more else None
    return SparseTable("t", DIM, ADAM, START, 3, tier=tier)


def trained(table: SparseTable, steps: int, ids: int = 3000) -> None:
    random = np.random.default_rng(0)
    for _ in range(steps):
        some = random.zipf(1.2, 400) % ids
        table.push(some, random.normal(size=(len(some), DIM)).astype(np.float32), 0.1)


def contents(table: SparseTable) -> list[np.ndarray]:
    ids, rows, state = table.export(0, len(table))
    order = np.argsort(ids)
    return [ids[order], rows[order], state[order]]


@pytest.mark.parametrize("rows", [8, 50, 400])
def test_bits_are_those_of_a_table_in_memory(tmp_path, rows) -> None:
    """Batches have more different ids than fit, some, and fewer."""
    table, other = made(tmp_path, rows), made(tmp_path)
    for each in (table, other):
        trained(each, 30)
    for mine, wanted in zip(contents(table), contents(other)):
        assert mine.dtype == wanted.dtype
        np.testing.assert_array_equal(mine, wanted)
    tier = table.tier
    assert tier is not None
    assert tier.rows_in_memory == rows
    assert tier.rows_on_disk == len(table) - rows
    assert table.statistics().disk_bytes >= tier.rows_on_disk * DIM * 12


def test_memory_keeps_to_its_bound(tmp_path) -> None:
    """Of what rows take; the other table's is 20 times as much."""
    table, other = made(tmp_path, nbytes=100_000), made(tmp_path)
    ids = np.arange(20_000)
    for each in (table, other):
        for begin in range(0, len(ids), 500):
            part = ids[begin : begin + 500]
            each.push(part, np.ones((500, DIM), np.float32), 0.1)
    tier = table.tier
    assert tier.rows_in_memory == tier.capacity == 100_000 // (DIM * 12 + SLOT_BYTES)
    assert tier.nbytes_at_most <= 100_000 < tier.nbytes < 100_000 + BUFFER_BYTES + 100_000
    assert table.nbytes < 0.7 * other.nbytes, "index and links are most of it, of rows of 8"


def test_rows_looked_up_last_are_the_ones_in_memory(tmp_path) -> None:
    table = made(tmp_path, 3)
    out = np.empty((1, DIM), np.float32)
    for row_id in (1, 2, 3, 1, 4):
        table.pull(np.array([row_id]), out)
    read = np.empty((4, DIM), np.float32)
    table.read(np.array([1, 2, 3, 4]), read)  # which moves none
    os.ftruncate(table.tier.file.fileno(), 0)
    table.read(np.array([4, 3, 1]), read[:3])
    with pytest.raises(TableError, match=r"rows cannot be read there.* \(0 of 96 bytes\)"):
        table.read(np.array([2]), read[:1])


def test_a_full_disk_is_one_error_and_nothing_has_changed(tmp_path, monkeypatch) -> None:
    table = made(tmp_path, 100)
    trained(table, 10)
    before, step = contents(table), table.step

    def full(file: int, begin: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    message = (
        r"table 't', RowPolicy\(disk='.*'\) on .*: its file cannot grow to \d+ bytes \(No space "
        r"left on device\); 100 rows are in memory, \d+ on disk; make room there"
    )
    ids = np.arange(10**6, 10**6 + 5000)
    with pytest.raises(TableError, match=message):
        table.push(ids, np.ones((len(ids), DIM), np.float32), 0.1)
    with pytest.raises(TableError, match="its file cannot grow"):
        table.pull(ids, np.empty((len(ids), DIM), np.float32))
    assert table.step == step
    for now, then in zip(contents(table), before):
        np.testing.assert_array_equal(now, then)
    with pytest.raises(TableError, match="no room for a copy of 40 bytes"):
        table.tier.space((2, 5), np.float32)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda: RowPolicy(disk="/x"), "memory_rows= or memory_bytes= does not hold: give both"),
        (lambda: RowPolicy(memory_rows=5), "give both, or neither"),
        (lambda: RowPolicy(disk="/x", memory_rows=1, memory_bytes=1), "not both"),
        (lambda: RowPolicy(disk=3, memory_rows=1), "disk: expected a directory's name, got 3"),
        (lambda: RowPolicy(disk="/x", memory_rows=-1), "memory_rows: expected a whole number"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(policy, message) -> None:
    with pytest.raises(TableError, match=message):
        policy()


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"disk": "/nowhere/at all", "memory_rows": 9}, r"no file can be made there on .*No such"),
        ({"disk": __file__, "memory_rows": 9}, "Not a directory"),
        ({"disk": "/", "memory_bytes": 50}, r"memory_bytes=50\): a row takes 72 bytes"),
        ({"disk": "/", "memory_bytes": 1 << 60}, "GiB of memory for rows cannot be had"),
    ],
)
def test_what_no_table_can_have_is_refused_before_the_first_step(kept, message) -> None:
    with pytest.raises(TableError, match=f"table 't': .*{message}"):
        PolicyTable("t", DIM, RowOptimizer("adagrad"), START, 3, policy=RowPolicy(**kept))


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path) -> None:
    script = (
        "import numpy as np, os, signal\n"
        "from hpcdist.ps.table import *\n"
        "from hpcdist.ps.row_tier import Tier\n"
        f"tier = Tier({str(tmp_path)!r}, rows=10)\n"
        "table = SparseTable('t', 4, RowOptimizer(), RowInitializer(), 0, tier=tier)\n"
        "table.push(np.arange(100), np.ones((100, 4), np.float32), 0.1)\n"
        "assert table.statistics().disk_bytes\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not os.listdir(tmp_path)


def test_snapshots_and_bases_are_on_the_disk(tmp_path) -> None:
    """What is written beside training is not copied into memory."""
    folder = tmp_path / "rows"
    folder.mkdir()
    table = made(folder, 5)
    trained(table, 3)
    content = Content((), None, [table])
    content.snapshot({})
    entries = content.entries(Label("server 0", 3, ""))[1]
    arrays = [entry.array for entry in entries]
    assert [type(array) for array in arrays] == [np.memmap] * 3
    for copy, wanted in zip(arrays, table.export(0, len(table))):
        np.testing.assert_array_equal(np.sort(copy, axis=0), np.sort(wanted, axis=0))
    base = copied(table, None)
    assert isinstance(base.rows_at(0, 1), np.memmap)
    assert not os.listdir(folder)

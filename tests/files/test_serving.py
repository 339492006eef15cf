"""Tables that are published beside training, and looked up elsewhere."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import hpcdist.ps as ps
from hpcdist.checkpoint import published_rows
from hpcdist.errors import PublicationError, TableError
from hpcdist.launch import main
from hpcdist.ps.changes import Changes
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from hpcdist.serving import Lookup, compact
from hpcdist.serving.sorted_rows import SortedKeys, ids_of, mixes_of
from tests.support.published import WIDTH, Publication, random_publication

pytestmark = pytest.mark.usefixtures("none_connected")
IDS = np.arange(-20, 20)


def names(directory, suffix=".json"):
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffix))


def pushed(table, ids, value=1.0):
    table.push(ids, np.full((len(ids), table.width), value, np.float32)).wait()


def test_increments_follow_a_base_and_hold_what_has_changed(tmp_path):
    table = ps.connect("t", 2, lr=0.5, publish=tmp_path, initial=ps.Initial("normal", 0, 1))
    pushed(table, [1, 2, 3])
    table.publish()
    pushed(table, [3, 4])
    table.publish()
    assert names(tmp_path) == ["000000001.base.json", "000000002.delta.json"]
    with Lookup(tmp_path, watch=False) as lookup:
        assert (lookup.version, lookup.current.step) == (2, 2)
        assert (lookup.pull("t", IDS) == table.pull(IDS, create=False)).all()
        assert lookup.current.chain.last.rows("t") == 2
        assert lookup.pull("t", [[1, 99]], missing="zeros")[0, 1].tolist() == [0, 0]
        assert lookup.pull("t", []).shape == (0, 2)
        for wrong, message in (
            (lambda: lookup.pull("t", [1, 99], missing="error"), "no row of id 99"),
            (lambda: lookup.pull("tt", [1]), "no table 'tt'; did you mean 't'"),
            (lambda: lookup.pull("t", [0.5]), "expected integers .* float64"),
            (lambda: lookup.pull("t", [1], missing="none"), "expected initial, zeros or error"),
        ):
            with pytest.raises(TableError, match=message):
                wrong()
    with pytest.raises(PublicationError, match="was closed"):
        lookup.pull("t", [1])


@pytest.mark.parametrize("kept", [{}, {"rows": "int8"}], ids=["float32", "int8"])
@pytest.mark.parametrize("initial", [ps.Initial("uniform", -1, 1), ps.Initial("constant", 0.75, 0)])
def test_increments_hold_what_widens(tmp_path, kept, initial):
    policy = RowPolicy(score=ClickScore(), widen_at=0.25, **kept)
    table = ps.connect("t", 4, lr=0.5, publish=tmp_path, row_policy=policy, initial=initial)
    for step in range(6):
        pushed(table, np.arange(step, 12))
        table.publish()
        with Lookup(tmp_path, watch=False) as lookup:
            assert (lookup.pull("t", IDS) == table.pull(IDS, create=False)).all()
    wide = table.pull(np.arange(12), create=False)[:, 1:].any(axis=1)
    assert wide.tolist() == [False] * 2 + [True] * 10
    compact(tmp_path)
    with Lookup(tmp_path, watch=False) as lookup:
        assert (lookup.pull("t", IDS) == table.pull(IDS, create=False)).all()


def test_a_version_is_published_every_so_many_steps_and_at_the_end(tmp_path):
    table = ps.connect("t", 2, publish=tmp_path, publish_every=2)
    for step in range(5):
        pushed(table, [step])
        if step == 1:
            table._tables._publisher.wait()  # private: it writes beside the script
            assert names(tmp_path) == ["000000001.base.json"]
    rows = table.pull(IDS, create=False)
    table.close()
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.current.step == 5
        assert (lookup.pull("t", IDS) == rows).all()


def test_restored_tables_and_later_runs_begin_with_a_base(tmp_path):
    directory, saved = tmp_path / "published", tmp_path / "saved"
    table = ps.connect("t", 2, publish=directory)
    pushed(table, [1, 2])
    table.save(saved)
    table.publish()
    pushed(table, [1])
    table.publish()
    table.restore(saved)
    table.publish()
    assert names(directory)[-1] == "000000003.base.json"
    with Lookup(directory, watch=False) as lookup:
        assert (lookup.pull("t", IDS) == table.pull(IDS, create=False)).all()
        table.close()
        again = ps.connect("t", 2, publish=directory)
        pushed(again, [7])
        again.publish()
        assert lookup.refresh()
        assert lookup.version > 3
        assert (lookup.pull("t", IDS) == again.pull(IDS, create=False)).all()


def test_where_nothing_can_be_written_publishing_is_put_off_at_once(tmp_path, monkeypatch, caplog):
    """Owners cannot write why they fail either: nobody may wait for them."""
    table = ps.connect("t", 2, publish=tmp_path)

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "hpcdist.serving"):
        patch.setattr(Path, "touch", refuse)
        patch.setattr(published_rows, "write_rows", refuse)
        patch.setattr(published_rows, "write_whole", refuse)
        for id in (1, 2):
            pushed(table, [id])
            table.publish()
    assert caplog.text.count("publishing is put off: ") == 1
    assert "Read-only file system; training goes on" in caplog.text
    table.publish()
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.current.chain.last.rows("t") == 2  # also those that were put off


def test_a_full_disk_puts_publishing_off_and_says_so_once(tmp_path, monkeypatch, caplog):
    table = ps.connect("t", 2, publish=tmp_path)
    pushed(table, [1])
    table.publish()
    real = published_rows.write_rows

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(published_rows, "write_rows", full)
    with caplog.at_level(logging.WARNING, "hpcdist.serving"):
        for id in (2, 3):
            pushed(table, [id])
            table.publish()
        assert len(caplog.records) == 1
        assert "publishing is put off: " in caplog.text
        assert "No space left on device" in caplog.text
        monkeypatch.setattr(published_rows, "write_rows", real)
        pushed(table, [4])
        table.publish()
        assert "publishing goes on with 000000002.delta.json" in caplog.text
    assert len(names(tmp_path, ".rows")) == 2
    assert names(tmp_path, ".failed") == []
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.current.chain.last.rows("t") == 3  # also those that were put off
        assert (lookup.pull("t", IDS) == table.pull(IDS, create=False)).all()


def test_a_table_notes_what_has_changed():
    start, one = RowInitializer("constant", 0.0), np.ones((2, 1), np.float32)
    table = SparseTable("t", 1, RowOptimizer("sgd"), start, 0)
    table.changes = Changes()
    assert table.changes.take().whole
    table.push(np.array([5, 5]), one, 0.1)
    table.pull(np.array([6]), np.empty((1, 1), np.float32))
    table.changes.drop(np.array([5]))
    first = table.changes.take()
    assert (first.touched.tolist(), first.deleted.tolist(), first.whole) == ([6], [5], False)
    table.push(np.array([5, 7]), one, 0.1)
    table.changes.put_back(first)
    both = table.changes.take()
    assert (both.touched.tolist(), both.deleted.tolist()) == ([5, 6, 7], [])
    table.clear()
    assert table.changes.take().whole


def test_notes_of_changes_grow_with_different_ids_only():
    changes = Changes()
    changes.take()
    for _ in range(100):
        changes.touch(np.arange(2000))
    assert sum(len(ids) for ids, _ in changes._log) < 100_000  # private: the memory of notes
    changes.drop(np.arange(10))
    assert len(changes.take().touched) == 1990


def test_deleted_rows_have_their_first_values_and_come_again(tmp_path):
    made = Publication(tmp_path, owners=2)
    row = np.ones(WIDTH, np.float32)
    made.publish({1: row, 2: row}, base=True)
    made.publish({}, {1})
    made.publish({1: 2 * row}, {2, 3})
    with Lookup(tmp_path, watch=False) as lookup:
        assert (lookup.pull("t", [1, 2, 3]) == made.expected(3, [1, 2, 3])).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_becomes_one_base_that_increments_follow(tmp_path, seed):
    draw = np.random.RandomState(seed)
    made = random_publication(tmp_path, draw, 5)
    made.publish({3: np.ones(WIDTH)})  # so that the last is an increment
    with Lookup(tmp_path, watch=False) as before:
        path = compact(tmp_path)
        first = path.read_bytes()
        assert names(tmp_path) == [path.name] == ["000000006.base.json"]
        assert len(names(tmp_path, ".rows")) == 1
        assert compact(tmp_path) == path
        assert path.read_bytes() == first
        assert (before.pull("t", IDS) == made.expected(6, IDS)).all()  # though its files are gone
    made.publish({1: np.zeros(WIDTH)}, {3})
    with Lookup(tmp_path, watch=False) as lookup:
        assert lookup.version == 7
        assert (lookup.pull("t", IDS) == made.expected(7, IDS)).all()


def test_a_reader_sees_a_version_within_a_second_and_refuses_a_damaged_one_once(tmp_path, caplog):
    made = Publication(tmp_path)
    made.publish({1: np.ones(WIDTH)}, base=True)
    with Lookup(tmp_path) as lookup:
        made.publish({1: np.zeros(WIDTH)})
        end = time.monotonic() + 30  # on a busy machine
        while lookup.version < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert (lookup.pull("t", [1]) == 0).all()
        member = made.publish({1: np.full(WIDTH, 5.0)})
        made.publish({1: np.full(WIDTH, 6.0)})
    (tmp_path / member.files[0].file).write_bytes(b"torn")
    caplog.set_level(logging.WARNING, "hpcdist.serving")
    with Lookup(tmp_path, watch=False) as lookup:
        for _ in range(3):
            lookup.refresh()
        assert lookup.version == 2
        assert set(lookup.refused) == {"000000003.delta.json", "000000004.delta.json"}
        assert sum("is torn" in record.getMessage() for record in caplog.records) == 1
        made.publish({1: np.full(WIDTH, 7.0)}, base=True)
        assert lookup.refresh()
        assert (lookup.pull("t", [1]) == 7).all()


def test_a_reader_sees_no_wrong_row_while_versions_are_switched(tmp_path):
    made, wrong = Publication(tmp_path), []
    ids = np.arange(64)

    def publish(number):
        made.publish({int(i): np.full(WIDTH, number) for i in ids}, base=number % 7 == 1)

    publish(1)
    switches = int(os.environ.get("HPCDIST_TEST_SWITCHES", "60"))  # 1,000 by hand
    with Lookup(tmp_path, watch=False) as lookup:
        done = threading.Event()

        def read():
            while not done.is_set():
                rows = lookup.pull("t", ids)
                if (rows != rows[0, 0]).any():
                    wrong.append(rows)

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(2, switches + 2):
            publish(number)
            assert lookup.refresh()
            assert lookup.version == number
        done.set()
        reader.join()
        assert (lookup.pull("t", ids) == switches + 1).all()
    assert wrong == []


def test_keys_are_found_wherever_they_stand():
    ids = np.unique(np.random.RandomState(0).randint(-(2**63), 2**63 - 1, 5000))
    keys = np.sort(mixes_of(ids))
    assert (ids_of(mixes_of(ids)) == ids).all()
    wanted = np.concatenate([keys[::-1], keys + np.uint64(1)])
    places = SortedKeys(keys).find(wanted)
    assert (places[: len(keys)] == np.arange(len(keys))[::-1]).all()
    assert (places[len(keys) :] == -1).all()
    with pytest.raises(ValueError, match="out of order"):
        SortedKeys(keys[::-1])


def test_a_directory_without_versions_is_refused(tmp_path):
    for directory, message in ((tmp_path, "it has no members"), (tmp_path / "x", "no such dir")):
        with pytest.raises(PublicationError, match=message):
            Lookup(directory)


def test_tables_that_train_together_are_published_together(tmp_path):
    ps.connect("t", 2, publish=tmp_path / "a")
    with pytest.raises(TableError, match="are published together"):
        ps.connect("u", 2, publish=tmp_path / "b")
    with pytest.raises(TableError, match="publish: expected a directory"):
        ps.connect("v", 2, publish=3)


def test_a_reader_needs_numpy_only(tmp_path):
    Publication(tmp_path).publish({1: np.ones(WIDTH)}, base=True)
    code = (
        "import sys, hpcdist.serving\n"
        f"with hpcdist.serving.Lookup({str(tmp_path)!r}) as lookup:\n"
        "    assert (lookup.pull('t', [1, 2])[1] == 0.5).all()\n"
        "print(*sorted({'mpi4py', 'numba', 'h5py', 'torch'} & {*sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"


def test_rows_that_a_policy_forgets_are_deleted_from_versions():
    policy, zero = RowPolicy(expire_steps=2), RowInitializer("constant", 0.0)
    table = PolicyTable("t", 1, RowOptimizer("sgd"), zero, 0, policy=policy)
    table.changes = Changes()
    table.changes.take()
    one = np.ones((2, 1), np.float32)
    for ids in ([1, 2], [3, 4], [3, 5], [3, 6], [3, 7]):
        table.push(np.array(ids), one, 0.1)
    table.shrink()
    changed = table.changes.take()
    there = set(table.export(0, len(table))[0].tolist())
    assert there < {1, 2, 3, 4, 5, 6, 7}
    assert set(changed.touched.tolist()) == there
    assert set(changed.deleted.tolist()) == {1, 2, 3, 4, 5, 6, 7} - there


@pytest.mark.parametrize(("rows_in", "row_bytes"), [("int8", 10), ("bfloat16", 12)])
def test_published_rows_and_a_checkpoint_s_are_those_that_training_looks_up(
    tmp_path, capsys, rows_in, row_bytes
):
    policy = ps.RowPolicy(rows=rows_in, state="float16")
    facts = {"lr": 0.5, "optimizer": "adam", "row_policy": policy, "initial": ps.Initial("normal")}
    table = ps.connect("t", 6, publish=tmp_path / "published", **facts)
    random = np.random.default_rng(3)
    for _ in range(3):
        ids = random.integers(0, 40, 30)
        table.push(ids, random.normal(size=(30, 6)).astype(np.float32))
    every = np.arange(60)  # also ids that have no row
    rows = table.pull(every, create=False)
    table.publish()
    with Lookup(tmp_path / "published", watch=False) as lookup:
        np.testing.assert_array_equal(lookup.pull("t", every), rows)
        assert lookup.current.table("t").kind.row_bytes == row_bytes
    table.push(ids, random.normal(size=(30, 6)).astype(np.float32))
    table.publish()
    rows = table.pull(every, create=False)
    for _ in range(2):  # a base and an increment, then one base in their place
        with Lookup(tmp_path / "published", watch=False) as lookup:
            np.testing.assert_array_equal(lookup.pull("t", every), rows)
            files = [file for member in lookup.current.chain.members for file in member.files]
            sections = [file.tables["t"] for file in files]
            sizes = [s.packed or s.rows * (8 + row_bytes) + 8 * s.deleted for s in sections]
            assert [f.bytes - n for f, n in zip(files, sizes)] == [-n % 8 for n in sizes]
            assert [s.packed > 0 for s in sections] == [False, True][: len(sections)]
        compact(tmp_path / "published")
    table.save(tmp_path / "saved")
    table.close()
    capsys.readouterr()
    main.main(["table", "diff", str(tmp_path / "saved"), str(tmp_path / "published")])
    assert "0 added, 0 deleted, 0 changed, 33 the same" in " ".join(capsys.readouterr().out.split())
    table = ps.connect("t", 6, **facts)
    assert table.restore(tmp_path / "saved") == 4
    np.testing.assert_array_equal(table.pull(every, create=False), rows)

"""``python -m hpcdist table``: rows of checkpoints and of published versions."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist.ps as ps
from hpcdist.fluid.declared import tables as library
from hpcdist.launch import main
from hpcdist.launch.saved_tables import SavedTable
from hpcdist.launch.tables import difference, statistics_of
from tests.support.published import WIDTH, Publication


def said(capsys, *words, code=0):
    """Return what a command prints, without the blanks of its columns."""
    if code:
        with pytest.raises(SystemExit) as caught:
            main.main(["table", *map(str, words)])
        assert caught.value.code == code
    else:
        main.main(["table", *map(str, words)])
    out = capsys.readouterr()
    return " ".join((out.out + out.err).split())


@pytest.fixture
def checkpoints(tmp_path):
    """Two checkpoints of a table of three rows, of which one moves and one comes."""
    library._open.tables = None  # private: as a new process begins
    directory = tmp_path / "saved"
    with ps.connect("t", 2, lr=1.0, initial=ps.Initial("constant", 0.0)) as table:
        table.push([-3, 5], np.array([[3, 4], [0, 0]], np.float32)).wait()
        table.save(directory)
        table.push([-3, 7], np.array([[3, 4], [1, 0]], np.float32)).wait()
        table.save(directory)
    return directory


@pytest.fixture
def published(tmp_path):
    """Versions of a table by two owners."""
    directory = tmp_path / "published"
    directory.mkdir()
    made = Publication(directory, owners=2)
    made.publish({i: np.full(WIDTH, i, np.float32) for i in range(20)}, base=True)
    made.publish({1: np.full(WIDTH, 90.0)}, {2})
    return directory


def test_statistics_of_a_checkpoint(checkpoints, capsys):
    shown = said(capsys, "stats", checkpoints)
    assert "step-000002: step 2" in shown
    assert "table t: 3 rows of 2, norms: mean 3.667, greatest 10; 1 of zeros, 0 with NaN" in shown
    assert "rows by owner: 3; the fullest has 1.00 times the mean" in shown
    assert "8 to 16 │ 1 │ ####" in shown


def test_statistics_of_a_version(published, capsys):
    shown = said(capsys, "stats", published, "--table", "t")
    assert "version 2 of step 2" in shown
    assert "table t: 19 rows of 3" in shown
    first, second = shown.partition("rows by owner: ")[2].split(";")[0].split(", ")
    assert int(first) + int(second) == 19


def test_the_largest_rows_and_single_ones(published, checkpoints, capsys):
    shown = said(capsys, "top", published, "-n", 2)
    assert shown.index("90, 90, 90") < shown.index("19, 19, 19")
    assert "18, 18, 18" not in shown
    shown = said(capsys, "get", checkpoints, "-3", "5")
    assert "-3 │ 10 │ -6, -8" in shown
    assert "no row of 99 in t" in said(capsys, "get", checkpoints, 99, 5, code=1)


def test_differences(checkpoints, published, capsys):
    first = checkpoints / "step-000001"
    shown = said(capsys, "diff", first, checkpoints, code=1)
    assert "table t: 1 added, 0 deleted, 1 changed, 1 the same" in shown
    assert "added: 7" in shown
    assert "-3 │ 4" in shown
    assert "0 changed, 3 the same" in said(capsys, "diff", checkpoints, checkpoints)
    assert "table t: width 2, then 3" in said(capsys, "diff", first, published, code=1)


def test_rows_that_are_not_finite_are_counted_and_compared():
    rows = np.array([[np.nan, 0], [1, np.inf], [0, 0]], np.float32)
    ids = np.arange(3)
    table = SavedTable("t", 2, 3, 2, lambda: iter([(0, ids[:2], rows[:2]), (1, ids[2:], rows[2:])]))
    found = statistics_of(table)
    assert (found.not_finite, found.zero, found.owners) == (2, 1, [2, 1])
    assert found.skew == pytest.approx(4 / 3)
    assert difference((ids, rows), (ids, rows)).same == 3
    changed = difference((ids, rows), (ids, np.zeros_like(rows)))
    assert changed.by.tolist() == [np.inf, np.inf]


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["stat", "x"], "got 'stat'; did you mean 'stats'?", 2),
        (["get", "x"], "get: expected PATH ID ..., got x", 2),
        (["diff", "x"], "diff: expected PATH OTHER", 2),
        (["stats", "x", "y"], "stats: expected PATH", 2),
        (["get", "x", "1.5"], "expected integers as ids, got '1.5'", 2),
        (["get", "x", str(2**63)], "an id is an int64", 2),
        (["top", "x", "-n", "0"], "expected an integer >= 1", 2),
        (["stats", "x", "--tabel", "t"], "did you mean '--table'?", 2),
        (["stats", "nowhere"], "not shown: nowhere: there is no such file", 1),
    ],
)
def test_mistakes_are_named(words, message, code, capsys):
    assert message in said(capsys, *words, code=code)


def test_a_table_that_is_none_and_a_damaged_version_are_named(published, capsys):
    assert "has no table 'tt'; did you mean 't'?" in said(
        capsys, "stats", published, "--table", "tt", code=1
    )
    for path in published.glob("*.rows"):
        path.write_bytes(b"")
    assert "not shown: " in said(capsys, "stats", published, code=1)

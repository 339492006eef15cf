"""Columnar files and arguments that cannot be used as asked: each is refused by name."""

import os
import sys

import h5py
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.parquet as pq  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.columnar import files  # noqa: E402
from hpcdist.data.columnar.blocks import Loaded  # noqa: E402
from hpcdist.data.columnar.order import Order, Shuffle  # noqa: E402
from hpcdist.data.columnar.windows import windows  # noqa: E402
from hpcdist.errors import DataError  # noqa: E402
from tests.support.columnar_files import hashed, joined, parquet, variables  # noqa: E402


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(files, "FIRST_PAUSE_S", 0)


def lists(path, values, size, **how):
    """Write a column of lists of one size."""
    kind = pa.list_(pa.int64(), size)
    pq.write_table(pa.table({"id": range(len(values)), "x": pa.array(values, kind)}), path, **how)


# -- lists -----------------------------------------------------------------------------------------
def test_lists_of_one_size_stay_side_by_side_where_some_are_null(tmp_path):
    path = tmp_path / "f.parquet"
    lists(path, [[1, 2], None, [3, 4], [5, 6], [7, 8], [9, 10]], 2, row_group_size=3)
    if int(pa.__version__.split(".")[0]) < 26:
        with pytest.raises(DataError, match=r"f.parquet.*'x'.*pyarrow before 26 cannot read null"):
            list(fluid.data.read(path, batch=9, nulls=-1))
        return
    (batch,) = fluid.data.read(path, batch=9, nulls=-1)
    assert batch["x"].tolist() == [[1, 2], [-1, -1], [3, 4], [5, 6], [7, 8], [9, 10]]
    rows = fluid.data.read(path, batch=9, on_bad="skip", shuffle=1)
    (batch,) = rows
    assert sorted(batch["id"].tolist()) == [0, 2, 3, 4, 5]
    assert dict(zip(batch["id"].tolist(), batch["x"].tolist()))[3] == [5, 6]
    assert sorted(batch["x"].tolist()) == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    assert [skip.begin for skip in rows.skipped] == [1]


def test_blocks_whose_lists_do_not_fit_together_are_refused(tmp_path):
    lists(tmp_path / "0.parquet", [[1, 2]], 2)
    for number, values, size in ((1, [[1, 2, 3]], 3), (2, [[1, 2]], -1)):
        lists(tmp_path / f"{number}.parquet", values, size)
        paths = [tmp_path / "0.parquet", tmp_path / f"{number}.parquet"]
        with pytest.raises(DataError, match=r"'x': some blocks have lists and others values"):
            list(fluid.data.read(paths, batch=9))


def test_a_block_with_too_few_rows_is_not_used():
    order = Order([4, 4], Shuffle(1), 0)

    def read(number):
        return Loaded(4, {"x": np.arange(4 - number)})

    with pytest.raises(DataError, match="'x': expected 8 rows of a window, got 7"):
        next(windows(order, 0, 8, 2, read))


# -- arguments -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"buckets": {"typo": 3}}, "buckets names the column 'typo', which is not read"),
        ({"nulls": {"typo": 3}}, "nulls names the column 'typo', which is not read"),
        ({"nulls": [1, 2]}, "nulls must be 'error', a number"),
        ({"nulls": {"id": "x"}}, "nulls must be 'error', a number"),
        ({"nulls": None}, "nulls must be 'error', a number"),
        ({"columns": 5}, "columns must be names of columns; or a dict"),
        ({"columns": [5]}, "columns must be names of columns; or a dict"),
        ({"columns": []}, "columns must be names of columns; or a dict"),
        ({"columns": {"x": 5}}, "columns must be names of columns; or a dict"),
        ({"buckets": ["id"]}, "buckets must be a dict by column"),
        ({"types": ["id"]}, "types must be a dict by column"),
        ({"paths": 5}, "expected the name of a file, or a list, got 5"),
        ({"paths": [5]}, "expected the name of a file, or a list"),
        ({"feed_list": 5}, "feed_list must be a list of variables"),
        ({"filters": [("id", ">", 1000)]}, r"no batch to read: 0 rows in .* pass \[\('id'"),
        ({"batch": 1000, "drop_last": True}, "no batch to read: 400 rows in .* drop_last leaves"),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path, arguments, said):
    with pytest.raises(DataError, match=said):
        fluid.data.read(**{"paths": parquet(tmp_path), "batch": 8, **arguments})


def test_numpys_whole_numbers_are_numbers(tmp_path):
    path = parquet(tmp_path)
    rows = fluid.data.read(path, batch=np.int32(50), shuffle=np.int64(3), window=np.int64(100))
    expected = fluid.data.read(path, batch=50, shuffle=3, window=100)
    assert joined(rows) == joined(expected) and rows.state() == expected.state()


def test_one_variable_is_no_list_of_them(tmp_path):
    (variable,) = variables(id="int64")
    with pytest.raises(DataError, match="feed_list must be a list of variables"):
        fluid.data.read(parquet(tmp_path), feed_list=variable, batch=8)


def test_types_of_what_is_not_read_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    for types, said in (
        ({"b": "int8"}, "types names the column 'b', which is not read"),
        ({"a": "number"}, "'number' of 'a' is not a type"),
        ({"a": 3}, "3 of 'a' is not a type"),
    ):
        with pytest.raises(DataError, match=said):
            fluid.data.read(path, ["a"], batch=1, types=types)


def test_buckets_are_for_text(tmp_path):
    with pytest.raises(DataError, match="buckets: column 'id' holds int64, not text"):
        list(fluid.data.read(parquet(tmp_path), batch=8, buckets={"id": 10}))


def test_text_of_any_format_is_not_hashed_for_fractions(tmp_path):
    path = parquet(tmp_path)
    rows = fluid.data.read(path, feed_list=variables(word="float32"), batch=8, on_bad="skip")
    with pytest.raises(DataError, match="column 'word' holds text, variable 'word' takes float32"):
        list(rows)
    (batch, *_) = fluid.data.read(path, feed_list=variables(word="int64"), batch=8)
    assert batch["word"][1] == hashed("w1")


def test_what_stands_for_nulls_must_fit(tmp_path):
    table = pa.table({"i": [1, None], "f": pa.array([1.5, None], pa.float32())})
    pq.write_table(table, tmp_path / "a.parquet")
    for column, value in (("i", float("nan")), ("i", 0.5), ("f", 1e300)):
        with pytest.raises(DataError, match=f"cannot stand for nulls of column '{column}'"):
            list(fluid.data.read(tmp_path / "a.parquet", [column], batch=8, nulls=value))
    for value in (float("nan"), 0.1, float("inf"), 3):
        (batch,) = fluid.data.read(tmp_path / "a.parquet", ["f"], batch=8, nulls=value)
        assert np.array_equal(batch["f"], np.float32([1.5, value]), equal_nan=True)


def test_booleans_may_be_null(tmp_path):
    path = tmp_path / "b.parquet"
    table = {"id": [0, 1, 2], "b": [True, None, False], "l": [[True], [None, False], []]}
    pq.write_table(pa.table(table), path)
    with pytest.raises(DataError, match="row 1, column 'b': the value is null"):
        list(fluid.data.read(path, ["b"], batch=9))
    (batch,) = fluid.data.read(path, ["id"], batch=9, filters=[("b", "==", True)])
    assert batch["id"].tolist() == [0]
    (batch,) = fluid.data.read(path, ["b"], batch=9, on_bad="skip")
    assert batch["b"].tolist() == [True, False]
    (batch,) = fluid.data.read(path, ["b", "l"], batch=9, nulls=1)
    assert batch["b"].tolist() == [True, True, False]
    assert np.array(batch["l"]).tolist() == [True, True, False]
    with pytest.raises(DataError, match="nulls: 2 cannot stand for nulls of column 'b'"):
        list(fluid.data.read(path, ["b"], batch=9, nulls=2))


@pytest.mark.parametrize("kind", [pa.timestamp("s", "UTC"), pa.duration("s")])
def test_a_time_that_microseconds_cannot_tell_is_refused(tmp_path, kind):
    path = tmp_path / "t.arrow"
    with pa.OSFile(str(path), "wb") as file:
        table = pa.table({"t": pa.array([1, 2**60], kind)})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(DataError, match="column 't': a time does not fit into 64 bits"):
        list(fluid.data.read(path, batch=9))


# -- files -----------------------------------------------------------------------------------------
def test_a_file_is_named_once_by_any_path(tmp_path):
    parquet(tmp_path)
    (tmp_path / "link.parquet").symlink_to(tmp_path / "p0.parquet")
    for other in (f"{tmp_path}/./p0.parquet", tmp_path / "link.parquet"):
        with pytest.raises(DataError, match="named twice"):
            fluid.data.read([tmp_path / "p0.parquet", other], batch=8)


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "p.csv")
    with pytest.raises(DataError, match=r"p.csv is a pipe: its rows cannot be read again"):
        fluid.data.read(tmp_path / "p.csv", batch=8)


@pytest.mark.parametrize("ending", ["parquet", "arrow", "h5", "npy", "csv", "jsonl"])
def test_files_that_cannot_be_read_are_named(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    for what in ("missing", "empty", "directory"):
        if what == "empty":
            path.write_bytes(b"")
        elif what == "directory":
            path.unlink()
            path.mkdir()
        for columns in (None, ["id"]):
            with pytest.raises(DataError, match=rf"a\.{ending}"):
                fluid.data.read(path, columns, batch=1)


def test_datasets_that_are_not_read_may_have_any_length(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["names"] = np.arange(4), [5]
    (batch,) = fluid.data.read(tmp_path / "a.h5", ["x"], batch=4)
    assert batch["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="expected datasets of one length, got .*'names': 1"):
        fluid.data.read(tmp_path / "a.h5", batch=4)


def test_files_without_rows_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(0)
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    for ending in ("npy", "h5", "parquet"):
        path = tmp_path / f"a.{ending}"
        with pytest.raises(DataError, match=rf"no batch to read: 0 rows in \S*a.{ending}"):
            fluid.data.read(path, batch=1)


def test_tensors_without_torch_are_refused(monkeypatch, tmp_path):
    rows = fluid.data.read(parquet(tmp_path), batch=8)
    monkeypatch.delitem(sys.modules, "hpcdist.data.columnar.torch_dataset", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        DataError, match=r"rows.torch\(\) needs torch: python -m pip install 'torch>="
    ):
        rows.torch()
    assert len(joined(rows)) == 400


def test_a_column_that_is_text_in_one_file_alone_is_refused(tmp_path):
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path, values in zip(paths, ([1, 2], pa.nulls(2, pa.string()), ["1", "x"]), strict=True):
        pq.write_table(pa.table({"a": values}), path)
    said = r"'a' holds text in .*2\.parquet, and numbers in .*0\.parquet"
    for order in (paths, paths[::-1]):
        with pytest.raises(DataError, match=said):
            list(fluid.data.read(order, batch=9, nulls=0))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(
        DataError, match=rf"{tmp_path} is a folder: name its files, such as '.*/\*.c"
    ):
        fluid.data.read(tmp_path, batch=1)

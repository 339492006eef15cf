"""Columnar files: what their columns become, what is refused, and where reading goes on."""

import datetime
import os
import threading
from itertools import chain

import numpy as np
import pytest
import xxhash

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import h5py  # noqa: E402
import pyarrow.csv  # noqa: E402
import pyarrow.feather  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.columnar import files as columnar_files  # noqa: E402
from hpcdist.columnar import rows as rows_module  # noqa: E402
from hpcdist.columnar import text_source  # noqa: E402
from hpcdist.errors import DataError  # noqa: E402
from tests.support.columnar_files import N, hashed, ids, joined, parquet, table  # noqa: E402


def write_jsonl(path):
    """Write rows as JSON lines."""
    lines = [str(row).replace("'", '"') for row in table().to_pylist()]
    path.write_text("\n".join(lines) + "\n\n")


def write_h5(path):
    """Write columns as datasets."""
    with h5py.File(path, "w") as file:
        for name in ("id", "x"):
            file[name] = table()[name].to_numpy()
        file["word"] = table()["word"].to_pylist()


def write_npy(path):
    """Write rows as a structured array."""
    fields = [("id", "i8"), ("x", "f4"), ("word", "U4")]
    values = [tuple(row.values()) for row in table().to_pylist()]
    np.save(path, np.array(values, fields))


WRITERS = {
    "parquet": lambda path: pq.write_table(table(), path, row_group_size=64),
    "arrow": lambda path: pyarrow.feather.write_feather(table(), path, chunksize=64),
    "csv": lambda path: pyarrow.csv.write_csv(table(), path),
    "jsonl": write_jsonl,
    "h5": write_h5,
    "npy": write_npy,
}


@pytest.mark.parametrize("ending", WRITERS)
def test_every_format_gives_the_same_rows(monkeypatch, tmp_path, ending):
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 500)
    path = tmp_path / f"data.{ending}"
    WRITERS[ending](path)
    batches = list(fluid.data.read(path, ["id", "x", "word"], batch=33, types=None))
    assert [len(batch["id"]) for batch in batches] == [33] * 7 + [19]
    assert joined(batches) == list(range(N))
    x, words = (np.concatenate([batch[name] for batch in batches]) for name in ("x", "word"))
    assert np.array_equal(x, np.arange(N) / 8)
    assert words.tolist() == [hashed(f"w{n % 7}") for n in range(N)]
    shuffled = fluid.data.read(path, batch=33, shuffle=4)
    assert sorted(joined(shuffled)) == list(range(N))


def test_types_have_stated_rules(tmp_path):
    moment = datetime.datetime(2001, 2, 3, 4, 5, 6, 7)
    columns = {
        "date": pa.array([datetime.date(1970, 1, 3)] * 2),
        "time": pa.array([moment] * 2, pa.timestamp("ns")),
        "zone": pa.array([moment] * 2, pa.timestamp("s", "Europe/Berlin")),
        "flag": pa.array([True, False]),
        "money": pa.array(["1.50", "2.25"]).cast(pa.decimal128(8, 2)),
        "list": pa.array([[1, 2], []], pa.list_(pa.int64())),
        "words": pa.array([["a"], ["b", "a"]]),
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
        "kind": pa.array(["u", "v"]).dictionary_encode(),
        "bytes": pa.array([b"a", b"b"]),
        "half": pa.array(np.array([0.5, 1.5], np.float16)),
    }
    pq.write_table(pa.table(columns), tmp_path / "types.parquet")
    (batch,) = fluid.data.read(tmp_path / "types.parquet", batch=2, buckets={"kind": 10})
    since = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    assert batch["date"].tolist() == [2, 2]
    assert batch["time"].tolist() == [since] * 2
    assert batch["zone"].tolist() == [since - 7] * 2
    assert batch["flag"].tolist() == [True, False]
    assert batch["money"].tolist() == [1.5, 2.25]
    assert batch["list"].value.tolist() == [1, 2]
    assert batch["list"].recursive_sequence_lengths() == [[2, 0]]
    assert batch["words"].value.tolist() == [hashed("a"), hashed("b"), hashed("a")]
    assert batch["fixed"].tolist() == [[1, 2], [3, 4]]
    assert batch["kind"].tolist() == [xxhash.xxh3_64_intdigest(w) % 10 for w in (b"u", b"v")]
    assert batch["bytes"].tolist() == [hashed("a"), hashed("b")]
    assert batch["half"].dtype == np.float32
    for name in ("date", "time", "zone", "kind", "bytes"):
        assert batch[name].dtype == np.int64


def test_ragged_rows_are_shuffled_whole(tmp_path):
    lists = [list(range(n, n + n % 5)) for n in range(200)]
    columns = {"id": np.arange(200), "list": lists}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=32)
    for batch in fluid.data.read(tmp_path / "a.parquet", batch=30, shuffle=1, window=64):
        expected = [lists[n] for n in batch["id"]]
        assert batch["list"].value.tolist() == list(chain(*expected))
        assert batch["list"].recursive_sequence_lengths() == [list(map(len, expected))]


def test_variables_say_dtype_and_shape(tmp_path):
    path = parquet(tmp_path)
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        both = fluid.data("both", [None, 2], "float32")
        label = fluid.data("id", [None, 1], "int64")
        short = fluid.data("short", [None, 1], "int32")
    read = fluid.data.read(
        path, {"both": ["x", "id"], "short": "id"}, feed_list=[both, label, short], batch=100
    )
    batch = next(iter(read))
    assert {n: (a.shape, a.dtype.name) for n, a in batch.items()} == {
        "both": ((100, 2), "float32"),
        "id": ((100, 1), "int64"),
        "short": ((100, 1), "int32"),
    }
    exe = fluid.Executor()
    (value,) = exe.run(main, feed=batch, fetch_list=[both])
    assert np.array_equal(value[:, 1], np.arange(100))


def test_a_value_that_a_variable_cannot_hold_is_a_bad_row(tmp_path):
    pq.write_table(pa.table({"a": [1.0, 2.5, 3.0]}), tmp_path / "a.parquet")
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        variable = fluid.data("a", [None, 1], "int64")
    rows = fluid.data.read(tmp_path / "a.parquet", feed_list=[variable], batch=3)
    with pytest.raises(DataError, match="a.parquet, row group 0, row 1, column 'a': 2.5 cannot be"):
        next(iter(rows))


def test_filters_choose_rows_before_they_are_counted(tmp_path):
    path = parquet(tmp_path)
    rows = fluid.data.read(path, ["id"], batch=50, filters=[("x", ">=", 30), ("id", "<", 300)])
    assert rows.rows == 60
    assert joined(rows) == list(range(240, 300))
    shuffled = fluid.data.read(path, ["id"], batch=7, shuffle=0, filters=[("word", "in", ["w3"])])
    assert sorted(joined(shuffled)) == [n for n in range(400) if n % 7 == 3]


# -- bad data --------------------------------------------------------------------------------------
def test_nulls_are_errors_or_have_a_value(tmp_path):
    columns = {"id": [1, None, 3], "word": ["a", "b", None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row group 0, row 1, column 'id': the value is null"):
        list(fluid.data.read(tmp_path / "a.parquet", batch=3))
    (batch,) = fluid.data.read(tmp_path / "a.parquet", batch=3, nulls={"id": -1, "word": 0})
    assert batch["id"].tolist() == [1, -1, 3]
    assert batch["word"].tolist() == [hashed("a"), hashed("b"), 0]
    rows = fluid.data.read(tmp_path / "a.parquet", batch=3, on_bad="skip")
    assert ids(rows) == [[1]]
    assert [str(s).split("parquet, ")[1] for s in rows.skipped] == [
        "row group 0, row 1, column 'id': the value is null",
        "row group 0, row 2, column 'word': the value is null",
    ]


def damage(path):
    """Overwrite the middle of the last row group's column ``x``."""
    facts = pq.ParquetFile(path).metadata
    column = facts.row_group(facts.num_row_groups - 1).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)


def test_a_damaged_row_group_is_named_or_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(columnar_files, "FIRST_PAUSE_S", 0.0)
    path = parquet(tmp_path)
    damage(tmp_path / "p2.parquet")
    with pytest.raises(DataError, match="p2.parquet, row group 1, rows 0:56, column 'x': "):
        list(fluid.data.read(path, batch=50))
    rows = fluid.data.read(path, batch=50, shuffle=3, window=100, on_bad="skip")
    assert sorted(joined(rows)) == list(range(344))
    assert [(s.begin, s.end) for s in rows.skipped] == [(0, 56)]


@pytest.mark.parametrize("what", ["vanish", "change", "shorten"])
def test_files_that_change_while_they_are_read(tmp_path, what):
    path = parquet(tmp_path)

    def spoil():
        victim = tmp_path / "p1.parquet"
        if what == "vanish":
            victim.unlink()
        elif what == "change":
            pq.write_table(table(900, 31), victim)
        else:
            os.truncate(victim, 100)

    for on_bad in ("error", "skip"):
        parquet(tmp_path)
        rows = fluid.data.read(path, batch=10, window=10, on_bad=on_bad)
        spoil()
        if on_bad == "error":
            with pytest.raises(DataError, match=r"p1.parquet, row group 0, rows 0:30: "):
                list(rows)
        else:
            assert joined(rows) == [*range(250), *range(280, 400)]
            assert len(rows.skipped) == 1


def test_a_read_that_fails_for_a_time_is_tried_again(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(columnar_files, "FIRST_PAUSE_S", 0.0)
    path = parquet(tmp_path)
    tries = []
    where = rows_module.Index.where

    def third_succeeds():
        tries.append(1)
        if len(tries) % 3:
            raise OSError(116, "Stale file handle")

    def fails(self, block):
        file, within = where(self, block)
        return Checked(file, third_succeeds), within

    monkeypatch.setattr(rows_module.Index, "where", fails)
    assert joined(fluid.data.read(path, batch=50)) == list(range(400))
    assert "Stale file handle; trying again" in caplog.text
    tries.clear()
    with pytest.raises(DataError, match=r"p0.parquet, row group 0, rows 0:64: OSError: Stale"):
        list(fluid.data.read(path, batch=50, retries=1))
    assert len(tries) == 2


class Checked:
    """A file that is looked at by ``check``."""

    def __init__(self, file, check):
        self._file, self.check = file, check

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize(("shuffle", "ahead"), [(None, 7), (1, 1)])
def test_as_many_rows_are_read_ahead_as_a_window_has(tmp_path, shuffle, ahead):
    pq.write_table(table(0, 400), tmp_path / "f.parquet", row_group_size=10)
    rows = fluid.data.read(tmp_path / "f.parquet", batch=50, window=70, shuffle=shuffle)
    assert rows.windows_ahead == ahead and len(joined(rows)) == 400


def test_a_read_that_hangs_is_named(monkeypatch, tmp_path):
    path = parquet(tmp_path)
    goes_on = threading.Event()
    monkeypatch.setenv("FLAGS_rpc_deadline", "200")
    monkeypatch.setattr("hpcdist.data.reader.background.JOIN_S", 0.0)
    rows = fluid.data.read(path, batch=50)
    where = rows_module.Index.where

    def hangs(self, block):
        file, within = where(self, block)
        return Checked(file, goes_on.wait), within

    monkeypatch.setattr(rows_module.Index, "where", hangs)
    try:
        with pytest.raises(DataError, match=r"reading \S*p0.parquet, row group 0 did not finish"):
            next(iter(rows))
    finally:
        goes_on.set()


def test_looking_into_files_is_tried_again(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(columnar_files, "FIRST_PAUSE_S", 0.0)
    path, tries, stat = parquet(tmp_path), [], os.stat

    def fails(name):
        if str(name).endswith("p1.parquet"):
            tries.append(1)
            if len(tries) < 3:
                raise OSError(5, "Input/output error")
        return stat(name)

    monkeypatch.setattr(columnar_files.os, "stat", fails)
    assert fluid.data.read(path, batch=50).rows == 400
    assert "p1.parquet: OSError: Input/output error; trying again" in caplog.text
    tries.clear()
    with pytest.raises(DataError, match=r"cannot read \S*p1.parquet: OSError: Input/output error"):
        fluid.data.read(path, batch=50, retries=1)


def test_an_epoch_without_a_row_that_can_be_used_is_an_error(tmp_path, caplog):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"x": pa.array([None] * 500, pa.int64())}), path)
    rows = fluid.data.read(path, batch=10, shuffle=1, on_bad="skip")
    with pytest.raises(DataError, match=r"not one of the 500 rows of epoch 0 can be used; .*f.par"):
        while rows.epoch < 2:
            assert not list(rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch": 0}, "batch must be"),
        ({"batch": 8, "shuffle": "x"}, "shuffle must be a seed"),
        ({"batch": 8, "lanes": 3}, "lanes must divide"),
        ({"batch": 8, "on_bad": "ignore"}, "on_bad must be"),
        ({"batch": 8, "columns": ["nothing"]}, "has no column 'nothing'"),
        ({"batch": 8, "filters": [("id", "~", 3)]}, "filters must be like"),
        ({"batch": 8, "nulls": "zero"}, "nulls must be"),
        ({"batch": 8, "types": {"id": "int8"}}, "types= is for CSV"),
        ({"batch": 8, "feed_list": ["id"]}, "feed_list must hold variables"),
    ],
)
def test_arguments_are_refused_by_name(tmp_path, arguments, said):
    path = parquet(tmp_path)
    with pytest.raises(DataError, match=said):
        fluid.data.read(path, **arguments)


def test_paths_are_refused_by_name(tmp_path):
    parquet(tmp_path)
    pyarrow.csv.write_csv(table(), tmp_path / "a.csv")
    (tmp_path / "a.xls").write_text("")
    (tmp_path / "none.parquet").write_bytes(b"PAR1 no")
    for paths, said in (
        ([tmp_path / "p0.parquet"] * 2, "named twice"),
        ([tmp_path / "p0.parquet", tmp_path / "a.csv"], "files of one format"),
        (tmp_path / "a.xls", "cannot read files that end in '.xls'"),
        (tmp_path / "nothing*", "no file is called"),
        (tmp_path / "nothing.parquet", "nothing.parquet"),
        (tmp_path / "none.parquet", "cannot read .*none.parquet"),
    ):
        with pytest.raises(DataError, match=said):
            fluid.data.read(paths, ["id"], batch=5)

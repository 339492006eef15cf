"""CSV and JSON lines: types, nulls, lines that are no rows; nothing is hashed or lost unsaid."""

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import hpcdist as fluid
from hpcdist.columnar import text_source
from hpcdist.errors import DataError
from tests.support.columnar_files import hashed, variables


@pytest.fixture
def write(tmp_path):
    """Return what writes a file, and gives its path."""

    def written(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def column(rows, name):
    """Return all values of a column."""
    return [value for batch in rows for value in np.ravel(batch[name]).tolist()]


@pytest.mark.parametrize(
    ("ending", "lines", "said"),
    [
        ("csv", ["a,b", "1,2", "3", "5,6"], "row 1: expected 2 values, got 1"),
        ("csv", ["a,b", "1,2", "3,x", "5,6"], "row 1, column 'b': 'x' is not int64"),
        ("csv", ["a,b", "1,2", "3,\xff", "5,6"], "row 1: 'utf-8' codec can't decode"),
        ("jsonl", ['{"a":1,"b":2}', '{"a":3,', '{"a":5,"b":6}'], "row 1: "),
        ("jsonl", ['{"a":1,"b":2}', '{"a":3,"b":"x"}', '{"a":5,"b":6}'], "row 1: "),
    ],
)
def test_a_bad_line_is_named_or_left_out(tmp_path, ending, lines, said):
    path = tmp_path / f"bad.{ending}"
    path.write_text("\n".join(lines), "latin-1")
    types = {"a": "int64", "b": "int64"}
    if ending == "jsonl":  # its types come from good lines
        path = tmp_path / "a.jsonl"
        path.write_text('{"a":0,"b":0}\n' * 1)
        (tmp_path / "bad.jsonl").write_text("\n".join(lines))
        paths = [path, tmp_path / "bad.jsonl"]
        good = [0, 1, 5]
    else:
        paths, good = [path], [1, 5]
    with pytest.raises(DataError, match=rf"bad.{ending}, block 0, {said}"):
        list(fluid.data.read(paths, batch=9, types=types))
    rows = fluid.data.read(paths, batch=9, types=types, on_bad="skip")
    (batch,) = rows
    assert batch["a"].tolist() == good
    assert len(rows.skipped) == 1


@pytest.mark.parametrize(("kind", "digits"), [("float32", "1e39"), ("float64", "-1e400")])
def test_a_number_that_is_too_large_is_no_infinity(write, kind, digits):
    path = write("a.csv", f"x\n1\ninf\n{digits}\n3\n")
    with pytest.raises(DataError, match=rf"row 2, column 'x': '{digits}' is too large for a "):
        list(fluid.data.read(path, batch=9, types={"x": kind}))
    rows = fluid.data.read(path, batch=9, types={"x": kind}, on_bad="skip")
    assert column(rows, "x") == [1, float("inf"), 3]


# -- types -----------------------------------------------------------------------------------------
def test_one_word_does_not_make_text_of_numbers(write):
    path = write("typo.csv", "x,y\n1,0.5\n2,oops\n3,0.5\n4,0.25\n")
    feed_list = variables(x="float32", y="float32")
    with pytest.raises(DataError, match="row 1, column 'y': 'oops' is not double"):
        list(fluid.data.read(path, feed_list=feed_list, batch=4))
    rows = fluid.data.read(path, feed_list=feed_list, batch=4, on_bad="skip")
    assert column(rows, "y") == [0.5, 0.5, 0.25]
    assert rows.skipped[0].begin == 1
    with pytest.raises(DataError, match=r"'0.5' is not int64 \(line 2 of the file\) \(and 3 more"):
        list(fluid.data.read(path, ["y"], feed_list=variables(y="int64"), batch=4))
    with pytest.raises(DataError, match="does not show what column 'y' holds.*or numbers and text"):
        fluid.data.read(path, batch=4)
    words = [*map(hashed, ("0.5", "oops", "0.5", "0.25"))]
    assert column(fluid.data.read(path, ["y"], batch=4, types={"y": "string"}), "y") == words
    buckets = fluid.data.read(path, ["y"], batch=4, buckets={"y": 10})
    assert column(buckets, "y") == [word % (1 << 64) % 10 for word in words]


def test_bytes_that_are_no_utf_8_do_not_make_hashes_of_numbers(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"y\n2\n\xff\n6\n")
    rows = fluid.data.read(
        tmp_path / "a.csv", feed_list=variables(y="int64"), batch=3, on_bad="skip"
    )
    assert column(rows, "y") == [2, 6]
    with pytest.raises(DataError, match="does not show what column 'y' holds.*or numbers and text"):
        fluid.data.read(tmp_path / "a.csv", batch=3)


def test_text_is_not_hashed_for_a_variable_of_fractions(write):
    path = write("a.csv", "y\nred\ngreen\n")
    said = r"column 'y' holds text, variable 'y' takes float32.*types=\{'y': 'float32'\}"
    for on_bad in ("error", "skip"):
        rows = fluid.data.read(path, feed_list=variables(y="float32"), batch=2, on_bad=on_bad)
        with pytest.raises(DataError, match=said):
            list(rows)
    rows = fluid.data.read(path, feed_list=variables(y="int64"), batch=2)
    assert column(rows, "y") == [hashed("red"), hashed("green")]


def test_fractions_may_follow_whole_numbers(write):
    paths = [write("0.csv", "a\n1\n2\n"), write("1.csv", "a\n3.5\n")]
    rows = fluid.data.read(paths, feed_list=variables(a="float32"), batch=3)
    assert column(rows, "a") == [1, 2, 3.5]


def test_a_column_that_is_empty_at_first_has_the_type_of_its_variable(write):
    paths = [write("0.csv", "a,b\n1,\n2,\n"), write("1.csv", "a,b\n3,7\n4,8\n")]
    for feed_list in (variables(b="float32"), variables(b="int64")):
        rows = fluid.data.read(paths, feed_list=feed_list, batch=9, nulls=0)
        assert column(rows, "b") == [0, 0, 7, 8]
    assert column(fluid.data.read(paths, ["a"], batch=9), "a") == [1, 2, 3, 4]
    with pytest.raises(DataError, match=r"0.csv does not show what column 'b' holds: it is empty"):
        fluid.data.read(paths, batch=9, nulls=0)
    for kind in ("int8", np.int8, np.dtype("int8")):
        (batch,) = fluid.data.read(paths, ["b"], batch=9, nulls=0, types={"b": kind})
        assert batch["b"].tolist() == [0, 0, 7, 8]
        assert batch["b"].dtype == np.int8
    empty = write("0.jsonl", '{"a": []}\n')
    with pytest.raises(DataError, match="does not show what column 'a' holds"):
        fluid.data.read(empty, batch=9)


def test_a_malformed_line_does_not_hide_the_types_of_json(write):
    path = write("a.jsonl", '{"a":1,"b":[1]}\nno\n{"a":3,"b":[]}\n')
    rows = fluid.data.read(path, batch=9, on_bad="skip")
    assert column(rows, "a") == [1, 3]
    assert [skip.begin for skip in rows.skipped] == [1]
    mixed = write("b.jsonl", '{"a":1}\n{"a":"x"}\n')
    with pytest.raises(DataError, match="cannot tell the types .* give the types: types="):
        fluid.data.read(mixed, batch=9)
    rows = fluid.data.read(mixed, ["a"], batch=9, types={"a": "int64"}, on_bad="skip")
    assert column(rows, "a") == [1]


def test_every_csv_file_has_its_own_first_line(write):
    paths = [write("0.csv", "a,b\n1,2\n"), write("1.csv", "b,a\n4,3\n")]
    assert column(fluid.data.read(paths, ["a"], batch=9), "a") == [1, 3]
    write("1.csv", "b,c\n4,3\n")
    with pytest.raises(DataError, match=r"1.csv has no column 'a', it has b, c"):
        fluid.data.read(paths, ["a"], batch=9)


def test_a_file_without_names_loses_no_row(write):
    path = write("a.csv", "1,2.5\n3,4\n")
    with pytest.raises(DataError, match=r"first line of \S*a.csv names the columns 1, 2.5, which"):
        fluid.data.read(path, batch=1)
    assert column(fluid.data.read(path, ["1"], batch=1), "1") == [3]  # so it is a name


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_types_are_those_of_the_first_file_with_rows(write, ending):
    head, row = ("a\n", "1.5\n") if ending == "csv" else ("", '{"a":1.5}\n')
    files = [write(f"{k}.{ending}", head + row * (k == 1)) for k in range(3)]
    assert column(fluid.data.read(files, ["a"], batch=1), "a") == [1.5]
    assert column(fluid.data.read(files[1:], batch=1), "a") == [1.5]


def test_a_first_line_in_another_encoding_is_named(write):
    path = write("latin.csv", "größe,b\n1,2\n".encode("latin-1"))
    for columns in (None, ["b"]):
        with pytest.raises(DataError, match=r"cannot read \S*latin.csv: line 1: .* pass encoding="):
            fluid.data.read(path, columns, batch=1)


# -- lines -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lines", "bad"),
    [
        (["1,x", '2,"y', "3,z", '4,w"', "5,v"], [1]),
        (["1,x", '2,"y', "3,z", "4,w", "5,v"], [1]),
        (["1,x", "2,y", "3,z", "4,w", '5,"v'], [4]),
        (["1,x", "2,y\r9,u", "3,z", '4,"w"', "5,v"], [1]),
        (["1,x", '2,"y', '3,z"', "4,w\r8,u", "5,v"], [1, 3]),  # as many rows as lines
        (['1,"a ""b"" c"', '2,5" pipe', '3,"z, y"', "4,", '5,""'], []),
    ],
)
@pytest.mark.parametrize("end", ["\n", ""])
def test_a_quote_that_is_not_closed_costs_its_own_line_alone(write, lines, bad, end):
    path = write("q.csv", "a,b\n" + "\n".join(lines) + end)
    how = {"types": {"a": "int64", "b": "string"}, "nulls": {"b": 0}}
    if bad:
        with pytest.raises(DataError, match=rf"q.csv, block 0, row {bad[0]}: a quote is not"):
            list(fluid.data.read(path, batch=2, shuffle=1, **how))
    rows = fluid.data.read(path, batch=2, shuffle=1, on_bad="skip", **how)
    assert sorted(column(rows, "a")) == [n for n in range(1, 6) if n - 1 not in bad]
    assert [row for skip in rows.skipped for row in range(skip.begin, skip.end)] == bad
    if not bad:
        rows = fluid.data.read(path, batch=9, **how)
        expected = [*map(hashed, ('a "b" c', '5" pipe', "z, y")), 0, hashed("")]
        assert column(rows, "b") == expected


def test_rows_without_values_are_rows(write):
    tabs = write("e.tsv", "a\tb\n1\t2\n\t\n3\t4\n\n")
    assert column(fluid.data.read(tabs, batch=9, nulls=0), "a") == [1, 0, 3]
    one = write("one.csv", "a\r\n1\r\n\r\n3\r\n")
    assert column(fluid.data.read(one, batch=9, nulls=0), "a") == [1, 0, 3]
    with pytest.raises(DataError, match="row 1, column 'a': the value is null"):
        list(fluid.data.read(one, batch=9))
    several = write("several.csv", "a,b\n1,2\n\n  \n3,4\n")
    assert column(fluid.data.read(several, batch=9), "a") == [1, 3]


def test_words_for_nothing_are_text_in_text_and_nulls_in_numbers(write):
    values = ["null", "NA", '"NA"', "", '""', "x"]
    lines = [
        f"{number},{value}" for number, value in zip(["1", "NA", "null", "", "5", "6"], values)
    ]
    path = write("na.csv", "n,word\n" + "\n".join(lines))
    (batch,) = fluid.data.read(path, batch=9, nulls=0)
    assert batch["n"].tolist() == [1, 0, 0, 0, 5, 6]
    expected = [hashed("null"), hashed("NA"), hashed("NA"), 0, hashed(""), hashed("x")]
    assert batch["word"].tolist() == expected
    path.write_text(path.read_text() + "\nbad,x")  # then values are cast one by one
    rows = fluid.data.read(path, batch=9, nulls=0, types={"n": "int64"}, on_bad="skip")
    assert column(rows, "word") == expected
    assert [skip.begin for skip in rows.skipped] == [6]


@pytest.mark.parametrize("lines", ["x" * 300, "a,b\n1,2\n" + "3" * 300])
def test_a_line_without_an_end_is_bounded(write, monkeypatch, lines):
    monkeypatch.setattr(text_source, "MAX_LINE_BYTES", 200)
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 50)
    path = write("clicks.csv", lines)
    with pytest.raises(DataError, match=r"clicks.csv: a line has more than .* is it a text file"):
        list(fluid.data.read(path, batch=1)())

"""Integers of 64 bits in files of every format: they keep their bits, and never become floats."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.parquet as pq  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.base.errors import DataError  # noqa: E402
from hpcdist.data.columnar import text_source  # noqa: E402
from tests.support.columnar_files import column, variables  # noqa: E402

LARGE = 2**64 - 1
IDS = [LARGE, 0, 2**53 + 1, 2**63, 12345]
BITS = np.array(IDS, np.uint64).view(np.int64).tolist()
UINT64, HEX = {"types": {"id": "uint64"}}, {"types": {"id": "hex"}}


def refused(said, *args, **how):
    """Expect that reading raises an error that says this."""
    with pytest.raises(DataError, match=said):
        list(fluid.data.read(*args, batch=9, **how))


def written(folder, form, numbers, name="id"):
    """Write integers as a column of a file."""
    path = folder / f"a.{form if form in ('csv', 'jsonl', 'npy') else 'parquet'}"
    if form == "csv":
        path.write_text(f"{name}\n" + "\n".join(map(str, numbers)))
    elif form == "jsonl":
        path.write_text("".join(f'{{"{name}": {n}}}\n' for n in numbers))
    elif form == "npy":
        kind = np.uint64 if max(numbers) >= 2**63 else np.int64
        np.save(path, np.array([(n,) for n in numbers], np.dtype([(name, kind)])))
    else:
        kind = pa.decimal128(20, 0) if form == "decimal" else pa.type_for_alias(form)
        pq.write_table(pa.table({name: pa.array(numbers, kind)}), path)
    return path


@pytest.mark.parametrize(
    ("form", "how"),
    [("uint64", {}), ("csv", {}), ("csv", UINT64), ("jsonl", {}), ("npy", {}), ("decimal", {})],
)
def test_ids_without_a_sign_keep_their_bits(tmp_path, form, how):
    path = written(tmp_path, form, IDS)
    assert column(fluid.data.read(path, batch=2, **how), "id") == IDS
    rows = fluid.data.read(path, feed_list=variables(id="int64"), batch=2, **how)
    assert column(rows, "id") == BITS


@pytest.mark.parametrize("digits", ["{:x}", "0x{:016X}"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_hexadecimal_ids_keep_their_bits(tmp_path, digits, ending):
    path, words = tmp_path / f"a.{ending}", [digits.format(n) for n in IDS]
    if ending == "csv":
        path.write_text("id\n" + "\n".join(words))
    else:
        pq.write_table(pa.table({"id": words}), path)
    assert column(fluid.data.read(path, batch=2, **HEX), "id") == BITS
    buckets = fluid.data.read(path, batch=2, buckets={"id": 1000}, **HEX)
    assert column(buckets, "id") == [n % 1000 for n in IDS]


@pytest.mark.parametrize("text", ["xyz", "1" * 17, "0x", "-1", "1.5"])
def test_what_is_not_hexadecimal_is_a_bad_row(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(f"id,n\nff,1\n{text},2\n")
    refused("row 1, column 'id': .* is not a hexadecimal number of 64 bits .line 3", path, **HEX)
    assert column(fluid.data.read(path, batch=9, on_bad="skip", **HEX), "id") == [255]
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    refused("column 'id' holds int64, not text: it is not hex", tmp_path / "a.parquet", **HEX)


@pytest.mark.parametrize("form", ["int64", "uint64", "decimal", "csv", "jsonl", "npy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_integer_becomes_another_float(tmp_path, form, dtype):
    path = written(tmp_path, form, [1, 2**53, 2**53 + 1, 2**60], "x")
    feed_list = variables(x=dtype)  # the third one has no float64
    refused("row 2, column 'x': .*9007199254740993", path, feed_list=feed_list)
    rows = fluid.data.read(path, feed_list=feed_list, batch=9, on_bad="skip")
    assert column(rows, "x") == [1, 2**53, 2**60]
    if form in ("csv", "jsonl"):  # whoever says so wants it rounded
        types = {"x": "float64"}
        rows = fluid.data.read(path, feed_list=feed_list, batch=9, types=types)
        assert column(rows, "x") == [1, 2**53, 2**53, 2**60]


@pytest.mark.parametrize(
    ("numbers", "row"), [([LARGE, -3], 0), ([2**53 + 1, "1.5"], 0), (["1.5", -(2**53) - 1], 1)]
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_integers_among_others_are_not_rounded(tmp_path, form, numbers, row):
    path = written(tmp_path, form, numbers, "x")
    refused(f"row {row}, column 'x': the integer '{numbers[row]}' does not fit", path)


def test_lists_of_json_are_not_rounded(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"x": [{LARGE}, 1]}}\n{{"x": []}}\n')
    (batch,) = fluid.data.read(path, batch=9)
    assert np.array(batch["x"]).tolist() == [LARGE, 1]
    path.write_text(f'{{"x": [{2**53 + 1}, 1.5]}}\n{{"x": []}}\n')
    refused("row 0, column 'x': the integer '9007199254740993' does not fit", path)


def test_a_large_id_behind_small_ones_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 50)
    path = written(tmp_path, "csv", [1] * 99 + [LARGE])
    feed_list = variables(id="int64")
    said = r"larger than int64: pass types=\{'id': 'uint64'\} .line 101"
    refused(said, path, feed_list=feed_list)
    rows = fluid.data.read(path, feed_list=feed_list, batch=99, **UINT64)
    assert column(rows, "id")[-1] == -1


def test_integers_of_two_types_are_not_joined_as_floats(tmp_path):
    for number, kind in enumerate((pa.int64(), pa.uint64())):
        table = pa.table({"id": pa.array([2**53 + 1], kind)})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    both = str(tmp_path / "*.parquet")
    refused("'id' is int64 and uint64 in different", both, shuffle=1)
    rows = fluid.data.read(both, feed_list=variables(id="int64"), batch=9, shuffle=1)
    assert column(rows, "id") == [2**53 + 1] * 2
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2**53 + 1], "x": [0.5, 1.5]}), path)
    said = "row 1, column 'id': 9007199254740993 cannot be float64"
    refused(said, path, {"both": ["id", "x"]})

"""Files as they come: without names, compressed, in other encodings, sparse, TFRecord."""

import bz2
import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import hpcdist as fluid  # noqa: E402
from hpcdist.base.errors import DataError  # noqa: E402
from hpcdist.data.columnar import streams, text_source, verify  # noqa: E402
from hpcdist.data.columnar.formats import FORMATS  # noqa: E402
from hpcdist.data.columnar.streams import COMPRESSIONS  # noqa: E402
from tests.support.columnar_files import column, hashed, variables  # noqa: E402
from tests.support.tf_examples import example, framed, records  # noqa: E402

PACKED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
NUMBERS = [0, 1, 3, 250, 7]
FORMS = {  # files whose column ``id``, or label, holds NUMBERS
    "csv": "id,w\n" + "".join(f"{n},w{n}\n" for n in NUMBERS),
    "tsv": "id\tw\n" + "".join(f"{n}\tw{n}\n" for n in NUMBERS),
    "txt": "id|w\n" + "".join(f"{n}|w{n}\n" for n in NUMBERS),
    "json": "".join(f'{{"id": {n}, "w": "w{n}"}}\n' for n in NUMBERS),
    "libsvm": "".join(f"{n} 1:0.5 {n + 2}:2\n" for n in NUMBERS),
    "libffm": "".join(f"{n} 1:1:0.5 2:{n + 2}:2\n" for n in NUMBERS),
}


@pytest.fixture
def write(tmp_path):
    """Return what writes a file, and gives its path."""

    def written(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def refused(said, *args, **how):
    """Expect that reading raises an error that says this."""
    with pytest.raises(DataError, match=said):
        list(fluid.data.read(*args, batch=9, **how))


# -- one declaration for each format and compression -----------------------------------------------
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind.streamed], ids=lambda k: k.name)
@pytest.mark.parametrize("compression", [None, *COMPRESSIONS], ids=lambda c: c.name if c else "-")
def test_every_format_of_streams_may_be_compressed(write, kind, compression):
    ending = compression.ending if compression else ""
    data = records(NUMBERS) if kind.name == "tfrecord" else FORMS[kind.name].encode()
    data = PACKED[ending](data) if ending else data
    key = "label" if kind.name.startswith("lib") else "id"
    how = {"delimiter": "|"} if kind.name == "txt" else {}
    for name, named in ((kind.endings[0], {}), (".part-00000", {"format": kind.name})):
        rows = fluid.data.read(write(f"rows{name}{ending}", data), [key], batch=2, **how, **named)
        assert column(rows, key) == NUMBERS
    assert {c.ending for c in COMPRESSIONS} == PACKED.keys()


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("damage", [lambda d: d[:-20], lambda d: b"id\n1\n2\n", lambda d: d[:9]])
def test_a_damaged_compressed_file_is_refused_before_the_first_row(write, ending, damage):
    data = "".join(f"{n * 7919 % 10007},x{n}\n" for n in range(4000)).encode()
    path = write(f"a.csv{ending}", damage(PACKED[ending](b"id,w\n" + data)))
    for on_bad in ("error", "skip"):
        with pytest.raises(DataError, match=rf"a.csv\{ending} is damaged, or is no"):
            fluid.data.read(path, ["id"], batch=2, on_bad=on_bad)


@pytest.mark.parametrize("ending", PACKED)
def test_a_file_that_is_not_what_its_name_says_is_named(write, ending):
    path = write("a.csv", PACKED[ending](b"id\n1\n"))
    refused(rf"is compressed \(\w+\): its name must end in \{ending}", path)
    refused("parquet files are read at any place", write(f"a.parquet{ending}", b""))


def test_other_contents_are_named(write):
    utf_16 = "id\n1\n".encode("utf-16")
    refused("a.csv as text: it is UTF-16: pass encoding='utf-16'", write("a.csv", utf_16))
    refused("is Parquet: its name must", write("a.csv", b"PAR1\x15\x04"))
    refused("is a zip archive: unpack it", write("a.csv", b"PK\x03\x04\x14"))
    refused("lines end in carriage returns", write("a.csv", "id\r1\r2\r"))
    refused(r"end in '.cvs'.*did you mean '.csv'\?", write("a.cvs", "id\n1\n"))
    refused(r"format must be one of .*did you mean 'libsvm'\?", write("a", "x"), format="libsvn")


# -- order, shares and restarts of files that are read from their beginning to their end -----------
@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Write files of which two are compressed, each of several blocks; return their pattern."""
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 300)
    first = 0
    for number, (count, ending) in enumerate([(400, ".gz"), (150, ""), (260, ".zst")]):
        data = ("id\n" + "".join(f"{n}\n" for n in range(first, first + count))).encode()
        data = PACKED[ending](data) if ending else data
        (tmp_path / f"p{number}.csv{ending}").write_bytes(data)
        first += count
    return str(tmp_path / "p*"), first


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("shuffle", [None, 5])
def test_each_row_of_compressed_files_is_used_once(packed, tmp_path, lanes, shuffle):
    pattern, count = packed
    how = {"batch": 8, "shuffle": shuffle, "lanes": lanes, "window": 60}
    whole = [batch["id"].tolist() for batch in fluid.data.read(pattern, **how)]
    assert sorted(n for ids in whole for n in ids) == list(range(count))
    for trainers in (2, 4):
        log = tmp_path / f"log{trainers}"
        rows = fluid.data.read(pattern, **how, drop_last=True, certificate=log)
        shares = [rows.shard(trainers, me) for me in range(trainers)]
        for batches, expected in zip(zip(*shares, strict=True), whole):
            assert [n for batch in batches for n in batch["id"].tolist()] == expected
        assert not any(verdict.damage for verdict in verify.verify(log))
    rows, begun = fluid.data.read(pattern, **how), []
    for batch in rows():
        begun.append(batch["id"].tolist())
        if len(begun) == 37:
            break
    others = fluid.data.read(pattern, **how)
    others.resume(rows.state(), None)
    assert begun + [batch["id"].tolist() for batch in others()] == whole


def test_a_compressed_file_is_unpacked_once_in_an_epoch(packed, monkeypatch):
    pattern, count = packed
    opened = []

    def counted(compression):
        def opening(path):
            opened.append(path)
            return compression.opened(path)

        return replace(compression, opened=opening)

    rows = fluid.data.read(pattern, batch=8, shuffle=5, window=60)
    monkeypatch.setattr(streams, "COMPRESSIONS", tuple(map(counted, COMPRESSIONS)))
    assert sorted(column(rows(), "id")) == list(range(count))
    assert len(opened) == 2


def test_a_forged_certificate_of_runs_is_refused(packed, tmp_path):
    list(fluid.data.read(packed[0], batch=8, shuffle=5, certificate=tmp_path / "log"))
    (path,) = (tmp_path / "log").glob("rows-*")
    head, rest = path.read_text().split("\n", 1)
    path.write_text(head.replace("[5, 131072, 1, 1, [", "[5, 131072, 1, 1, [77, ") + "\n" + rest)
    with pytest.raises(DataError, match="blocks are read in runs of"):
        verify.verify(tmp_path / "log")


# -- names, delimiters, spaces ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("delimiter", "content"),
    [
        ("\t", "1\t0.5\tred\n2\t1.5\tblue\n"),
        (",", "1,0.5,red\r\n2,1.5,blue\r\n"),
        ("|", "1|0.5|red\n2|1.5|blue"),
        ("\x01", "1\x010.5\x01red\n2\x011.5\x01blue\n"),
        ("::", "1::0.5::red\n2::1.5::blue\n"),
        (r"\s+", "  1 0.5\tred\n2   1.5 blue  \n"),
    ],
)
def test_files_without_names_lose_no_row(write, delimiter, content):
    for name in ("day_0", "train.txt", "iris.data", "a.csv"):
        for mark in ("", "\ufeff"):
            path = write(name, mark + content)
            how = {"delimiter": delimiter, "names": ["n", "x", "w"]}
            (batch,) = fluid.data.read(path, batch=9, **how)
            assert batch["n"].tolist() == [1, 2]
            assert batch["x"].tolist() == [0.5, 1.5]
            assert batch["w"].tolist() == [hashed("red"), hashed("blue")]


def test_spaces_around_values_are_stripped_when_asked(write):
    path = write("adult.csv", 'age, work , "a, b"\n39, State-gov, "x, ""y"""\n 50 ,  Self ,z\n')
    refused("there are spaces around the names: pass strip=True", path, ["work"])
    (batch,) = fluid.data.read(path, batch=9, strip=True)
    assert batch["age"].tolist() == [39, 50]
    assert batch["work"].tolist() == [hashed("State-gov"), hashed("Self")]
    assert batch["a, b"].tolist() == [hashed('x, "y"'), hashed("z")]
    tabs = write("a.tsv", "a\tb\n1 \t 2\n \t3\n")
    assert column(fluid.data.read(tabs, batch=9, strip=True, nulls=0), "a") == [1, 0]
    bad = write("bad.csv", 'a,b\n1, "x\n2,y\n')
    refused(r"row 0: a quote is not closed.*line 2 of the file", bad, strip=True)


NAMED = {"names": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "content", "how", "said"),
    [
        ("a.txt", "1\t2\n", NAMED, r"what is between its values\? Pass delimiter="),
        ("a.csv", "1\t2\n", NAMED, r"line 1: names= has 2 names, the .* is it delimiter='\\t'\?"),
        ("a.csv", "1,2,3\n", NAMED, "line 1: names= has 2 names, the line has 3"),
        ("a.csv", "a,b\n1,2\n", NAMED, "line 1: .* the names a, b: leave names= out"),
        ("a.csv", "1,2\n1,x\n", {"columns": ["1"]} | NAMED, "no column '1', it has a, b"),
        ("a.csv", "a;b\n1;2\n", {"columns": ["a"]}, r"is it delimiter=';'\?"),
        ("a.csv", "0,1,5\n1,2,6\n", {"columns": ["I1"]}, r"seems to hold values: pass names="),
        ("a.csv", "0,1,1\n1,2,6\n", {"columns": ["I1"]}, r"each once, got .* pass names="),
        ("a.csv", "click,x\n1,2\n", {"columns": ["Clicks"]}, r"did you mean 'click'\?"),
        ("a.csv", "a\n1\n", {"names": "ab"}, "names must be a list of names"),
        ("a.csv", "a\n1\n", {"names": ["a", "a"]}, "names has 'a' twice"),
        ("a.csv", "a\n1\n", {"delimiter": '"'}, "delimiter must be one or more ASCII"),
        ("a.csv", "a\n1\n", {"delimiter": 7}, "delimiter must be one or more ASCII"),
        ("a.csv", "a\n1\n", {"strip": 1}, "strip must be True or False"),
        ("a.jsonl", '{"a":1}\n', {"names": ["a"]}, "names= is for delimited text"),
        ("a.parquet", "", {"encoding": "latin-1"}, "encoding= is for text"),
        ("a.csv", "a\n1\n", {"encoding": "latin77"}, "encoding must be .* encoding: latin77"),
        ("a.csv", "a\n1\n", {"encoding": "hex"}, "'hex' is not a text encoding"),
        ("a.csv", "a\n1\n", {"types": {"a": "hexx"}}, r"is not a type; did you mean 'hex'\?"),
    ],
)
def test_wrong_arguments_are_named_with_the_file(write, name, content, how, said):
    refused(said, write(name, content), **how)


# -- encodings -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "UTF-16-BE", "utf-32", "utf8", "latin-1", "cp1252"]
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_named_encoding_gives_the_same_hashes_and_names(write, monkeypatch, encoding, ending):
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 40)
    data = ("größe,wort\n" + "".join(f"{n},Ö{n}ü\n" for n in range(60))).encode(encoding)
    path = write(f"a.csv{ending}", PACKED[ending](data) if ending else data)
    (batch,) = fluid.data.read(path, batch=99, encoding=encoding)
    assert batch["größe"].tolist() == list(range(60))
    assert batch["wort"].tolist() == [hashed(f"Ö{n}ü") for n in range(60)]


def test_bytes_that_are_not_in_the_encoding_are_a_bad_row(write):
    for encoding, data in (
        ("ascii", b"a,b\n1,x\n2,\xff\n3,y\n"),
        ("utf-16-le", "a,b\n1,x\n2,Z\n3,y\n".encode("utf-16-le").replace(b"Z\0", b"\0\xdc")),
    ):
        path = write("a.csv", data)
        how = {"encoding": encoding, "types": {"b": "string"}}
        said = rf"row 1: some bytes are no text in the encoding {encoding} \(line 3 of"
        refused(said, path, **how)
        assert column(fluid.data.read(path, batch=9, on_bad="skip", **how), "a") == [1, 3]
    path = write("a.csv", b"b\nx\n\xff\n")
    refused("row 1: 'utf-8'.*pass encoding= .line 3", path, types={"b": "string"})


def test_lines_are_counted_with_blank_ones_over_blocks(write, monkeypatch):
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 20)
    lines = ["a,b", *(f"{n},1" for n in range(20)), "", "", "x,2", "7,3"]
    for ending in ("", ".gz"):
        data = "\n".join(lines).encode()
        path = write(f"a.csv{ending}", PACKED[ending](data) if ending else data)
        refused(r"'x' is not int64 \(line 24 of the file\)", path, types={"a": "int64"})


@pytest.mark.parametrize("ending", ["", *PACKED])
def test_a_long_line_in_any_stream_is_bounded(write, monkeypatch, ending):
    monkeypatch.setattr(text_source, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(text_source, "BLOCK_BYTES", 50)
    data = b"a\n1\n" + b"7" * 3000
    path = write(f"a.csv{ending}", PACKED[ending](data) if ending else data)
    refused(r"a.csv\S*: a line has more than", path, types={"a": "string"})


# -- sparse rows -----------------------------------------------------------------------------------
def test_rows_of_libsvm_are_ragged(write):
    path = write("a.svm", f"# head\n1 qid:4 3:0.5 {2**64 - 1}:2 # note\n-1 qid:5\n")
    (batch,) = fluid.data.read(path, batch=9)
    assert batch["label"].tolist() == [1, -1] and batch["qid"].tolist() == [4, 5]
    assert np.array(batch["index"]).tolist() == [3, -1] and batch["index"].lod() == [[0, 2, 2]]
    assert np.array(batch["value"]).tolist() == [0.5, 2]
    (batch,) = fluid.data.read(write("a.ffm", "1 2:3:0.5\n0 4:5:1 6:7:2\n"), batch=9)
    assert np.array(batch["field"]).tolist() == [2, 4, 6]
    assert np.array(batch["index"]).tolist() == [3, 5, 7]
    assert list(batch) == ["label", "field", "index", "value"]


@pytest.mark.parametrize(
    "line",
    [
        "1 a:3",
        "1 2",
        "1 2:x",
        "1 -1:2",
        f"1 {2**64}:1",
        "x 1:2",
        "1 1:2:3",
        "1 qid:z 1:2",
        "1 \xff:2",
    ],
)
def test_a_malformed_sparse_row_is_named(write, line):
    path = write("a.libsvm", f"1 1:2\n\n{line}\n2 2:1\n".encode("latin-1"))
    columns = ["label", "index", "value"]
    refused(r"a.libsvm, block 0, row 1: .* \(line 3 of the file\)", path, columns)
    assert column(fluid.data.read(path, columns, batch=9, on_bad="skip"), "label") == [1, 2]
    refused("names= is for delimited text", path, names=["a"])
    refused("types= is for CSV, JSON and TFRecord", path, types={"label": "int64"})


# -- TFRecord --------------------------------------------------------------------------------------
def test_features_of_tfrecords_are_columns(write):
    path = write("a.tfrecord", records([5, -3, 2**62]))
    (batch,) = fluid.data.read(path, batch=9)
    assert batch["id"].tolist() == [5, -3, 2**62]
    assert batch["w"].tolist() == [hashed("w5"), hashed("w-3"), hashed(f"w{2**62}")]
    assert batch["pair"].tolist() == [[2.5, 0.25], [-1.5, 0.25], [2.0**61, 0.25]]
    assert batch["many"].lod() == [[0, 1, 2, 2]]
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        feed_list = [
            fluid.data("pair", [None, 2, 1], "float32"),
            fluid.data("many", [None, 1], "int64", lod_level=1),
        ]
    (batch,) = fluid.data.read(path, feed_list=feed_list, batch=9)
    assert batch["pair"].shape == (3, 2, 1)
    path = write("b.tfrecord", framed(example(w=[b"x"])) + framed(example(w=[1])))
    said = "row 1, column 'w': it is a int64_list, expected a bytes_list .line 2"
    refused(said, path, types={"w": "binary"})
    refused("does not show what column 'w' holds", path)


def test_damaged_tfrecords_are_named(write):
    good = [framed(example(id=[n])) for n in range(3)]
    flipped = bytearray(good[1])
    flipped[-5] ^= 1
    path = write("a.tfrecord", good[0] + flipped + good[2])
    refused("row 1: the record is damaged: its checksum is wrong .line 2", path)
    assert column(fluid.data.read(path, batch=9, on_bad="skip"), "id") == [0, 2]
    path = write("a.tfrecord", good[0] + framed(b"\xff\xff") + good[2])
    refused("row 1: the record is damaged: it is no tf.train.Example", path)
    path = write("a.tfrecord", good[0] + good[1][:-3])
    refused(f"ends within a record, at byte {len(good[0])}", path)
    refused("at byte 0 no record begins", write("a.tfrecord", b"id,x\n1,2\n3,4\n"))
    path = write("a.tfrecord", good[0] + framed(example(id=[1, 2])))
    refused("row 1, column 'id': it has 2 values", path, feed_list=variables(id="int64"))
    length = struct.pack("<Q", 2**40)
    path = write("a.tfrecord", length + framed(length)[-4:])
    refused(f"the record at byte 0 has {2**40} bytes, more than 64 MiB", path)

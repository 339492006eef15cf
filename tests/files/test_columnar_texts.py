"""Texts as ids of words: vocabularies, ragged ids in batches, rows that are packed."""

from itertools import chain

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")

import pyarrow.csv  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.data.columnar.verify import verify  # noqa: E402
from hpcdist.errors import DataError  # noqa: E402

TEXTS = [" ".join("abcdefg"[k % 7] for k in range(n, n + n % 5)) for n in range(60)]


@pytest.fixture
def path(tmp_path):
    """Return a Parquet file of numbered texts, in row groups of 16."""
    columns = {"id": range(len(TEXTS)), "text": TEXTS}
    pq.write_table(pa.table(columns), tmp_path / "texts.parquet", row_group_size=16)
    return tmp_path / "texts.parquet"


def sequences(tensor):
    """Return the rows of a ragged column as lists."""
    (lengths,) = tensor.recursive_sequence_lengths()
    parts = np.split(tensor.value.ravel(), np.cumsum(lengths)[:-1])
    return [part.tolist() for part in parts]


def by_id(batches, name="text"):
    """Return every row's ids by its number."""
    found = {}
    for batch in batches:
        found |= dict(zip(batch["id"].ravel().tolist(), sequences(batch[name]), strict=True))
    return found


def test_words_are_counted_over_all_files(tmp_path):
    pq.write_table(pa.table({"t": ["b a", "b c", None]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"t": ["c b  d"]}), tmp_path / "1.parquet")
    words = fluid.data.Vocabulary.count(f"{tmp_path}/*.parquet", "t")
    assert words.words == ("b", "c", "a", "d")
    assert words("d e b") == [3, words.unknown, 0] and len(words) == 5
    few = fluid.data.Vocabulary.count(f"{tmp_path}/*.parquet", "t", size=3, least=2)
    assert few.words == ("b", "c")
    letters = fluid.data.Vocabulary.count(f"{tmp_path}/1.parquet", "t", size=2, split=list)
    assert letters.words == (" ", "b") and letters("cb") == [2, 1]


def test_a_vocabulary_is_saved_whole(tmp_path):
    words = fluid.data.Vocabulary(["ä", "b\u2028", "c"])
    words.save(tmp_path / "words.txt")
    assert fluid.data.Vocabulary.load(tmp_path / "words.txt").words == words.words
    assert [file.name for file in tmp_path.iterdir()] == ["words.txt"]
    (tmp_path / "cut").write_text("a\nb")
    with pytest.raises(DataError, match="cut does not end with a line end"):
        fluid.data.Vocabulary.load(tmp_path / "cut")
    for text, said in (
        ("a\r\nb\r\n", r"'a\\r' cannot be"),
        ("a\n\n", "''"),
        ("a\na\n", "appears twice"),
    ):
        (tmp_path / "bad").write_bytes(text.encode())
        with pytest.raises(DataError, match=f"bad: Vocabulary: the word .*{said}"):
            fluid.data.Vocabulary.load(tmp_path / "bad")
    with pytest.raises(DataError, match="cannot read .*missing"):
        fluid.data.Vocabulary.load(tmp_path / "missing")
    with pytest.raises(DataError, match=r"the word 'a\\n' cannot be a line"):
        fluid.data.Vocabulary(["a\n"]).save(tmp_path / "words.txt")
    with pytest.raises(DataError, match="no words to save to .*words.txt"):
        fluid.data.Vocabulary([]).save(tmp_path / "words.txt")
    with pytest.raises(DataError, match="the word 'a' appears twice"):
        fluid.data.Vocabulary(["b", "a", "a"])
    with pytest.raises(DataError, match="a word must be text, got b'a'"):
        fluid.data.Vocabulary(["b", b"a"])
    with pytest.raises(DataError, match="split must be a function of a text, got ' '"):
        fluid.data.Vocabulary(["b"], split=" ")


@pytest.mark.parametrize("workers", [0, 2])
def test_ids_are_those_of_each_rows_words(path, workers):
    words = fluid.data.Vocabulary("abcde")
    expected = {n: words(text) for n, text in enumerate(TEXTS)}
    rows = fluid.data.read(
        path, batch=7, shuffle=3, window=20, decode={"text": words}, workers=workers
    )
    assert by_id(rows) == expected
    parts = [rows.shard(3, k) for k in range(3)]
    together = [by_id(part) for part in parts]
    assert {n: ids for some in together for n, ids in some.items()} == expected


def test_variables_take_ids(path):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        text = fluid.data("text", [None, 1], "int64", lod_level=1)
        number = fluid.data("id", [None, 1], "int64")
        flat = fluid.data("flat", [None, 1], "int64")
        floats = fluid.data("floats", [None, 1], "float32", lod_level=1)
        total = fluid.layers.sequence_pool(fluid.layers.cast(text, "float32"), "sum")
    words = fluid.data.Vocabulary("abcdefg")
    rows = fluid.data.read(path, batch=60, feed_list=[text, number], decode={"text": words})
    (batch,) = rows
    assert batch["text"].value.shape[1:] == (1,)
    (sums,) = fluid.Executor().run(main, feed=batch, fetch_list=[total])
    assert sums.ravel().tolist() == [sum(words(text)) for text in TEXTS]
    for variable in (flat, floats):
        with pytest.raises(DataError, match="declare variable '.*' with int64 and lod_level=1"):
            fluid.data.read(
                path,
                {variable.name: "text"},
                batch=4,
                feed_list=[variable],
                decode={"text": words},
            )


def test_every_kind_of_text_is_decoded(tmp_path):
    texts = ["b a", "", "ä"]
    raw = [text.encode() for text in texts]
    columns = {
        "plain": texts,
        "bytes": pa.array(raw),
        "kinds": pa.array(texts).dictionary_encode(),
        "numbers": pa.array([list(value) for value in raw], pa.list_(pa.uint8())),
        "null": pa.array(["b a", None, "ä"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    words = fluid.data.Vocabulary(["a", "b", "ä"])
    decode = dict.fromkeys(columns, words)
    (batch,) = fluid.data.read(tmp_path / "f.parquet", batch=3, decode=decode, nulls=0)
    for name in columns:
        assert sequences(batch[name]) == [[1, 0], [], [2]], name
    # Text of a CSV file that looks like numbers.
    pyarrow.csv.write_csv(pa.table({"text": [1, 22]}), tmp_path / "f.csv")
    kept = {"text": lambda text: [len(text)]}
    (batch,) = fluid.data.read(tmp_path / "f.csv", batch=2, decode=kept, types={"text": "string"})
    assert sequences(batch["text"]) == [[1], [2]]
    np.save(tmp_path / "f.npy", np.array([b"b a", b"a"]))
    (batch,) = fluid.data.read(tmp_path / "f.npy", batch=2, decode={"value": words})
    assert sequences(batch["value"]) == [[1, 0], [0]]


def test_texts_that_cannot_be_decoded_are_bad_rows(tmp_path):
    path = tmp_path / "f.parquet"
    raw = [b"a", b"\xff", b"b", None, b"a b"]
    pq.write_table(pa.table({"id": range(5), "text": raw}), path, row_group_size=2)
    words = fluid.data.Vocabulary("ab")
    with pytest.raises(DataError, match=r"f.parquet, row group 0, row 1, column 'text': Unicode"):
        list(fluid.data.read(path, batch=2, decode={"text": words}))
    rows = fluid.data.read(
        path,
        batch=2,
        shuffle=1,
        decode={"text": words},
        on_bad="skip",
        certificate=tmp_path / "log",
    )
    assert by_id(rows) == {0: [0], 2: [1], 4: [0, 1]}
    assert sorted((skip.block, skip.begin) for skip in rows.skipped) == [
        ("row group 0", 1),
        ("row group 1", 1),
    ]
    (verdict,) = verify(tmp_path / "log")
    (epoch,) = verdict.epochs
    assert (epoch.used, epoch.complete, verdict.damage) == (3, True, [])


def test_a_mistake_of_the_function_is_no_bad_row(path):
    for wrong in (lambda text: [0.5], lambda text: 5, lambda text: [[1]]):
        with pytest.raises(DataError, match="must return a list of integers for a text"):
            list(fluid.data.read(path, batch=4, decode={"text": wrong}, on_bad="skip"))
    with pytest.raises(DataError, match="returned 9223372036854775808, expected int64"):
        list(fluid.data.read(path, batch=4, decode={"text": lambda text: [2**63]}))


def test_a_function_that_always_fails_is_told_some_times_and_ends_the_epoch(tmp_path, caplog):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": ["a"] * 1000}), path)
    rows = fluid.data.read(path, batch=100, decode={"text": lambda _: 1 / 0}, on_bad="skip")
    with pytest.raises(
        DataError, match=r"not one of the 1000 rows .*f.parquet, row group 0, row 0"
    ):
        list(rows)
    assert len(rows.skipped) == 1000
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 100 + 1 + 3 and "row 511, column 'text': ZeroDivisionError" in told[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"decode": ["text"]}, "decode must be a dict by column"),
        ({"decode": {"text": 5}}, "expected Images, a Vocabulary, or a function of a text"),
        ({"decode": {"typo": len}}, "decode names the column 'typo', which is not read"),
        ({"decode": {"text": len}, "buckets": {"text": 9}}, "has both decode= and buckets="),
        (
            {"decode": {"text": len}, "columns": {"x": ["id", "text"]}},
            "cannot be combined with other",
        ),
        ({"decode": {"text": len}, "workers": -1}, "workers must be an integer >= 0"),
    ],
)
def test_what_would_be_ignored_is_refused(path, arguments, said):
    with pytest.raises(DataError, match=said):
        fluid.data.read(path, batch=4, **arguments)


def test_numbers_are_not_decoded(path):
    with pytest.raises(DataError, match="column 'id' holds int64: only text and bytes are decoded"):
        list(fluid.data.read(path, batch=4, decode={"id": len}))


# -- packed ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(5))
def test_texts_are_packed_whole(seed):
    random = np.random.RandomState(seed)
    texts = [random.randint(1, 99, n).tolist() for n in random.randint(0, 17, 40)]
    tensor = fluid.create_lod_tensor(
        np.array(list(chain(*texts)), np.int64)[:, None], [list(map(len, texts))], fluid.CPUPlace()
    )
    ids, segments, positions = fluid.data.packed(tensor, 16, pad=-1)
    assert ids.shape == segments.shape == positions.shape == (len(ids), 16)
    found = []
    for row, of, places in zip(ids, segments, positions):
        for segment in range(1, of.max() + 1):
            found.append(row[of == segment].tolist())
            assert places[of == segment].tolist() == list(range(len(found[-1])))
        assert (row[of == 0] == -1).all() and (places[of == 0] == 0).all()
        assert (np.diff((of == 0).astype(int)) >= 0).all()  # padding comes last
    assert sorted(found) == sorted(text for text in texts if text)
    total = sum(map(len, texts))
    assert len(ids) <= 11 / 9 * -(-total // 16) + 2  # best fit of the longest first


def test_what_cannot_be_packed_is_refused():
    place = fluid.CPUPlace()
    long = fluid.create_lod_tensor(np.zeros((7, 1), np.int64), [[2, 5]], place)
    with pytest.raises(DataError, match=r"row 1 of the batch has 5 ids, more than length=4"):
        fluid.data.packed(long, 4)
    wide = fluid.create_lod_tensor(np.zeros((7, 2), np.int64), [[2, 5]], place)
    with pytest.raises(DataError, match=r"expected ids, got int64\(7, 2\)"):
        fluid.data.packed(wide, 9)
    with pytest.raises(DataError, match="expected a batch's ragged column"):
        fluid.data.packed(fluid.LoDTensor(np.zeros(3, np.int64)), 4)
    with pytest.raises(DataError, match="a LoDTensor of one level, got ndarray"):
        fluid.data.packed(np.zeros(3, np.int64), 4)
    with pytest.raises(DataError, match=r"length must be an integer >= 1, got 4\.5"):
        fluid.data.packed(long, 4.5)
    none = fluid.create_lod_tensor(np.zeros((0, 1), np.int64), [[0, 0]], place)
    assert fluid.data.packed(none, 4).ids.shape == (0, 4)

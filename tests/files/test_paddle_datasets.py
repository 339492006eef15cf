"""Fluid's data sets under Fluid's names give what is in Fluid's files, or say what is missing."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import pickle
import re
import tarfile
import zipfile

import numpy as np
import pytest

from hpcdist.compat import aspaddle
from hpcdist.errors import DataError
from hpcdist.fluid.compat.datasets import (
    cifar,
    common,
    conll05,
    imdb,
    imikolov,
    mnist,
    movielens,
    uci_housing,
    wmt14,
    wmt16,
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    monkeypatch.delenv("HPCDIST_DATA_HOME", raising=False)
    return tmp_path


def put(path, members):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def test_a_script_finds_them_under_paddle_and_hears_what_is_missing(home):
    aspaddle.install()
    try:
        held = importlib.import_module("paddle.dataset.movielens")
        assert held.train is movielens.train
        paddle = importlib.import_module("paddle")
        assert paddle.dataset.imdb is imdb and paddle.dataset.mnist.train
        with pytest.raises(AttributeError, match=r"paddle.dataset.flowers of Paddle 2.6.2"):
            _ = paddle.dataset.flowers
        with pytest.raises(AttributeError, match=r"paddle.dataset.common.split of Fluid 1.8.5"):
            _ = paddle.dataset.common.split
    finally:
        aspaddle.uninstall()
    with pytest.raises(DataError, match=r"cannot find aclImdb.*imdb/aclImdb_v1.tar.gz"):
        imdb.word_dict()
    (home / "imdb").mkdir()
    (home / "imdb" / "imdb%2FaclImdb_v1.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="is damaged"):
        imdb.word_dict()


def test_reviews_are_words_without_punctuation(home):
    texts = {"pos/0": b"Good, good film!\n", "neg/1": b"bad film"}
    members = {f"aclImdb/train/{name}_7.txt": text for name, text in texts.items()}
    put(home / "imdb" / "imdb%2FaclImdb_v1.tar.gz", members)
    words = imdb.build_dict(re.compile("aclImdb/train/.*"), 1)
    assert words == {b"film": 0, b"good": 1, "<unk>": 2}
    assert list(imdb.train(words)()) == [([1, 1, 0], 0), ([2, 0], 1)]


def test_sentences_are_n_grams_or_sequences(home):
    data = "./simple-examples/data/ptb."
    members = {f"{data}train.txt": b" a b b\n", f"{data}valid.txt": b" b\n"}
    put(home / "imikolov" / "simple-examples.tgz", members)
    words = imikolov.build_dict(1)
    assert words == {b"b": 0, "<e>": 1, "<s>": 2, "<unk>": 3}
    assert list(imikolov.train(words, 3)()) == [(2, 3, 0), (3, 0, 0), (0, 0, 1)]
    both = list(imikolov.train(words, 0, imikolov.DataType.SEQ)())
    assert both == [([2, 3, 0, 0], [3, 0, 0, 1])]
    assert list(imikolov.train(words, 3, imikolov.DataType.SEQ)()) == []
    with pytest.raises(DataError, match="n-grams of n >= 1"):
        imikolov.train(words, 0)


def test_translations_are_pairs_of_numbers(home):
    long = " ".join(["a"] * 81).encode()
    text = b"a c\tb\nno pair\n" + long + b"\tb\n"
    words = b"<s>\n<e>\n<unk>\na\nb\n"
    members = {"x/train/train": text, "x/src.dict": words, "x/trg.dict": words}
    put(home / "wmt14" / "wmt14.tgz", members)
    assert list(wmt14.train(5)()) == [([0, 3, 2, 1], [0, 4], [4, 1])]
    assert wmt14.get_dict(4)[0] == {0: "<s>", 1: "<e>", 2: "<unk>", 3: "a"}
    with pytest.raises(DataError, match="has no test/test"):
        list(wmt14.test(5)())
    put(home / "wmt16" / "wmt16.tar.gz", {"wmt16/train": b"a b b\tx\n", "wmt16/val": b"b\ty x\n"})
    assert list(wmt16.validation(4, 5)()) == [([0, 3, 1], [0, 2, 3], [2, 3, 1])]
    assert list(wmt16.validation(4, 5, "de")()) == [([0, 2, 3, 1], [0, 3], [3, 1])]
    assert wmt16.get_dict("en", 4, reverse=True)[3] == "b"
    with pytest.raises(DataError, match="a language of en, de"):
        wmt16.train(4, 4, "fr")


def test_images_are_read_and_no_code_of_the_file_is_run(home):
    batch = {b"data": np.full((2, 3072), 255, np.uint8), b"labels": [3, 1]}
    held = {"c/data_batch_1": pickle.dumps(batch, 2), "c/test_batch": pickle.dumps(print, 2)}
    put(home / "cifar" / "cifar-10-python.tar.gz", held)
    found = list(cifar.train10()())
    assert [label for _, label in found] == [3, 1]
    assert found[0][0].dtype == np.float32 and (found[0][0] == 1).all()
    with pytest.raises(DataError, match="print, which is not an array"):
        list(cifar.test10()())


class Pointer:
    """An element that numpy would take for an object, at an address that the file chooses."""

    def __reduce__(self):
        fields = {"f": (np.dtype("O"), 0)}
        return np.dtype, ([("f", "u8")],), (3, "|", None, ("f",), fields, 8, 1, 0)


class Pointers:
    def __reduce__(self):
        make, given, _ = np.zeros(1).__reduce__()
        return make, given, (1, (1,), Pointer(), False, b"A" * 8)


@pytest.mark.parametrize(
    "held",
    [
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": Pointers()}, 2),
        pickle.dumps({b"data": np.zeros((1, 3072), np.int64), b"labels": [1]}, 2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, 2),
        pickle.dumps([b"data"], 2),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]}, 2)[:-50],
        b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little") + b"few",
    ],
)
def test_a_damaged_file_of_images_is_named(home, held):
    put(home / "cifar" / "cifar-10-python.tar.gz", {"c/test_batch": held})
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz is damaged"):
        list(cifar.test10()())


def test_damaged_archives_are_named(home):
    path = home / "imdb" / "aclImdb_v1.tar.gz"
    put(path, {"aclImdb/train/pos/0.txt": np.random.default_rng(1).bytes(1 << 16)})
    data = bytearray(path.read_bytes())
    data[9000:9400] = bytes(400)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"aclImdb_v1.tar.gz is damaged"):
        list(imdb.tokenize(re.compile(".*")))
    (home / "movielens").mkdir()
    with zipfile.ZipFile(home / "movielens" / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/movies.dat", "4::The Film (1999)\n")
        archive.writestr("ml-1m/users.dat", "2::F::26::7::0\n")
    for read in (movielens.movie_info, movielens.user_info):
        read.cache_clear()
        with pytest.raises(DataError, match=r"ml-1m.zip is damaged"):
            read()


def test_ratings_come_with_facts_of_users_and_films(home):
    for cached in (movielens.movie_info, movielens.user_info):
        cached.cache_clear()
    (home / "movielens").mkdir()
    with zipfile.ZipFile(home / "movielens" / "movielens%2Fml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/movies.dat", "4::The Film (1999)::War|Drama\n")
        archive.writestr("ml-1m/users.dat", "2::F::25::7::0\n")
        archive.writestr("ml-1m/ratings.dat", "2::4::5::0\n" * 20)
    samples = list(movielens.train()())
    assert samples[0] == [2, 1, 2, 7, 4, [1, 0], [1, 0], [5.0]]
    draws = np.random.RandomState(0).random_sample(20)
    assert len(samples) == (draws >= 0.1).sum() and len(list(movielens.test()())) == 20 - len(
        samples
    )
    assert [movielens.max_user_id(), movielens.max_movie_id(), movielens.max_job_id()] == [2, 4, 7]


def test_roles_are_tagged_around_each_verb(home):
    folder = home / "conll05st"
    words, props = b"w1\nw2\nw3\n\n", b"-\t(A0*\t*\ngo\t*)\t(V*)\nrun\t(V*)\t*\n\n"
    inside = "conll05st-release/test.wsj"
    put(
        folder / "conll05st-tests.tar.gz",
        {
            f"{inside}/words/test.wsj.words.gz": gzip.compress(words),
            f"{inside}/props/test.wsj.props.gz": gzip.compress(props),
        },
    )
    (folder / "conll05st%2FwordDict.txt").write_text("<unk>\nbos\neos\nw1\nw2\nw3\n")
    (folder / "conll05st%2FverbDict.txt").write_text("go\nrun\n")
    (folder / "conll05st%2FtargetDict.txt").write_text("B-V\nI-V\nB-A0\nI-A0\nO\n")
    assert conll05.get_dict()[2] == {"B-A0": 0, "I-A0": 1, "B-V": 2, "I-V": 3, "O": 4}
    first, second = conll05.test()()
    context = [[3] * 3, [4] * 3, [5] * 3, [2] * 3, [2] * 3]
    assert first == ([3, 4, 5], *context, [0] * 3, [1, 1, 1], [0, 1, 2])
    assert second[1:6] == ([1] * 3, [3] * 3, [4] * 3, [5] * 3, [2] * 3)
    assert second[6:] == ([1] * 3, [1, 1, 1], [4, 2, 4])
    # Characters at which Python would cut a line stand in words.
    (folder / "conll05st%2FwordDict.txt").write_text("<unk>\nb\x85\u2028c\nw1\n", "utf-8")
    assert conll05.get_dict()[0]["w1"] == 2
    put_words = lambda text: put(  # noqa: E731
        folder / "conll05st-tests.tar.gz",
        {
            f"{inside}/words/test.wsj.words.gz": gzip.compress(text.encode()),
            f"{inside}/props/test.wsj.props.gz": gzip.compress(props),
        },
    )
    put_words("w1\nb\x85\u2028c\nw3\n\n")
    assert [sample[0] for sample in conll05.test()()] == [[2, 1, 0]] * 2
    put_words("w1\nw3\n\n")
    with pytest.raises(DataError, match=r"conll05st-tests.tar.gz is damaged"):
        list(conll05.test()())


def test_digits_and_prices_are_read_where_fluid_keeps_them(home, monkeypatch):
    pixels = np.arange(2 * 784, dtype=np.uint8).reshape(2, 784)
    (home / "mnist").mkdir()
    images = b"\0\0\x08\x03" + np.array([2, 28, 28], ">u4").tobytes() + pixels.tobytes()
    labels = b"\0\0\x08\x01" + np.array([2], ">u4").tobytes() + bytes([7, 1])
    for name, content in (("images-idx3", images), ("labels-idx1", labels)):
        (home / "mnist" / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    (first, label), (_, other) = mnist.test()()
    np.testing.assert_allclose(first, pixels[0] / 255.0 * 2.0 - 1.0, rtol=1e-6, atol=1e-6)
    assert (label, other) == (7, 1)

    table = np.random.default_rng(0).uniform(1, 9, (10, 14)).round(3)
    path = home / "uci_housing" / "housing.data"
    path.parent.mkdir()
    path.write_text("\n".join(" ".join(map(str, row)) for row in table))
    known = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(uci_housing, "MD5", known)
    x = (table - table.mean(0)) / (table.max(0) - table.min(0))
    for read, rows in ((uci_housing.train, slice(8)), (uci_housing.test, slice(8, 10))):
        features, prices = map(np.array, zip(*read()()))
        np.testing.assert_allclose(features, x[rows, :-1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(prices, table[rows, -1:], rtol=1e-6)
    path.write_text("\n".join(" ".join(map(str, row)) for row in table[:-1]))  # cut off
    with pytest.raises(DataError, match="housing.data is damaged"):
        uci_housing.train()

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hpcdist import dataset
from hpcdist.dataset import diabetes, digits, files, mnist, samples, synthetic, uci_housing
from hpcdist.errors import DataError

HOME = os.environ.get("HPCDIST_DATA_HOME", "")
HOUSING = "BostonHousing.csv"


def needs(*wanted):
    """Skip a test where HPCDIST_DATA_HOME lacks one of these files, and say how to get it."""
    absent = [file for file in wanted if not (Path(HOME) / file.name).is_file()]
    how = " ".join(f"curl -L {file.url} -o {file.name}" for file in absent)
    return pytest.mark.skipif(bool(absent), reason=f"{files.DATA_HOME} lacks a file: {how}")


needs_data = needs(uci_housing.FILE)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of this test's own."""
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    return tmp_path / "cache" / "hpcdist"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty HPCDIST_DATA_HOME."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv(files.DATA_HOME, str(path))
    return path


@pytest.fixture
def no_home(monkeypatch):
    monkeypatch.delenv(files.DATA_HOME, raising=False)


# tables to samples


def test_spread_normalised_is_over_each_column():
    got = samples.spread_normalised(np.array([[0.0, 5.0], [1.0, 7.0], [5.0, 6.0]]))
    np.testing.assert_allclose(got, [[-0.4, -0.5], [-0.2, 0.5], [0.6, 0.0]])


@pytest.mark.parametrize("rows", [0, 1, 5, 506])
def test_train_and_test_rows_part_the_data(rows):
    data = list(range(rows))
    train, test = data[samples.train_rows(rows)], data[samples.test_rows(rows)]
    assert train + test == data
    assert len(train) == int(0.8 * rows)


def test_image_reader_converts_all_chunks():
    images = np.arange(2500 * 2, dtype=np.uint32).reshape(2500, 2).astype(np.uint8)
    labels = (np.arange(2500) % 10).astype(np.uint8)
    got = list(samples.image_reader(images, labels, lambda x: x / 2)())
    np.testing.assert_array_equal(np.stack([x for x, _ in got]), images / np.float32(2))
    assert [y for _, y in got] == labels.tolist()
    assert got[0][0].dtype == np.float32
    assert type(got[0][1]) is int


def check_regression(module, train_size, test_size):
    train, test = list(module.train()()), list(module.test()())
    assert (len(train), len(test)) == (train_size, test_size)
    x = np.stack([x for x, _ in train + test])
    y = np.stack([y for _, y in train + test])
    assert x.shape[1:] == (module.feature_num,)
    assert y.shape[1:] == (1,)
    assert x.dtype == y.dtype == np.float32
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.ptp(x, axis=0), 1, rtol=1e-6)
    return x, y


def test_a_sample_cannot_be_changed_for_the_next_pass():
    (x, y) = next(diabetes.train()())
    for array in (x, y):
        with pytest.raises(ValueError, match="read-only"):
            array += 1


# bundled with scikit-learn


def test_diabetes_is_normalised_and_its_target_of_order_one():
    _, y = check_regression(diabetes, 353, 89)
    assert y[0] == np.float32(1.51)
    assert 0 < y.min() < 1 < y.max() < 4
    assert diabetes.available()


def test_digits_are_scaled_to_plus_minus_one():
    train, test = list(digits.train()()), list(digits.test()())
    assert (len(train), len(test)) == (1437, 360)
    x = np.stack([x for x, _ in train])
    assert (x.shape, x.dtype) == ((1437, digits.feature_num), np.float32)
    assert (x.min(), x.max()) == (-1, 1)
    assert [y for _, y in train[:10]] == list(range(10))
    assert type(train[0][1]) is int
    assert digits.available()


# housing


@needs_data
def test_housing_equals_the_formula_on_its_file(monkeypatch):
    x, y = check_regression(uci_housing, 404, 102)
    table = np.loadtxt(
        (Path(HOME) / HOUSING).read_text().replace('"', "").splitlines()[1:], delimiter=","
    )
    raw = table[:, :13]
    expected = (raw - raw.mean(axis=0)) / (raw.max(axis=0) - raw.min(axis=0))
    np.testing.assert_array_equal(x, expected.astype(np.float32))
    np.testing.assert_array_equal(y[:, 0], table[:, 13].astype(np.float32))
    assert uci_housing.available()
    assert dataset.regression() is uci_housing


@needs_data
def test_housing_does_not_mind_quotes_and_line_ends(home):
    text = (Path(HOME) / HOUSING).read_text().replace('"', "").replace("\n", "\r\n") + "\r\n"
    (home / HOUSING).write_bytes(text.encode())
    assert len(list(uci_housing.train()())) == 404


def cut(text):
    return text[: len(text) // 2]


@needs_data
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "values, expected 14"),
        (lambda text: "\n".join(text.split("\n")[:-2]), "expected 506 samples, got 505"),
        (lambda text: text[:-3], "values differ"),
        (lambda text: text.replace("0.00632", "0.00633", 1), "values differ"),
        (lambda text: text.replace("0.00632", "zero", 1), "zero"),
        (lambda text: text.replace("0.00632", "0.006\0" + "2", 1), ""),
        (lambda text: text.replace("crim", "crime", 1), "expected columns"),
        (lambda text: text.replace("crim", "\xff", 1), "ascii"),
        (lambda text: "", "expected columns"),
    ],
)
def test_damaged_housing_is_refused_by_name(home, damage, message):
    text = damage((Path(HOME) / HOUSING).read_text())
    (home / HOUSING).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError) as error:
        uci_housing.train()
    assert f"{home / HOUSING} is damaged" in str(error.value)
    assert message in str(error.value)


def test_regression_falls_back_to_the_bundled_set(home):
    assert not uci_housing.available()
    assert dataset.regression() is diabetes
    assert diabetes.feature_num == 10 and uci_housing.feature_num == 13


# MNIST


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(home, images, labels, part="train"):
    for file, array in zip(mnist.FILES[part], (images, labels), strict=True):
        (home / file.name).write_bytes(gzip.compress(idx(array)))


def test_mnist_train_reads_the_idx_files(home):
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    images[0, 0, :2] = 0, 255
    labels = np.arange(30) % 10
    assert not mnist.available("train")
    write_mnist(home, images, labels)
    assert mnist.available("train") and not mnist.available("test") and not mnist.available()
    got = list(mnist.train()())
    expected = images.reshape(30, 784).astype(np.float32) / 255 * 2 - 1
    np.testing.assert_allclose(np.stack([x for x, _ in got]), expected, atol=1e-7)
    assert got[0][0][:2].tolist() == [-1, 1]
    assert got[0][0].dtype == np.float32
    assert [y for _, y in got] == labels.tolist()


@needs(*mnist.FILES["test"])
def test_mnist_test_is_the_published_set():
    got = list(mnist.test()())
    assert len(got) == 10000
    assert [y for _, y in got[:10]] == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    x = np.stack([x for x, _ in got])
    assert (x.shape, x.min(), x.max()) == ((10000, 784), -1, 1)


def packed(data):
    return gzip.compress(data, mtime=0)  # the same at any time: these bytes name tests


GOOD = packed(idx(np.zeros((2, 28, 28))))
FLIPPED = bytearray(GOOD)
FLIPPED[-6] ^= 1  # in the CRC


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (b"", "expected an IDX file"),
        (b"not gzip", "gzip"),
        (GOOD[:-10], "ended"),
        (bytes(FLIPPED), "CRC"),
        (packed(b"\0\0"), "expected an IDX file"),
        (packed(b"\0\0\x0d\x01" + bytes(8)), "expected an IDX file"),
        (packed(b"\0\0\x08\x03" + bytes(4)), "ends within its header"),
        (packed(b"\0\0\x08\xff" + bytes(4 * 255)), "got 255 dimensions"),
        (packed(b"\0\0\x08\x03" + b"\xff" * 12), "got 0"),
        (packed(bytes(mnist.MOST_BYTES + 1)), "more than"),
        (packed(idx(np.zeros((2, 28, 28)))[:-1]), "got 1567"),
        (packed(idx(np.zeros((2, 14, 56)))), "pixels"),
    ],
)
def test_damaged_images_are_refused_by_name(home, images, message):
    write_mnist(home, np.zeros((2, 28, 28)), np.zeros(2))
    path = home / mnist.FILES["train"][0].name
    path.write_bytes(images)
    with pytest.raises(DataError) as error:
        mnist.train()
    assert f"{path} is damaged" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("labels", [np.zeros(3), np.array([0, 10]), np.zeros((2, 1)), np.zeros(0)])
def test_labels_that_do_not_fit_the_images_are_refused_by_name(home, labels):
    write_mnist(home, np.zeros((2, 28, 28)), labels)
    with pytest.raises(DataError, match=r"labels-idx1-ubyte\.gz is damaged"):
        mnist.train()


def test_mnist_available_refuses_an_unknown_part(home):
    with pytest.raises(DataError, match="got 'tset'"):
        mnist.available("tset")


# where files come from

CONTENT = bytes(range(256)) * 4000
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def server(monkeypatch):
    """A web server with one file; ``server.half_way`` is waited for in the middle of the file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.requests += 1
            if not self.path.endswith("file.bin"):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.server.content)))
            self.end_headers()
            half = len(self.server.content) // 2
            self.wfile.write(self.server.content[:half])
            self.server.half_way()
            self.wfile.write(self.server.content[half:])

        def log_message(self, *_):
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.content, web.half_way, web.requests = CONTENT, lambda: None, 0
    web.url = f"http://127.0.0.1:{web.server_port}/file.bin"
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield web
    web.shutdown()
    thread.join()
    web.server_close()


def remote(server):
    return files.RemoteFile("file.bin", server.url, SHA256)


def test_a_file_is_downloaded_once_into_the_cache(server, cache, no_home):
    file = remote(server)
    assert files.local_path(file) is None
    assert files.fetch(file) == files.fetch(file) == files.local_path(file) == cache / "file.bin"
    assert (cache / "file.bin").read_bytes() == CONTENT
    assert server.requests == 1


def test_the_data_home_comes_before_the_cache(server, home, cache):
    files.fetch(remote(server))
    (home / "file.bin").write_bytes(b"my own")
    assert files.fetch(remote(server)) == files.local_path(remote(server)) == home / "file.bin"


def test_a_damaged_file_in_the_cache_is_downloaded_again(server, cache, no_home):
    cache.mkdir(parents=True)
    (cache / "file.bin").write_bytes(CONTENT[:-1])
    assert files.fetch(remote(server)).read_bytes() == CONTENT


def test_ranks_that_start_at_once_do_not_see_each_others_halves(server, cache, no_home):
    ranks = 5
    file, seen = remote(server), []
    # In the middle of all downloads there must be no file of the final name.
    meeting = threading.Barrier(ranks, lambda: seen.append(files.local_path(file)), timeout=60)
    server.half_way = meeting.wait
    with ThreadPoolExecutor(ranks) as pool:
        paths = list(pool.map(lambda _: files.fetch(file), range(ranks)))
    assert seen == [None]
    assert set(paths) == {cache / "file.bin"}
    assert (cache / "file.bin").read_bytes() == CONTENT
    assert [p.name for p in cache.iterdir()] == ["file.bin"]


def check_failure(file, cache):
    with pytest.raises(DataError) as error:
        files.fetch(file)
    message = str(error.value)
    for part in (file.name, file.url, "HPCDIST_DATA_HOME", str(cache)):
        assert part in message
    assert "\n" not in message
    return message


def test_a_download_with_a_wrong_checksum_is_refused_and_leaves_nothing(server, cache, no_home):
    server.content = CONTENT[:-1] + b"x"
    check_failure(remote(server), cache)
    assert list(cache.iterdir()) == []


def test_a_page_that_is_gone_is_one_clear_error(server, cache, no_home):
    assert "404" in check_failure(files.RemoteFile("file.bin", server.url + "/gone", SHA256), cache)


def test_a_damaged_cache_without_network_is_said(server, cache, no_home):
    cache.mkdir(parents=True)
    (cache / "file.bin").write_bytes(b"half")
    gone = files.RemoteFile("file.bin", server.url + "/gone", SHA256)
    assert "has a wrong checksum" in check_failure(gone, cache)
    assert (cache / "file.bin").read_bytes() == b"half"


def test_a_data_home_that_is_no_directory_is_said_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv(files.DATA_HOME, str(tmp_path / "typo"))
    with pytest.raises(DataError, match="HPCDIST_DATA_HOME must name a directory"):
        uci_housing.available()


@needs_data
def test_published_checksums_are_those_of_the_files(home):
    import pooch

    for file in (uci_housing.FILE, *mnist.FILES["test"]):
        if (Path(HOME) / file.name).is_file():
            copy = shutil.copy(Path(HOME) / file.name, home)
            algorithm, checksum = file.checksum.split(":")
            assert pooch.file_hash(copy, alg=algorithm) == checksum


def test_synthetic_images_are_the_same_however_many_are_read():
    few = list(synthetic.images(3, classes=4, size=8, seed=5)())
    more = list(synthetic.images(6, classes=4, size=8, seed=5)())
    for (image, label), (again, same) in zip(few, more):
        np.testing.assert_array_equal(image, again)
        assert label == same
    later = list(synthetic.images(2, classes=4, size=8, seed=5, begin=3)())
    np.testing.assert_array_equal(later[0][0], more[3][0])
    assert {image.shape for image, _ in more} == {(3, 8, 8)}
    assert {image.dtype for image, _ in more} == {np.dtype(np.float32)}
    with pytest.raises(DataError, match="size 4 or more"):
        synthetic.images(1, size=2)

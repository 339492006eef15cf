"""Damaged files of data sets, and models with tables: read, or one error that names the file."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.comm.process_manager import launched_size
from hpcdist.dataset import adult, mnist, movielens, text
from hpcdist.errors import CheckpointError, DataError
from hpcdist.launch.data import main as command
from tests.support.forging import damaged, facts_in, mutated, reseal, write_facts

pytestmark = [
    pytest.mark.skipif(launched_size() is not None, reason="one process is enough for it"),
    pytest.mark.usefixtures("in_little_memory"),
]


def images(folder: Path) -> None:
    mnist.read_idx(folder / "images.gz")


def people(folder: Path) -> None:
    assert len(list(adult.train()())) == len(list(adult.test()()))


def ratings(folder: Path) -> None:
    assert list(movielens.train()()) + list(movielens.test()())
    movielens.mean_rating()


def words(folder: Path) -> None:
    path = str(folder / "words.txt")
    ids = text.build_dict(0, path)
    list(text.train(ids, 3, path=path)())


IDX = b"\0\0\x08\x03" + struct.pack(">3I", 5, 28, 28) + bytes(5 * 784)
NAMES = ",".join((*adult.NUMBERS, *adult.categories, "class"))
PEOPLE = (
    f"{NAMES}\n" + "39,13,2174,0,40,a,b,c,d,e,f,g,h,<=50K\n50,13,0,0,13,a,b,c,d,e,f,g,i,>50K\n" * 5
)
RATINGS = "userId,movieId,rating,timestamp\n" + "".join(
    f"{k % 5},{k % 7},{k % 10 / 2 + 0.5},{k}\n" for k in range(60)
)
FILES: dict[Callable[[Path], None], dict[str, bytes]] = {
    images: {"images.gz": gzip.compress(IDX)},
    people: {"adult_train.csv": PEOPLE.encode(), "adult_test.csv": PEOPLE.encode()},
    ratings: {"ml-latest-small-ratings.csv": RATINGS.encode()},
    words: {"words.txt": b"to be or not to be\nthat is the question\n" * 9},
}


@pytest.mark.parametrize("read", FILES, ids=lambda read: read.__name__)
def test_a_damaged_file_is_read_or_refused_by_its_name(tmp_path, monkeypatch, read):
    luck, refused = random.Random(7), 0

    def written(number: int) -> Path:
        """Return a folder of its own: what has been read is kept by its path."""
        folder = tmp_path / f"{number}"
        folder.mkdir()
        monkeypatch.setenv("HPCDIST_DATA_HOME", str(folder))
        for name, data in FILES[read].items():
            (folder / name).write_bytes(data)
        return folder

    read(written(-1))
    for number in range(150):
        name = luck.choice(list(FILES[read]))
        good = FILES[read][name]
        packed = read is images and number % 2
        bad = gzip.compress(damaged(luck, IDX)) if packed else damaged(luck, good)
        folder = written(number)
        (folder / name).write_bytes(bad)
        try:
            read(folder)
        except DataError as error:
            assert name in str(error)
            refused += 1
    assert refused > 30


def test_many_users_of_one_rating_each_take_little_time(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDIST_DATA_HOME", str(tmp_path))
    lines = "".join(f"{k},{k},3\n" for k in range(50_000))
    (tmp_path / "ml-latest-small-ratings.csv").write_text("userId,movieId,rating\n" + lines)
    ratings(tmp_path)


@pytest.mark.parametrize("user", ["1.5", str(1 << 70), "-1", "nan"])
def test_users_are_whole_numbers(tmp_path, monkeypatch, user):
    monkeypatch.setenv("HPCDIST_DATA_HOME", str(tmp_path))
    (tmp_path / "ml-latest-small-ratings.csv").write_text(f"userId,movieId,rating\n{user},1,3\n")
    with pytest.raises(DataError, match="line 2, column userId: expected an integer in 0"):
        ratings(tmp_path)


def test_no_images_of_any_size_are_refused(tmp_path):
    header = b"\0\0\x08\x03" + struct.pack(">3I", 0, (1 << 32) - 1, (1 << 32) - 1)
    (tmp_path / "images.gz").write_bytes(gzip.compress(header))
    with pytest.raises(DataError, match="is damaged"):
        images(tmp_path)


def test_a_file_that_unpacks_to_much_is_refused(tmp_path):
    (tmp_path / "images.gz").write_bytes(gzip.compress(bytes(mnist.MOST_BYTES + 1)))
    with pytest.raises(DataError, match="unpacks to more than"):
        images(tmp_path)


@pytest.mark.parametrize("end", [-1, 1, 1 << 30])
def test_texts_of_an_arrow_file_lie_within_it(tmp_path, end):
    feather = pytest.importorskip("pyarrow.feather", reason="pip install hpcdist[data]")
    import pyarrow as pa

    path = tmp_path / "a.arrow"
    feather.write_feather(pa.table({"w": ["ab", "cd", "ef"]}), path, compression="uncompressed")
    data = path.read_bytes()
    good = struct.pack("<4i", 0, 2, 4, 6)  # where texts begin and end
    assert data.count(good) == 1
    path.write_bytes(data.replace(good, struct.pack("<4i", 0, 2, end, 6)))
    with pytest.raises(DataError, match=r"a\.arrow, record batch 0.*'w' is damaged"):
        list(fluid.data.read(str(path), batch=2, retries=0))


# -- certificates ----------------------------------------------------------------------------------
@pytest.fixture
def certified(tmp_path):
    """Return the certificate of an epoch of 20 rows, in two files of 4 and 16."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install hpcdist[data]")
    import pyarrow as pa

    for number, rows in enumerate((4, 16)):
        pq.write_table(pa.table({"id": np.arange(rows)}), tmp_path / f"{number}.parquet")
    folder = tmp_path / "log"
    rows = fluid.data.read(str(tmp_path / "*.parquet"), batch=5, shuffle=-3, certificate=folder)
    assert len(list(rows)) == 4
    return folder


def test_a_forged_certificate_is_judged_or_refused(certified, capsys):
    luck, refused = random.Random(11), 0
    good = {path: path.read_bytes() for path in certified.iterdir()}
    (taken,) = certified.glob("rows-*.txt")
    for number in range(150):
        path = luck.choice(list(good))
        head, *lines = good[path].decode().split("\n")
        try:
            if number % 3 == 0:
                path.write_bytes(damaged(luck, good[path]))
            elif path == taken and number % 3 == 1:
                words = luck.choice(["-1", "9" * 30, "x", "", "b", "s", str(1 << 40), "nan"])
                at = luck.randrange(len(lines))
                lines[at] = f"{lines[at][: luck.randrange(9)]} {words} {words}"
                path.write_text("\n".join([head, *lines]))
            else:
                path.write_text("\n".join([json.dumps(mutated(luck, json.loads(head))), *lines]))
        except UnicodeEncodeError:
            continue
        try:
            command(["verify", str(certified)])
        except SystemExit as end:
            assert end.code == 1
            refused += 1
        path.write_bytes(good[path])
    assert refused > 70
    command(["verify", str(certified)])
    assert "Traceback" not in capsys.readouterr().out


def test_what_a_certificate_says_is_shown_as_text(certified, capsys):
    (path,) = certified.glob("rows-*.txt")
    path.write_text(path.read_text() + "x \x1b[2J\n")
    command(["verify", str(certified)])
    assert "\x1b" not in capsys.readouterr().out


# -- models with tables ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return (folder, executor) of a saved model with a distributed table."""
    folder = tmp_path_factory.mktemp("model")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup):
        with fluid.unique_name.guard():
            ids = fluid.data("ids", [None, 1], "int64")
            rows = fluid.embedding(ids, [-1, 4], is_sparse=True, is_distributed=True)
            answer = fluid.layers.fc(rows, 2)
            fluid.optimizer.Adam(0.1).minimize(fluid.layers.mean(answer))
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(main, feed={"ids": np.arange(50)[:, None]})
        fluid.io.save_inference_model(str(folder), ["ids"], [answer], exe, main)
    return folder, exe


def test_a_forged_model_with_tables_answers_or_is_refused(model, tmp_path):
    (good, exe), luck, refused = model, random.Random(9), 0
    files = sorted(path.name for path in good.iterdir() if path.suffix != ".lock")
    for number in range(150):
        folder = tmp_path / str(number)
        shutil.copytree(good, folder)
        path = folder / luck.choice([name for name in files if name != ".lock"])
        if number % 4:
            write_facts(path, mutated(luck, facts_in(path)))
            if path.name.startswith("trainer"):
                reseal(folder)
        else:
            path.write_bytes(damaged(luck, path.read_bytes()))
        try:
            with fluid.scope_guard(fluid.Scope()):
                program, feeds, fetches = fluid.io.load_inference_model(str(folder), exe)
                exe.run(program, {feeds[0]: np.arange(-9, 9)[:, None]}, fetches)
        except (CheckpointError, IndexError) as error:
            assert isinstance(error, CheckpointError) or not feeds
            refused += 1
        shutil.rmtree(folder)
    assert refused > 60

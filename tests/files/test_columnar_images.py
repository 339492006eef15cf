"""Columns of encoded images: what they become, alike in any number of processes and trainers."""

import io
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from itertools import islice

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")
pytest.importorskip("PIL", reason="pip install hpcdist[images]")

import pyarrow.parquet as pq  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402

import hpcdist as fluid  # noqa: E402
from hpcdist.data.columnar.verify import verify  # noqa: E402
from hpcdist.errors import DataError  # noqa: E402
from hpcdist.launch.processes import lives  # noqa: E402
from tests.scripts import read_script  # noqa: E402

ROWS = 37
Images = fluid.data.Images


def encoded(pixels, kind="PNG", **how):
    """Return the bytes of a file of some format."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **how)
    return file.getvalue()


def pixels(number, height=12, width=9):
    """Return an image that no other number has."""
    return np.random.RandomState(number).randint(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.fixture
def path(tmp_path):
    """Return a Parquet file of numbered images of several sizes."""
    images = [encoded(pixels(n, 10 + n % 4, 14 - n % 3)) for n in range(ROWS)]
    table = pa.table({"id": range(ROWS), "image": images})
    pq.write_table(table, tmp_path / "images.parquet", row_group_size=8)
    return tmp_path / "images.parquet"


def by_id(batches):
    """Return every row's image by its number."""
    return {int(n): image for batch in batches for n, image in zip(batch["id"], batch["image"])}


def test_images_of_the_right_size_are_as_they_are(tmp_path):
    images = [pixels(n) for n in range(5)]
    table = pa.table({"image": [encoded(image) for image in images]})
    pq.write_table(table, tmp_path / "f.parquet")

    def only(how):
        (batch,) = fluid.data.read(tmp_path / "f.parquet", batch=5, decode={"image": how})
        return batch["image"]

    assert np.array_equal(only(Images((12, 9), layout="HWC")), images)
    assert np.array_equal(only(Images((12, 9))), np.transpose(images, (0, 3, 1, 2)))
    mean, std = np.float32([0.5, 0.4, 0.3]), np.float32([0.2, 0.25, 0.5])
    found = only(Images((12, 9), layout="HWC", mean=mean.tolist(), std=std.tolist()))
    assert found.dtype == np.float32
    assert np.allclose(found, (np.float32(images) / 255 - mean) / std, atol=1e-6)
    grey = [np.asarray(Image.fromarray(image).convert("L")) for image in images]
    assert np.array_equal(only(Images((12, 9), channels=1))[:, 0], grey)
    smaller = [ImageOps.fit(Image.fromarray(i), (4, 6), Image.Resampling.BILINEAR) for i in images]
    assert np.array_equal(only(Images((6, 4), layout="HWC")), [np.asarray(i) for i in smaller])


def test_images_are_turned_as_they_say(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter
    table = pa.table({"image": [encoded(pixels(1), exif=turned)]})
    pq.write_table(table, tmp_path / "f.parquet")
    how = Images((9, 12), layout="HWC")
    (batch,) = fluid.data.read(tmp_path / "f.parquet", batch=1, decode={"image": how})
    assert np.array_equal(batch["image"][0], np.rot90(pixels(1), -1))


def test_what_is_drawn_depends_on_seed_epoch_and_row_alone(path):
    def shuffled(image, random):
        return random.permuted(np.asarray(image), axis=0)

    how = Images((8, 8), crop=0.3, flip=True, color=0.4, apply=shuffled, seed=5)

    def rows(workers=0, how=how, **more):
        return fluid.data.read(
            path, batch=8, shuffle=3, window=20, decode={"image": how}, workers=workers, **more
        )

    expected = by_id(rows())
    assert len(expected) == ROWS and len({v.tobytes() for v in expected.values()}) == ROWS
    parts = [rows(workers).shard(3, k) for k, workers in enumerate((0, 1, 3))]
    started = rows()
    first = by_id(islice(started(), 2))
    again = rows()
    again.resume(started.state(), None)
    divided = {n: image for part in parts for n, image in by_id(part).items()}
    for found in (by_id(rows(2)), divided, first | by_id(again), first | by_id(started())):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[n], expected[n]) for n in expected)
    # Another epoch, another seed.
    next_epoch = by_id(started())
    assert started.epoch == 2
    other_seed = by_id(rows(how=Images((8, 8), crop=0.3, seed=6)))
    same_seed = by_id(rows(how=Images((8, 8), crop=0.3, seed=5)))
    assert not any(np.array_equal(next_epoch[n], expected[n]) for n in next_epoch)
    assert not any(np.array_equal(other_seed[n], same_seed[n]) for n in expected)


def test_half_of_the_images_are_flipped(tmp_path):
    image = pixels(0)
    pq.write_table(pa.table({"image": [encoded(image)] * 200}), tmp_path / "f.parquet")
    how = Images((12, 9), layout="HWC", flip=True)
    (batch,) = fluid.data.read(tmp_path / "f.parquet", batch=200, decode={"image": how})
    flipped = [np.array_equal(found, image[:, ::-1]) for found in batch["image"]]
    kept = [np.array_equal(found, image) for found in batch["image"]]
    assert all(a != b for a, b in zip(flipped, kept)) and 70 < sum(flipped) < 130


def test_a_column_may_hold_names_of_files(tmp_path):
    for n in range(3):
        (tmp_path / f"{n}.png").write_bytes(encoded(pixels(n)))
    (tmp_path / "names.csv").write_text("name,id\n0.png,0\n2.png,2\nmissing.png,3\n1.png,1\n")
    how = {"name": Images((12, 9), layout="HWC", folder=str(tmp_path))}
    with pytest.raises(DataError, match=r"row 2, column 'name': FileNotFoundError"):
        list(fluid.data.read(tmp_path / "names.csv", batch=2, decode=how))
    rows = fluid.data.read(tmp_path / "names.csv", batch=2, decode=how, on_bad="skip")
    found = {int(n): image for b in rows for n, image in zip(b["id"], b["name"])}
    assert {n: found[n].tolist() for n in found} == {n: pixels(n).tolist() for n in range(3)}
    assert len(rows.skipped) == 1


def deep_png():
    """A PNG of one pixel, its colors in 16 bits: Pillow writes none."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0))]
    parts += [(b"IDAT", zlib.compress(b"\0" + bytes(6))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_images_are_bad_rows(tmp_path, workers):
    whole = encoded(pixels(1), "JPEG")
    deep = encoded(np.full((12, 9), 40000, np.uint16))
    in_color = b"P6\n9 12\n65535\n" + bytes(12 * 9 * 3 * 2)
    images = [whole, whole[:200], whole, b"no image", deep, whole, in_color, deep_png()]
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"id": range(8), "image": images}), path, row_group_size=4)
    how = {"image": Images((12, 9))}
    with pytest.raises(DataError, match=r"f.parquet, row group 0, row 1, column 'image': .*runc"):
        list(fluid.data.read(path, batch=2, decode=how, workers=workers))
    log = tmp_path / "log"
    rows = fluid.data.read(
        path, batch=3, decode=how, workers=workers, on_bad="skip", certificate=log
    )
    assert sorted(by_id(rows)) == [0, 2, 5]
    said = [str(skip).split(": ", 1) for skip in rows.skipped]
    assert [where.removeprefix(f"{path}, ") for where, _ in said] == [
        "row group 0, row 1, column 'image'",
        "row group 0, row 3, column 'image'",
        "row group 1, row 0, column 'image'",
        "row group 1, row 2, column 'image'",
        "row group 1, row 3, column 'image'",
    ]
    assert all("more than 8 bits" in reason for _, reason in said[2:])
    (verdict,) = verify(log)
    (epoch,) = verdict.epochs
    assert (epoch.used, epoch.complete, verdict.damage) == (3, True, [])


def test_a_process_that_dies_is_named(path):
    def dies(image, random):
        os.kill(os.getpid(), signal.SIGKILL)

    how = {"image": Images((8, 8), apply=dies)}
    with pytest.raises(DataError, match="a process that decodes column 'image' has died"):
        list(fluid.data.read(path, batch=8, decode=how, workers=2))


def test_a_loop_that_is_left_ends_its_processes(path, tmp_path):
    def noted(image, random):
        (tmp_path / f"{os.getpid()}.pid").touch()
        return image

    how = {"image": Images((8, 8), apply=noted)}
    batches = fluid.data.read(path, batch=8, decode=how, workers=2)()
    next(batches)
    batches.close()
    await_end(tmp_path)


def await_end(folder):
    """Wait until the processes that have noted themselves are gone."""
    processes = [int(file.stem) for file in folder.glob("*.pid")]
    assert processes
    until = time.monotonic() + 60
    while any(map(lives, processes)):
        assert time.monotonic() < until, processes
        time.sleep(0.01)


SCRIPT = read_script("reads_images")


def test_processes_do_not_outlive_a_rank_that_is_killed(path, tmp_path):
    ended = subprocess.run([sys.executable, "-c", SCRIPT, path], cwd=tmp_path, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    await_end(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 224}, r"size must be \(height, width\), got 224"),
        ({"size": (0, 5)}, r"size must be \(height, width\)"),
        ({"channels": 4}, r"channels must be 3 \(RGB\) or 1 \(grey\), got 4"),
        ({"layout": "NCHW"}, "layout must be 'CHW' or 'HWC'"),
        ({"crop": 1.5}, "crop must be a share of the area"),
        ({"color": 2}, "color must be 0..1"),
        ({"mean": [0.5] * 3}, "give both mean and std"),
        ({"mean": [0.5], "std": [1.0]}, "mean must be 3 numbers, one for each channel"),
        ({"mean": [0.5] * 3, "std": [1, 0, 1]}, "std must be > 0"),
        ({"mean": 0.5, "std": 0.5}, "mean must be 3 numbers, one for each channel"),
        ({"crop": "half"}, "crop must be a share of the area"),
        ({"color": True}, "color must be 0..1"),
        ({"apply": 3}, "apply must be a function"),
        ({"seed": "7"}, "seed must be an integer"),
    ],
)
def test_images_that_cannot_be_meant_are_refused(arguments, said):
    with pytest.raises(DataError, match=said):
        Images(**{"size": (8, 8)} | arguments)


def test_images_need_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r"needs Pillow: python -m pip install 'pillow>="):
        Images((8, 8))


def test_variables_have_the_shape_of_the_images(path):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        right = fluid.data("image", [None, 3, 8, -1], "float32")
        turned = fluid.data("turned", [None, 8, 8, 3], "float32")
    (batch, *_) = fluid.data.read(
        path, batch=30, feed_list=[right], decode={"image": Images((8, 6))}
    )
    assert batch["image"].shape == (30, 3, 8, 6) and batch["image"].dtype == np.float32
    with pytest.raises(DataError, match=r"takes rows of shape \(8, 8, 3\), Images .* \(3, 8, 8\)"):
        fluid.data.read(
            path,
            {"turned": "image"},
            batch=4,
            feed_list=[turned],
            decode={"image": Images((8, 8))},
        )
    wrong = Images((8, 8), apply=lambda image, random: np.zeros((8, 8, 3)))
    with pytest.raises(DataError, match=r"apply must return an image of size \(8, 8\), 3 chan.*64"):
        list(fluid.data.read(path, batch=4, decode={"image": wrong}, on_bad="skip"))

"""Writing a file, and bringing it to disk meanwhile: what HDF5 reads back, and errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from functools import partial

import h5py
import numpy as np
import pytest

from hpcdist.checkpoint import Checkpoint, background, latest
from hpcdist.checkpoint.background import NICER, Background, Worker
from hpcdist.checkpoint.compressed import Unpacker
from hpcdist.checkpoint.layout import CHUNK_BYTES
from hpcdist.checkpoint.metadata import Part
from hpcdist.checkpoint.read import StoredFile, run
from hpcdist.checkpoint.write import Entry, write_part
from hpcdist.errors import CheckpointError
from tests.scripts import read_script

PART = Part("trainer 0", 1, "program", ())


def arrays() -> dict[str, np.ndarray]:
    """Return arrays of one chunk and of many, that fill their last chunk or do not, and of none."""
    generator = np.random.default_rng(0)
    rows = CHUNK_BYTES // 4
    return {
        "one": np.arange(1.0),
        "none": np.empty((0, 3), np.float32),
        "whole": generator.random(4 * rows, dtype=np.float32),
        "short": generator.random((9 * rows // 1000 + 1, 1000), dtype=np.float32),
        "deep/wide": generator.random((3, 2, rows + 5), dtype=np.float32),
        "odd": generator.integers(0, 256, CHUNK_BYTES + 3, np.uint8),
        "last": np.arange(7),
    }


def write(path, found, compression=None):
    entries = (Entry(name, array, {"name": name}) for name, array in found.items())
    return write_part(path, lambda: PART, entries, compression)


def helpers() -> list[str]:
    names = [t.name for t in threading.enumerate() if t.name.startswith("hpcdist-")]
    return [name for name in names if name != "hpcdist-lock"]  # which lives as long as a lock


def test_hdf5_reads_what_was_written(tmp_path):
    found = arrays()
    write(tmp_path / "part.h5", found)
    with h5py.File(tmp_path / "part.h5") as file:
        for name, array in found.items():
            assert file[name][:].tobytes() == array.tobytes()
    with StoredFile(tmp_path / "part.h5") as file:
        run(list(file.check_data()))
        for name, array in found.items():
            out = np.zeros_like(array)
            run(file.jobs(name, 0, len(array), out))
            assert out.tobytes() == array.tobytes()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_an_error_of_the_disk_beside_writing_ends_the_file(monkeypatch, tmp_path, compression):
    if compression:
        pytest.importorskip("hdf5plugin")

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(background, "SYNC_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(CheckpointError, match=r"part\.h5: cannot be written: .*error"):
        write(tmp_path / "part.h5", arrays(), compression)
    assert not list(tmp_path.iterdir())
    assert not helpers()


def test_a_worker_makes_calls_in_order_and_hands_on_their_errors():
    made = []
    worker = Worker("test")
    futures = [worker.submit(made.append, i) for i in range(50)]
    failed = worker.submit(int, "x")
    after = worker.submit(threading.get_ident)
    with pytest.raises(ValueError, match="'x'"):
        failed.result(timeout=60)
    assert after.result(timeout=60) != threading.get_ident()
    worker.close()
    assert made == list(range(50)) and all(f.done() for f in futures)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_work_beside_training_and_its_helpers_let_training_go_first():
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def work() -> None:
        worker = Worker("test")
        found.extend([priority(), worker.submit(priority).result(timeout=60)])
        worker.close()

    found: list[int] = []
    before = priority()
    background = Background()
    background.start(work)
    background.wait()
    assert found == [min(before + NICER, 19)] * 2
    assert priority() == before


def test_a_worker_without_a_thread_makes_calls_at_once(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    worker = Worker("test")
    assert worker.submit(threading.get_ident).result(timeout=0) == threading.get_ident()
    worker.close()


def test_a_checkpoint_is_finished_while_the_interpreter_ends(tmp_path):
    script = read_script("saves_at_exit")
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with Checkpoint(latest(tmp_path)) as saved:
        assert saved.saved("fc_0.w_0").shape == (1000, 3000)


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_threads_make_every_call_once_and_finish_what_others_have_not_begun(count):
    made, last = [], threading.Event()

    def job(i):
        if i == 0 and count > 1:  # as slow as all others together
            assert last.wait(60)
        made.append(i)
        if len(made) == count - 1:
            last.set()

    run([partial(job, i) for i in range(count)])
    assert sorted(made) == list(range(count))


@pytest.mark.parametrize(
    ("error", "seen", "match"),
    [
        (IndexError("of a call"), IndexError, "of a call"),
        (OSError(errno.EIO, "the disk"), CheckpointError, "cannot be read.*the disk"),
    ],
)
def test_an_error_in_a_thread_ends_all_calls(error, seen, match):
    def fail():
        raise error

    for jobs in ([fail], [fail] * 20, [lambda: None] * 20 + [fail]):
        with pytest.raises(seen, match=match):
            run(jobs)
    assert not helpers()


def test_threads_unpack_chunks_beside_each_other(tmp_path):
    found = arrays()
    write(tmp_path / "part.h5", found, "zstd")
    with StoredFile(tmp_path / "part.h5") as file:
        out = np.zeros_like(found["one"])
        (job,) = file.jobs("one", 0, len(out), out)
        with Unpacker(8, "another thread"):
            job()
    assert out.tobytes() == found["one"].tobytes()

"""Saving and restoring a process: the bits of an uninterrupted run, and clear errors."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint
from hpcdist.checkpoint.background import Background
from hpcdist.checkpoint.directories import directory_of, steps
from hpcdist.checkpoint.layout import Head, parse_head, path_of
from hpcdist.checkpoint.manifest import check_names
from hpcdist.checkpoint.read import StoredFile
from hpcdist.errors import CheckpointError

SAMPLES = [np.full((4,), i, np.float32) / 50 for i in range(48)]


class Run:
    """A training loop with dropout, a schedule and a shuffled reader, in a scope of its own."""

    def __init__(self, root):
        self.root, self.scope = root, fluid.Scope()
        self.main, startup = fluid.Program(), fluid.Program()
        startup.random_seed = 4
        with fluid.program_guard(self.main, startup), fluid.unique_name.guard():
            x = fluid.data("x", [None, 4])
            hidden = fluid.layers.dropout(fluid.layers.fc(x, 16, act="relu"), 0.5)
            self.loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(hidden, 2)))
            rate = fluid.layers.exponential_decay(0.1, 3, 0.7)
            fluid.optimizer.Adam(rate).minimize(self.loss)
        self.exe = fluid.Executor()
        self.exe.run(startup, scope=self.scope)
        shuffled = fluid.reader.shuffle(lambda: iter(SAMPLES), 48)
        self.reader = checkpoint.resumable(fluid.batch(shuffled, 8))
        self.how = {"reader": self.reader, "scope": self.scope}

    def train(self, begin, end, save_at=(), **how):
        losses, step = [], begin
        while step < end:
            for rows in self.reader():
                feed = {"x": np.stack(rows)}
                losses.append(self.exe.run(self.main, feed, [self.loss], scope=self.scope)[0])
                step += 1
                if step in save_at:
                    checkpoint.save(self.exe, self.root, step, self.main, **self.how, **how)
                if step == end:
                    break
        return [loss.tobytes() for loss in losses]

    def restore(self):
        return checkpoint.restore(self.exe, self.root, self.main, **self.how)


@pytest.fixture(autouse=True)
def own_luck():
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(9)
    yield
    random.setstate(python)
    np.random.set_state(numpy)


@pytest.mark.parametrize("at", [3, 6, 10])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_restored_run_makes_the_bits_of_an_uninterrupted_one(tmp_path, at, asynchronous):
    run = Run(tmp_path)
    whole = run.train(0, 15, save_at=[at], extra={"at": at}, asynchronous=asynchronous)
    checkpoint.wait()
    random.seed(1234)
    again = Run(tmp_path)
    saved = again.restore()
    assert (saved.step, saved.extra, saved.path) == (at, {"at": at}, directory_of(tmp_path, at))
    assert again.train(at, 15) == whole[at:]


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path):
    assert Run(tmp_path / "none").restore() is None
    assert checkpoint.latest(tmp_path / "none") is None


def test_as_many_checkpoints_stay_as_are_kept(tmp_path):
    run = Run(tmp_path)
    (tmp_path / "step-000001").mkdir()  # of a save that was killed
    run.train(0, 6, save_at=range(2, 7), keep=2)
    assert [step for step, _ in steps(tmp_path)] == [5, 6]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-000005", "step-000006"]
    with pytest.raises(CheckpointError, match="keep: expected at least 1 checkpoint, got 0"):
        checkpoint.save(run.exe, tmp_path, 7, run.main, keep=0, **run.how)


def test_an_asynchronous_save_holds_what_was_there_when_it_was_called(tmp_path):
    run = Run(tmp_path)
    value = run.scope.find_var("fc_0.w_0").value
    before = value.copy()
    checkpoint.save(run.exe, tmp_path, 1, run.main, asynchronous=True, **run.how)
    value[...] = 0
    checkpoint.wait()
    with checkpoint.Checkpoint(tmp_path / "step-000001") as saved:
        assert (saved.read("fc_0.w_0") == before).all()


def test_an_asynchronous_save_that_fails_says_so_at_the_next(tmp_path):
    run = Run(tmp_path)
    checkpoint.save(run.exe, tmp_path, 1, run.main, **run.how)
    how = {"asynchronous": True, "compression": "snappy", **run.how}
    checkpoint.save(run.exe, tmp_path, 2, run.main, **how)
    with pytest.raises(CheckpointError, match="compression: expected one of lz4, zstd or None"):
        checkpoint.wait()
    checkpoint.save(run.exe, tmp_path, 3, run.main, **run.how)
    assert [step for step, _ in steps(tmp_path)] == [1, 3]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    run = Run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file for checkpoints .* a file has this name"):
        checkpoint.save(run.exe, tmp_path / "file", 1, run.main, **run.how)
    with pytest.raises(CheckpointError, match="not plain data"):
        checkpoint.save(run.exe, tmp_path, 1, run.main, extra=object(), **run.how)
    assert steps(tmp_path) == []


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_checkpoints_come_back(tmp_path, compression):
    pytest.importorskip("hdf5plugin")
    run = Run(tmp_path)
    want = run.scope.find_var("fc_0.w_0").value.copy()
    path = checkpoint.save(run.exe, tmp_path, 1, run.main, compression=compression, **run.how)
    with checkpoint.Checkpoint(path) as saved:
        assert (saved.read("fc_0.w_0") == want).all()
        part, name = saved.files[0].path, saved.facts.pieces[0].path
        at = saved.files[0].stored(name).offsets[0]
    data = bytearray(part.read_bytes())
    data[at + 3] ^= 1
    part.write_bytes(data)
    with checkpoint.Checkpoint(path) as saved, pytest.raises(CheckpointError, match="chunk 0"):
        saved.read(saved.facts.pieces[0].name)


def test_a_reader_over_other_data_is_refused(tmp_path):
    run = Run(tmp_path)
    run.train(0, 4, save_at=[4])
    other = checkpoint.resumable(lambda: iter([[SAMPLES[0]]]))
    with pytest.raises(CheckpointError, match="had given 4 batches of epoch 0 .* ends after 1"):
        checkpoint.restore(run.exe, tmp_path, run.main, reader=other, scope=run.scope)


def test_a_checkpoint_of_an_epochs_last_batch_goes_on_with_the_next_epoch(tmp_path):
    run = Run(tmp_path)
    whole = run.train(0, 18, save_at=[12])  # 6 batches each
    again = Run(tmp_path)
    again.restore()
    assert (again.reader.epoch, again.reader.position) == (2, 0)
    passes = []
    for rows in again.reader():
        passes.append(rows)
    assert len(passes) == 6 and again.reader.epoch == 3
    again = Run(tmp_path)
    again.restore()
    assert again.train(12, 18) == whole[12:]


def test_a_program_that_differs_is_refused_by_the_name_of_its_variable(tmp_path):
    Run(tmp_path).train(0, 1, save_at=[1])
    other, startup, exe = fluid.Program(), fluid.Program(), fluid.Executor()
    with fluid.program_guard(other, startup), fluid.unique_name.guard():
        fluid.layers.fc(fluid.data("x", [None, 5]), 16)
    for run_startup in (False, True):
        with fluid.scope_guard(fluid.Scope()):
            if run_startup:
                exe.run(startup)
            with pytest.raises(CheckpointError, match=r"'fc_0.w_0' is float32\[4, 16\], expected"):
                checkpoint.restore(exe, tmp_path, other)


# -- pieces of it ------------------------------------------------------------------------------
def test_work_beside_training_raises_its_error_once():
    background, go = Background(), threading.Event()
    background.start(go.wait)
    assert background.busy
    go.set()
    background.wait()

    def fail():
        raise CheckpointError("no space")

    background.start(fail)
    with pytest.raises(CheckpointError, match="no space"):
        background.start(fail)
    background.wait()


def test_names_that_hdf5_cannot_hold_side_by_side_are_refused():
    check_names(["a/b", "a/c", "b"])
    with pytest.raises(CheckpointError, match="'a' and 'a/b' cannot be saved together"):
        check_names(["a/b", "a"])
    assert path_of("scope/w_0") == "scope/w_0"
    assert len({path_of(n) for n in ("a/./b", "a//b", "a/%/b", "./a", "", "a/%2E/b")}) == 6


def test_a_head_is_read_as_written_and_nothing_else():
    head = Head(600, 10, "ab", 9000, "cd")
    assert parse_head(head.encode(), "f") == head
    for data in (b"\x89HDF\r\n\x1a\n" + bytes(504), bytes(512), b""):
        with pytest.raises(CheckpointError, match="f: not a checkpoint of hpcdist"):
            parse_head(data, "f")
    with pytest.raises(CheckpointError, match="f: written in version '7' of the format"):
        parse_head(head.encode().replace(b"checkpoint 1", b"checkpoint 7"), "f")
    with pytest.raises(CheckpointError, match="f: its head is damaged"):
        parse_head(head.encode().replace(b"600", b"601"), "f")


def test_a_part_is_no_checkpoint(tmp_path):
    run = Run(tmp_path)
    path = checkpoint.save(run.exe, tmp_path, 1, run.main, **run.how)
    with pytest.raises(CheckpointError, match="is a single part of a checkpoint"):
        checkpoint.Checkpoint(next(path.glob("trainer-*")))
    with pytest.raises(CheckpointError, match="no such file or directory"):
        checkpoint.Checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="No such file"):
        StoredFile(tmp_path / "nowhere")


def test_a_script_that_trains_another_program_than_the_default_must_give_it(tmp_path):
    exe = fluid.Executor()
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        for call in (
            lambda: checkpoint.save(exe, tmp_path, 1),
            lambda: checkpoint.restore(exe, tmp_path),
        ):
            with pytest.raises(CheckpointError, match="main_program: expected the Program that"):
                call()
    assert not any(tmp_path.iterdir())


# -- checkpoints that cannot be read ---------------------------------------------------------------
def hide(path):
    """Move a part of a checkpoint away; return what brings it back."""
    part = next(path.glob("trainer-*"))
    aside = path.parent / "aside"
    part.rename(aside)
    return lambda: aside.rename(part)


def test_checkpoints_that_cannot_be_read_are_not_none(tmp_path):
    run = Run(tmp_path)
    run.train(0, 2, save_at=[1, 2], keep=2)
    back = [hide(directory_of(tmp_path, 2))]
    assert checkpoint.latest(tmp_path) == directory_of(tmp_path, 1)
    (directory_of(tmp_path, 1) / "manifest.h5").write_text("nothing")
    for what in (lambda: checkpoint.latest(tmp_path), run.restore):
        with pytest.raises(CheckpointError, match="has 2 checkpoints, none of which can be read"):
            what()
    (directory_of(tmp_path, 1) / "manifest.h5").unlink()
    with pytest.raises(CheckpointError, match="has 2 checkpoints, none of which can be read"):
        checkpoint.latest(tmp_path)
    back[0]()
    assert run.restore().step == 2


def test_what_cannot_be_read_is_not_deleted_and_does_not_count(tmp_path, caplog):
    run = Run(tmp_path)
    run.train(0, 3, save_at=[1, 2, 3], keep=9)
    back = hide(directory_of(tmp_path, 2))
    run.train(3, 4, save_at=[4], keep=2)
    assert [step for step, _ in steps(tmp_path)] == [2, 3, 4]
    assert "not deleting a checkpoint that cannot be read" in caplog.text
    back()
    run.train(4, 5, save_at=[5], keep=2)
    assert [step for step, _ in steps(tmp_path)] == [4, 5]


def test_a_directory_whose_manifest_was_moved_away_is_not_deleted(tmp_path):
    run = Run(tmp_path)
    run.train(0, 1, save_at=[1])
    (directory_of(tmp_path, 1) / "manifest.h5").rename(tmp_path / "aside")
    run.train(1, 3, save_at=[2, 3], keep=1)
    (tmp_path / "aside").rename(directory_of(tmp_path, 1) / "manifest.h5")
    with checkpoint.Checkpoint(directory_of(tmp_path, 1)) as found:
        assert found.step == 1


def test_what_crashes_have_left_is_deleted(tmp_path):
    run = Run(tmp_path)
    run.train(0, 3, save_at=[1, 2, 3])
    unfinished, deleted = directory_of(tmp_path, 1), directory_of(tmp_path, 2)
    (unfinished / "manifest.h5").unlink()
    (unfinished / "unfinished").touch()
    deleted.rename(deleted.with_name("step-000002.pruned"))
    run.train(3, 4, save_at=[4], keep=9)
    assert sorted(p.name for p in tmp_path.glob("step*")) == ["step-000003", "step-000004"]

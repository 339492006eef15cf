"""Every file that replaces another: whole and on disk, or what was there before."""

from __future__ import annotations

import ast
import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint
from hpcdist.base.replaced import in_place_of, make_folders, write_whole
from hpcdist.data.columnar.vocabulary import Vocabulary
from hpcdist.errors import CheckpointError

PACKAGE = Path(fluid.__file__).parent
# Renaming that replaces nothing: a lock, and a checkpoint that is deleted, are moved aside; scripts
# rename what they want through fleet's file systems.
MOVED_ASIDE = {"base/replaced.py", "checkpoint/lock.py", "checkpoint/checkpoint.py"}
MOVED_ASIDE |= {"fluid/fleet/file_systems.py"}


class Net:
    """One layer, whose weights are all equal to a number."""

    def __init__(self):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(self.main, startup), fluid.unique_name.guard():
            self.x = fluid.data("x", [None, 3])
            self.out = fluid.layers.fc(self.x, 2, bias_attr=False)
            fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(self.out))
        self.exe = fluid.Executor()
        self.exe.run(startup, scope=self.scope)

    def set(self, number):
        self.scope.find_var("fc_0.w_0").value[...] = number

    def value(self):
        return float(self.scope.find_var("fc_0.w_0").value[0, 0])


@pytest.fixture
def net():
    made = Net()
    with fluid.scope_guard(made.scope), fluid.program_guard(made.main):
        yield made


def save_checkpoint(net, root):
    checkpoint.save(net.exe, root, 1, net.main)


def restore_checkpoint(net, root):
    assert checkpoint.restore(net.exe, root, net.main).step == 1


def save_model(net, root, **how):
    fluid.io.save_inference_model(root, ["x"], [net.out], net.exe, net.main, **how)


def load_model(net, root, **how):
    fluid.io.load_inference_model(root, net.exe, **how)


# (save, load) of all ways to write parameters.
WAYS = {
    "checkpoint": (save_checkpoint, restore_checkpoint),
    "hdf5": (
        lambda net, root: fluid.io.save_params(net.exe, root, net.main),
        lambda net, root: fluid.io.load_params(net.exe, root, net.main),
    ),
    "fluid, one file": (
        lambda net, root: fluid.io.save_params(
            net.exe, root, net.main, filename="all", format="fluid"
        ),
        lambda net, root: fluid.io.load_params(net.exe, root, net.main, filename="all"),
    ),
    "fluid, a file each": (
        lambda net, root: fluid.io.save_params(net.exe, root, net.main, format="fluid"),
        lambda net, root: fluid.io.load_params(net.exe, root, net.main),
    ),
    "state": (
        lambda net, root: fluid.save(net.main, f"{root}/net"),
        lambda net, root: fluid.load(net.main, f"{root}/net", net.exe),
    ),
    "model": (save_model, load_model),
    "fluid's model": (lambda net, root: save_model(net, root, format="fluid"), load_model),
}
ONE_BY_ONE = {"state", "model", "fluid's model"}  # each of their files is a whole one


class Disk:
    """A disk that answers to fsync: from a call on with an error, maybe of directories only."""

    def __init__(self, monkeypatch, number, begin=0, directories=False):
        self.calls = 0
        self._begin, self._number, self._directories = begin, number, directories
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) or not self._directories:
            self.calls += 1
            if self.calls > self._begin:
                raise OSError(self._number, os.strerror(self._number))
        self._fsync(descriptor)


def files_below(root):
    return {p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("directories", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_saved_before_stays_if_the_disk_refuses_a_later_save(
    net, tmp_path, monkeypatch, way, directories, links
):
    """Whichever fsync fails first: that of a part, of a manifest, or of the directory after it."""
    save, load = WAYS[way]
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    net.set(1)
    save(net, tmp_path)
    before = files_below(tmp_path)
    for begin in range(20):
        net.set(2)
        with monkeypatch.context() as patched:
            disk = Disk(patched, errno.ENOSPC, begin, directories)
            try:
                save(net, tmp_path)
            except CheckpointError as error:
                assert "cannot be" in str(error) and "No space" in str(error)
            else:
                assert disk.calls <= begin
                break
        net.set(3)
        load(net, tmp_path)
        assert net.value() == 1 or way in ONE_BY_ONE
        assert files_below(tmp_path) == before or way in ONE_BY_ONE
    else:
        pytest.fail("every save failed")
    assert begin > 0
    load(net, tmp_path)
    assert net.value() == 2


def refuse(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("way", WAYS)
def test_nothing_stands_of_a_first_save_that_the_disk_refuses(net, tmp_path, monkeypatch, way):
    save, _ = WAYS[way]
    Disk(monkeypatch, errno.EIO, directories=True)
    with pytest.raises(CheckpointError, match="cannot be"):
        save(net, tmp_path / "new")
    assert not list(tmp_path.rglob("*.h5")) and checkpoint.latest(tmp_path / "new") is None


def test_the_older_checkpoint_stays_the_latest_if_the_directory_of_a_newer_one_is_refused(
    net, tmp_path, monkeypatch
):
    save_checkpoint(net, tmp_path)
    for begin in range(3):  # its name, that of its part, that of its manifest
        with monkeypatch.context() as patched:
            Disk(patched, errno.EIO, begin, directories=True)
            with pytest.raises(CheckpointError, match="cannot be"):
                checkpoint.save(net.exe, tmp_path, 2, net.main, keep=1)
        assert checkpoint.latest(tmp_path) == tmp_path / "step-000001"
        assert not (tmp_path / "step-000002").exists()


def test_a_checkpoint_stays_if_its_deletion_is_refused(net, tmp_path, monkeypatch):
    for step in (1, 2):
        checkpoint.save(net.exe, tmp_path, step, net.main)
    Disk(monkeypatch, errno.EIO, begin=3, directories=True)
    checkpoint.save(net.exe, tmp_path, 3, net.main, keep=1)
    for step in (1, 2, 3):
        with checkpoint.Checkpoint(tmp_path / f"step-{step:06d}") as found:
            assert found.step == step


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
@pytest.mark.parametrize("way", WAYS)
def test_file_systems_that_cannot_sync_directories_are_saved_to(
    net, tmp_path, monkeypatch, way, number
):
    save, load = WAYS[way]
    Disk(monkeypatch, number, directories=True)
    monkeypatch.setattr(os, "link", refuse)
    for number in (1, 2):
        net.set(number)
        save(net, tmp_path)
        net.set(3)
        load(net, tmp_path)
        assert net.value() == number


def test_parts_that_the_manifest_names_are_never_deleted(net, tmp_path):
    save_checkpoint(net, tmp_path)
    directory = tmp_path / "step-000001"
    before = files_below(directory)
    checkpoint.checkpoint.drop_attempts(directory, 100)
    assert files_below(directory) == before


def test_a_vocabulary_is_whole_or_what_it_was(tmp_path, monkeypatch):
    Vocabulary(["a", "b"]).save(tmp_path / "words")
    Disk(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        Vocabulary(["c"]).save(tmp_path / "words")
    assert Vocabulary.load(tmp_path / "words").words == ("a", "b")
    assert os.listdir(tmp_path) == ["words"]


def test_what_crashes_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    kept = {"file.0123456789abcde.tmp", "file.tmp", "other.0123456789abcdef.tmp"}
    for name in (*kept, "file.0123456789abcdef.tmp"):
        (tmp_path / name).touch()
    with in_place_of(path) as first:
        os.write(first, b"1")
        write_whole(path, b"2", durable=True)  # another process, while this one writes
        assert path.read_bytes() == b"2"
    assert path.read_bytes() == b"1"
    assert {*os.listdir(tmp_path)} == {"file", *kept}


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret").write_bytes(b"kept")
    monkeypatch.setattr("secrets.token_hex", lambda n: "0" * 2 * n)
    (tmp_path / "file.0000000000000000.tmp").symlink_to("secret")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", b"x")
    (tmp_path / "link").symlink_to("secret")
    monkeypatch.undo()
    write_whole(tmp_path / "link", b"x", durable=True)
    assert (tmp_path / "secret").read_bytes() == b"kept"


def test_folders_are_on_disk_or_gone(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        Disk(patched, errno.EIO, begin=1, directories=True)
        with pytest.raises(OSError, match="Input/output"):
            make_folders(tmp_path / "a" / "b" / "c")
    assert not list(tmp_path.iterdir())
    disk = Disk(monkeypatch, errno.EIO, begin=3, directories=True)
    make_folders(tmp_path / "a" / "b" / "c")
    assert disk.calls == 3 and np.all((tmp_path / "a" / "b" / "c").is_dir())


def renames(text):
    """Return the lines that rename or replace files."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return [
        node.lineno
        for node in calls
        if isinstance(node.func, ast.Attribute)
        and (
            (ast.unparse(node.func) in ("os.replace", "os.rename", "os.link", "shutil.move"))
            or (node.func.attr == "replace" and len(node.args) == 1 and not node.keywords)
            or (node.func.attr == "rename" and "path" in ast.unparse(node.func.value).lower())
        )
    ]


def test_all_files_that_replace_others_are_written_by_one_module():
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if renames(path.read_text(encoding="utf-8"))
    }
    assert found <= MOVED_ASIDE
    assert renames("temporary.replace(path)\nos.replace(a, b)") == [1, 2]


def test_names_that_are_no_utf8_are_written_escaped(tmp_path):
    write_whole(tmp_path / "told", "in b\udcc3cher")
    assert (tmp_path / "told").read_text("ascii") == r"in b\udcc3cher"

"""Damaged checkpoints give one clear error; saves that are killed leave the one before."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import Checkpoint, latest, save
from hpcdist.checkpoint.directories import directory_of
from hpcdist.comm.process_manager import launched_size
from hpcdist.errors import CheckpointError
from tests.cases.checkpoint import Servers, build
from tests.support.jobs import clean_environment

pytestmark = pytest.mark.skipif(launched_size() is not None, reason="one process is enough for it")
MUTATIONS = 1000
KILLS = 200


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return two checkpoints of one job (steps 1 and 2) and their values by name."""
    root = tmp_path_factory.mktemp("saved")
    main, startup = build(size=700, rows=1500, width=12)
    servers, values = Servers(main, startup, 2, tables=True), []
    for step in (1, 2):
        whole = {}
        servers.fill(whole)
        for value in whole.values():
            value += step
        servers.fill(whole)
        servers.save(root / str(step), step=step)
        values.append(whole)
    return root, values


def flip(luck, directory, other):
    file = luck.choice(sorted(directory.iterdir()))
    data = bytearray(file.read_bytes())
    at = luck.randrange(len(data))
    data[at] ^= 1 << luck.randrange(8)
    file.write_bytes(data)


def flip_in_the_head(luck, directory, other):
    file = luck.choice(sorted(directory.iterdir()))
    data = bytearray(file.read_bytes())
    data[luck.randrange(512)] ^= 1 << luck.randrange(8)
    file.write_bytes(data)


def truncate(luck, directory, other):
    file = luck.choice(sorted(directory.iterdir()))
    os.truncate(file, luck.randrange(file.stat().st_size))


def lengthen(luck, directory, other):
    with open(luck.choice(sorted(directory.iterdir())), "ab") as file:
        file.write(luck.randbytes(luck.randrange(1, 2000)))


def overwrite(luck, directory, other):
    file = luck.choice(sorted(directory.iterdir()))
    data = bytearray(file.read_bytes())
    length = luck.randrange(1, 4000)
    at = luck.randrange(max(1, len(data) - length))
    new = luck.choice([bytes(length), b"\xff" * length, luck.randbytes(length)])[: len(data) - at]
    if data[at : at + length] == new:
        new = bytes([new[0] ^ 1]) + new[1:]
    data[at : at + len(new)] = new
    file.write_bytes(data)


def swap_parts(luck, directory, other):
    a, b = directory / "server-0-of-2.1.h5", directory / "server-1-of-2.1.h5"
    kept = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(kept)


def take_another_s_part(luck, directory, other):
    file = luck.choice(sorted(directory.iterdir()))
    shutil.copy(other / file.name, file)


def foreign(luck, directory, other):
    file = luck.choice(sorted(directory.iterdir()))
    if luck.random() < 0.5:
        file.write_bytes(luck.randbytes(luck.randrange(3000)))
        return
    with h5py.File(file, "w") as made:
        made["fc_0.w_0"] = np.zeros((13, 700), np.float32)


def remove(luck, directory, other):
    luck.choice(sorted(directory.iterdir())).unlink()


KINDS = [
    *(flip,) * 8,
    *(flip_in_the_head,) * 2,
    *(truncate,) * 3,
    lengthen,
    *(overwrite,) * 3,
    swap_parts,
    take_another_s_part,
    foreign,
    remove,
]


def test_a_thousand_mutations_give_an_error_that_names_a_file(saved, tmp_path):
    root, values = saved
    luck = random.Random(8)
    names = {file.name for file in (root / "1").iterdir()}
    for number in range(MUTATIONS):
        directory = tmp_path / "mutated"
        shutil.copytree(root / "1", directory)
        kind = KINDS[number % len(KINDS)]
        kind(luck, directory, root / "2")
        with pytest.raises(CheckpointError) as caught, Checkpoint(directory) as checkpoint:
            checkpoint.check_data()
            for name, value in values[0].items():  # nothing was noticed: is anything wrong?
                assert (checkpoint.read(name) == value).all(), (number, kind, name)
        message = str(caught.value)
        assert any(name in message for name in names), (number, kind, message)
        shutil.rmtree(directory)


def test_a_damaged_chunk_is_named_by_file_and_dataset(saved, tmp_path):
    shutil.copytree(saved[0] / "1", tmp_path / "c")
    with Checkpoint(tmp_path / "c") as checkpoint:
        piece = checkpoint.variables["fc_0.w_0"].pieces[0]
        home = checkpoint.files[checkpoint.facts.homes[piece]]
        path = checkpoint.facts.pieces[piece].path
        at = home.stored(path).offsets[0] + 100
    data = bytearray(home.path.read_bytes())
    data[at] ^= 4
    home.path.write_bytes(data)
    with (
        Checkpoint(tmp_path / "c") as checkpoint,
        pytest.raises(CheckpointError, match=rf"{home.path.name}: dataset '{path}', chunk 0 of 1"),
    ):
        checkpoint.read("fc_0.w_0")


def test_values_that_were_changed_with_another_tool_are_refused(saved, tmp_path):
    shutil.copytree(saved[0] / "1", tmp_path / "c")
    with h5py.File(tmp_path / "c" / "server-0-of-2.1.h5", "r+") as file:
        dataset = file["embedding_0.w_0.block0"]
        dataset[0, 0] = 42.0
    with (
        pytest.raises(CheckpointError, match=r"server-0-of-2\.1\.h5"),
        Checkpoint(tmp_path / "c") as checkpoint,
    ):
        checkpoint.check_data()


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog):
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        fluid.layers.create_parameter([5], "float32", name="w")
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        for step in (1, 2):
            save(exe, tmp_path, step)
    broken = directory_of(tmp_path, 2)
    next(broken.glob("trainer-*")).unlink()
    assert latest(tmp_path) == directory_of(tmp_path, 1)
    assert "missing" in caplog.text


def test_killed_saves_leave_a_checkpoint_that_is_as_new_as_promised(tmp_path):
    script = Path(__file__).with_name("killed_saves.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "root"), str(KILLS), "11"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert int(words[0]) == KILLS
    assert int(words[2]) > KILLS / 20, done.stdout  # so many were in the middle of a file

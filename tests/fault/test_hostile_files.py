"""Forged names and links lead to no file outside of a directory, and no file is written there."""

from __future__ import annotations

import os
import struct

import h5py
import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.comm.process_manager import launched_size
from hpcdist.errors import CheckpointError
from tests.support.forging import facts_in, reseal, write_facts

pytestmark = [
    pytest.mark.skipif(launched_size() is not None, reason="one process is enough for it"),
    pytest.mark.usefixtures("in_little_memory"),
]


# -- names -----------------------------------------------------------------------------------------
NAMES = [
    "../../x",
    "/abs",
    ".",
    "..",
    "a//b",
    "a/../b",
    "%2E",
    "a\0b",
    "@checkpoint/facts",
    MANIFEST,
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", ["hdf5", "fluid"])
def test_any_name_is_saved_below_the_directory_and_comes_back(tmp_path, name, format):
    main, directory = fluid.Program(), tmp_path / "a" / "b" / "c"
    with fluid.scope_guard(fluid.Scope()):
        main.global_block().create_var(name, shape=(2,), dtype="float32", persistable=True)
        tensor = fluid.global_scope().var(name).get_tensor()
        tensor.set(np.array([1, 2], np.float32))
        fluid.io.save_vars(None, str(directory), main, format=format)
        tensor.set(np.zeros(2, np.float32))
        fluid.io.load_vars(None, str(directory), main)
        assert np.array(tensor).tolist() == [1, 2]
    everything = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert everything and all(directory in p.parents for p in everything)
    if format == "fluid":
        assert list(fluid.load_program_state(str(directory))) == [name]


def test_a_model_names_no_file_outside_of_its_directory(tmp_path, secret):
    main = fluid.Program()
    block = main.global_block()
    block.create_var("../secret", shape=(3, 4), dtype="float32", persistable=True)
    (tmp_path / "model").mkdir()
    with fluid.scope_guard(fluid.Scope()), pytest.raises(CheckpointError, match="neither a check"):
        fluid.io.load_persistables(None, str(tmp_path / "model"), main)


# -- links -----------------------------------------------------------------------------------------
def test_links_are_not_followed(net, saved, tmp_path, secret):
    part = next(saved.glob("trainer-*"))
    os.rename(part, tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a symbolic link, which is not followed"):
        Checkpoint(saved)
    model = tmp_path / "model"
    (model / "inner").mkdir(parents=True)
    (model / "w").symlink_to(secret)
    (model / "folder").symlink_to(tmp_path)
    main = fluid.Program()
    for name in ("w", "folder/secret"):
        main.global_block().create_var(name, shape=(3, 4), dtype="float32", persistable=True)
        with fluid.scope_guard(fluid.Scope()), pytest.raises(CheckpointError):
            fluid.io.load_vars(None, str(model), main, vars=[name])
    (model / "net.pdparams").symlink_to(secret)
    with pytest.raises(CheckpointError, match="symbolic link"):
        fluid.load_program_state(str(model / "net"))


def test_a_file_is_not_written_through_a_link(net, tmp_path, secret):
    before = secret.read_bytes()
    (tmp_path / "saved" / "step-000001").mkdir(parents=True)
    for name in ("trainer-0-of-1.1.h5.tmp", "manifest.h5.tmp"):
        (tmp_path / "saved" / "step-000001" / name).symlink_to(secret)
    net.save(tmp_path / "saved")
    assert secret.read_bytes() == before
    assert latest(tmp_path / "saved")


def test_a_pipe_does_not_block(net, saved):
    os.unlink(saved / MANIFEST)
    os.mkfifo(saved / MANIFEST)
    with pytest.raises(CheckpointError, match="not a regular file"):
        Checkpoint(saved)


def test_what_hdf5_says_of_other_files_has_no_effect(net, tmp_path, secret):
    pytest.importorskip("hdf5plugin")
    saved = net.save(tmp_path / "saved", compression="zstd")
    (tmp_path / "raw").write_bytes(struct.pack("<12f", *[7] * 12))
    with Checkpoint(saved) as found:
        part, values = found.files[0].path, found.read("fc_0.w_0")
    said = facts_in(part)
    with h5py.File(part, "r+") as file:
        del file["fc_0.w_0"], file["fc_1.w_0"]
        raw = [(str(tmp_path / "raw"), 0, 48)]
        file.create_dataset("fc_0.w_0", (3, 4), np.float32, external=raw)
        file["fc_1.w_0"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")
    write_facts(part, said)
    reseal(saved)
    with Checkpoint(saved) as found:
        assert (found.read("fc_0.w_0") == values).all()

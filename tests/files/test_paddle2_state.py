"""paddle.static.save and load: files of Paddle 2.6.2 are read, and written as it writes them."""

from __future__ import annotations

import base64
import json
import pickle
import pickletools
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import hpcdist
from hpcdist.checkpoint.pickled import read_state
from hpcdist.checkpoint.pickling import write_state
from hpcdist.checkpoint.sources import open_saved
from hpcdist.compat import aspaddle
from hpcdist.errors import CheckpointError, GraphError
from hpcdist.executor.scope import Scope
from tests.paddle_2_6 import state

SAVED = json.loads((Path(state.__file__).parent / "state.json").read_text())


@pytest.fixture
def paddle():
    assert "paddle" not in sys.modules
    aspaddle.install()
    import paddle

    paddle.enable_static()
    with hpcdist.scope_guard(Scope()):
        yield paddle
    aspaddle.uninstall()


@pytest.fixture
def prefix(tmp_path):
    """The files of 2.6.2."""
    for end in state.FILES:
        (tmp_path / f"model{end}").write_bytes(base64.b64decode(SAVED[end]))
    return str(tmp_path / "model")


@pytest.mark.parametrize("by", ["load", "set_program_state"])
def test_training_goes_on_from_what_2_6_2_has_saved(paddle, prefix, by):
    main, startup, loss = state.built(paddle)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    if by == "load":
        paddle.static.load(main, prefix, exe)
    else:
        paddle.static.set_program_state(main, paddle.static.load_program_state(prefix))
    np.testing.assert_allclose(state.losses(exe, main, loss), SAVED["losses"], rtol=1e-5)


def test_what_is_saved_has_the_names_types_and_shapes_that_2_6_2_saves(paddle, prefix, tmp_path):
    main, startup, _ = state.built(paddle)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    paddle.static.load(main, prefix, exe)
    paddle.static.save(main, str(tmp_path / "again"))
    for end in state.FILES:
        theirs = pickle.loads(base64.b64decode(SAVED[end]))
        ours = pickle.loads((tmp_path / f"again{end}").read_bytes())
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(ours[name], array)
    with pytest.raises(GraphError, match="protocol: expected 2, 3 or 4, got 7"):
        paddle.static.save(main, str(tmp_path / "again"), protocol=7)


ARRAYS = {
    "of none": np.array(0.5, "float32"),
    "empty": np.zeros((0, 3), "int64"),
    "turned": np.arange(6, dtype="float64").reshape(2, 3).T,
    "big-endian": np.arange(3, dtype=">i4"),
    **{kind: np.ones((2, 1), kind) for kind in ("bool", "int8", "uint8", "float16", "int32")},
}


def test_arrays_are_written_for_any_numpy(tmp_path):
    path = tmp_path / "state"
    write_state(path, ARRAYS)
    for read in (read_state(path), pickle.loads(path.read_bytes())):
        assert read.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert read[name].dtype == array.dtype.newbyteorder("=")
            np.testing.assert_array_equal(read[name], array)
    named = {text for op, text, _ in pickletools.genops(path.read_bytes()) if op.name == "GLOBAL"}
    assert named == {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}
    with pytest.raises(CheckpointError, match="writes one file: give its filename"):
        hpcdist.io.save_vars(None, str(tmp_path), hpcdist.Program(), [], format="pickle")


def test_rows_are_read_without_what_lies_beside_them(tmp_path):
    table = np.arange(1 << 20, dtype="float32").reshape(-1, 64)
    write_state(tmp_path / "state", {"table": table, "small": ARRAYS["int32"]})
    rows = np.empty((2, 64), "float32")
    tracemalloc.start()
    with open_saved(tmp_path, "state", ["table"]) as source:
        for job in source.jobs("table", 7, 9, rows):
            job()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(rows, table[7:9])
    assert peak < table.nbytes / 4
    with open(tmp_path / "state", "r+b") as file:
        file.truncate(table.nbytes // 2)
    with pytest.raises(CheckpointError, match="not a file of fluid.save"):
        open_saved(tmp_path, "state", ["table"])


def test_servers_read_their_rows_of_what_2_6_2_has_saved(prefix):
    directory, weights = Path(prefix).parent, pickle.loads(base64.b64decode(SAVED[".pdparams"]))
    with open_saved(directory, "model.pdparams", ["linear_0.w_0"]) as source:
        assert source.has("linear_0.w_0") and not source.has("linear_1.w_0")
        assert source.saved("linear_0.w_0").shape == (3, 4)
        rows = np.zeros((2, 4), "float32")
        for job in source.jobs("linear_0.w_0", 1, 3, rows):
            job()
        np.testing.assert_array_equal(rows, weights["linear_0.w_0"][1:])
        with pytest.raises(
            CheckpointError, match=r"model.pdparams: has no variable 'linear_1.w_0'"
        ):
            source.saved("linear_1.w_0")
    with open_saved(directory, "model.pdopt", ["learning_rate_0"]) as source:
        rate = np.zeros(1, "float32")
        for job in source.jobs("learning_rate_0", 0, 1, rate):
            job()
        assert rate == np.float32(0.1)

"""What stands for a file or a folder, and models that are kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.errors import CheckpointError, GraphTypeError

DOORS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "save_vars": lambda exe, path, out: fluid.io.save_vars(exe, path, filename="all"),
    "save_params": lambda exe, path, out: fluid.io.save_params(exe, path, filename="all"),
    "save_persistables": lambda exe, path, out: fluid.io.save_persistables(
        exe, path, filename="all"
    ),
    "load_params": lambda exe, path, out: fluid.io.load_params(exe, path),
    "load_persistables": lambda exe, path, out: fluid.io.load_persistables(exe, path),
    "save_inference_model": lambda exe, path, out: fluid.io.save_inference_model(
        path, ["x"], [out], exe
    ),
    "load_inference_model": lambda exe, path, out: fluid.io.load_inference_model(path, exe),
    "save": lambda exe, path, out: fluid.save(fluid.default_main_program(), path),
    "load": lambda exe, path, out: fluid.load(fluid.default_main_program(), path, exe),
    "load_program_state": lambda exe, path, out: fluid.io.load_program_state(path),
    "checkpoint.save": lambda exe, path, out: fluid.checkpoint.save(exe, path, 1),
    "checkpoint.restore": lambda exe, path, out: fluid.checkpoint.restore(exe, path),
    "checkpoint.latest": lambda exe, path, out: fluid.checkpoint.latest(path),
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        out = fluid.layers.fc(fluid.data("x", [None, 3]), 2)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        yield exe, out


@pytest.mark.parametrize("path", [7, b"folder", ["folder"]], ids=repr)
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_path_is_refused_and_nothing_is_written(
    model: Any, tmp_path: Path, door: str, path: object
) -> None:
    exe, out = model
    with pytest.raises(GraphTypeError, match="expected a path as text, got"):
        DOORS[door](exe, path, out)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("step", [None, 1.5, "1"], ids=repr)
def test_a_step_is_a_number(model: Any, tmp_path: Path, step: Any) -> None:
    with pytest.raises(GraphTypeError, match="step: expected an integer, got"):
        fluid.checkpoint.save(model[0], tmp_path, step)


def test_a_model_in_memory_computes_what_the_saved_one_does(model: Any, tmp_path: Path) -> None:
    exe, out = model
    program = fluid.default_main_program()
    feed = {"x": np.ones((4, 3), "float32")}
    (wanted,) = exe.run(program, feed=feed, fetch_list=[out])
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe, params_filename="params")
    described = (tmp_path / "__model__").read_bytes()
    values = fluid.io.save_persistables(exe, None, program)
    assert isinstance(values, bytes)
    with fluid.scope_guard(fluid.Scope()):
        loaded, names, fetched = fluid.io.load_inference_model(None, exe, described, values)
        (found,) = exe.run(loaded, feed=dict.fromkeys(names, feed["x"]), fetch_list=fetched)
    np.testing.assert_array_equal(found, wanted)


def test_memory_takes_no_name_of_a_file(model: Any) -> None:
    with pytest.raises(CheckpointError, match="dirname is None, which asks for Fluid's bytes"):
        fluid.io.save_params(model[0], None, filename="params")


def test_counts_of_an_auc_are_named_before_they_are_saved(model: Any, tmp_path: Path) -> None:
    exe, out = model
    label = fluid.data("label", [None, 1], "int64")
    fluid.layers.auc(fluid.layers.softmax(out), label)
    exe.run(fluid.default_startup_program())
    with pytest.warns(UserWarning, match="set the auc states to zeros before saving"):
        fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)

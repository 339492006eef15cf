"""Warnings name the line of the user's script, and errors show no frames but the user's."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import CheckpointError
from hpcdist.launch import report

PACKAGE = Path(fluid.__file__).parent


@pytest.mark.parametrize("updates", [False, True], ids=["evaluating", "training"])
def test_a_feed_that_is_left_out_is_told_where_it_is_fed(updates):
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
        if updates:
            fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        exe.run(feed={"x": np.ones((1, 2), "float32"), "X": 1}, fetch_list=[loss])
    (warning,) = told
    assert "feed 'X' is left out" in str(warning.message)
    assert warning.filename == __file__


def test_all_warnings_are_given_in_one_place():
    found = [p for p in PACKAGE.rglob("*.py") if "warnings.warn(" in p.read_text("utf-8")]
    assert found == [PACKAGE / "base/warned.py"]


def test_a_refusal_deep_in_decorated_functions_shows_the_users_line_only(tmp_path):
    (tmp_path / "file").write_text("")
    saver = fluid.checkpoint.Saver(fluid.Executor(), tmp_path / "file", every=100)
    with pytest.raises(CheckpointError, match="a file has this name") as caught:
        saver.after_step()  # the first, not the hundredth
    said = report.user_traceback(caught.value)
    assert __file__ in said and said.count("  File ") == 1


def test_a_directory_for_checkpoints_is_tried_at_the_first_step(tmp_path):
    saver = fluid.checkpoint.Saver(fluid.Executor(), tmp_path / "file" / "below", every=100)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be made: Not a directory; name"):
        saver.after_step()
    # Who only restores may read where nothing can be written.
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        fluid.layers.create_parameter([1], "float32")
    fluid.checkpoint.Saver(fluid.Executor(), tmp_path / "file", main_program=main).after_step()

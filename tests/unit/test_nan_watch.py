"""NaN in what is fetched is told once, in the first step that has it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.trace.position import here
from hpcdist.errors import NotFiniteError
from hpcdist.executor import nan_watch
from hpcdist.executor.nan_watch import NanWatch, with_checks
from hpcdist.graph.operator import Operator


def train(values, fetch_all=False):
    """Feed one value after the other; return the step after which each fetch came back."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        out = fluid.layers.fc(x, 2)
        loss = fluid.layers.mean(out)
        fluid.optimizer.SGD(0.0).minimize(loss)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        begin = here.step
        for value in values:
            feed = {"x": np.full((4, 3), value, np.float32)}
            exe.run(main, feed, [out if fetch_all else loss])
    return begin


@pytest.mark.parametrize("fetch_all", [False, True])
def test_the_first_nan_is_told_once_with_step_and_variable(caplog, fetch_all):
    begin = train([1, 2, np.nan, np.nan, 1], fetch_all)
    name = "fc_0.tmp_1" if fetch_all else "mean_0.tmp_0"
    assert [r.getMessage().partition(" (")[0] for r in caplog.records] == [
        f"step {begin + 3}: fetched {name!r} holds NaN"
    ]


def test_it_ends_the_job_if_asked(monkeypatch):
    monkeypatch.setenv("HPCDIST_ON_NAN", "end")
    monkeypatch.setenv("HPCDIST_RANK", "5")
    with pytest.raises(NotFiniteError, match=r"rank 5, step \d+: fetched 'mean_0.tmp_0' holds NaN"):
        train([1, np.nan])


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e38])
def test_infinity_is_not_nan(caplog, value):
    watch = NanWatch()
    watch.look(["a", "b"], [np.array([[value, -value]] * 3, np.float32), np.float32([value])])
    assert watch.watching and not caplog.records
    watch.look(["a"], [np.array([value, np.nan], np.float32)])
    assert not watch.watching and "'a' holds NaN" in caplog.text


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (np.inf, "(NaN|infinity)")])
def test_the_operator_that_makes_it_is_named_if_asked(monkeypatch, value, what):
    monkeypatch.setenv("HPCDIST_RANK", "2")
    train([1, value, 1])
    monkeypatch.setenv("FLAGS_check_nan_inf", "1")
    read = f"x without numbers with {'NaN' if value != value else 'infinity'}"
    where = rf"rank 2, step \d+, .*mul.*: 'fc_0.tmp_0' holds {what}; read: {read}, fc_0.w_0 in \[-"
    with pytest.raises(NotFiniteError, match=where):
        train([1, value])
    train([1, 2])


def test_the_ranges_of_what_the_operator_has_read_are_told():
    read = {
        "X": np.float32([[-1, 4]]),
        "Y": np.float32([[0, np.nan]]),
        "Out": np.float32([[np.nan]]),
    }
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        block = fluid.default_main_program().global_block()
        op = Operator(block, "elementwise_div", {"X": ["X"], "Y": ["Y"]}, {"Out": ["Out"]}, {})
        block.ops.append(op)
        (step,) = with_checks([lambda: None], [op], read)
        with pytest.raises(
            NotFiniteError, match=r"'Out' holds NaN; read: X in \[-1, 4\], Y in \[0, 0\] with NaN$"
        ):
            step()
        read["X"] = read["Out"] = np.float32([[-1, 4]])  # in place
        (step,) = with_checks([lambda: read["Out"].fill(np.nan)], [op], read)
        with pytest.raises(NotFiniteError, match=r"read: X in \[-1, 4\], Y in"):
            step()


def test_rows_of_a_sparse_gradient_are_looked_at(monkeypatch):
    monkeypatch.setenv("FLAGS_check_nan_inf", "true")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.data("ids", [None, 1], "int64")
        weight = fluid.data("weight", [None, 3])
        found = fluid.layers.embedding(ids, size=[9, 3], is_sparse=True)
        loss = fluid.layers.mean(fluid.layers.elementwise_mul(found, weight))
        fluid.optimizer.SGD(0.1).minimize(loss)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        feed = {"ids": np.array([[1], [2]]), "weight": np.ones((2, 3), np.float32)}
        exe.run(main, feed, [loss])
        feed["weight"] = np.full((2, 3), 1e38, np.float32)
        with pytest.raises(NotFiniteError, match="step"):
            for _ in range(9):
                exe.run(main, feed, [loss])


def test_what_fake_init_leaves_open_is_not_looked_at():
    block = fluid.Program().global_block()
    block.create_var("table", shape=[2, 2], dtype="float32")
    op = Operator(block, "fake_init", {}, {"Out": "table"}, {"shape": [2, 2]})
    memory = {"table": np.full((2, 2), np.nan, np.float32)}
    (step,) = with_checks([lambda: None], [op], memory)
    step()


def test_numpy_names_no_line_of_the_package():
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        nan_watch.leave_to_messages()
        x = fluid.data("x", [None, 3])
        with fluid.scope_guard(fluid.Scope()):
            (value,) = fluid.Executor().run(
                feed={"x": np.full((2, 3), 1e30, np.float32)},
                fetch_list=[fluid.layers.square(x) - fluid.layers.square(x)],
            )
    assert np.isnan(value).all() and not given

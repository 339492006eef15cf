"""Runs of small calls as one: the bits of numpy's own, and only where their loops are known."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base import ufunc_loops
from hpcdist.executor import bound_step, loop_runs
from hpcdist.ops.common import by_calls, in_sequence

RANDOM = np.random.RandomState(0)


def values(*shape, dtype="float32"):
    return (RANDOM.standard_normal(shape) * 4).astype(dtype)


def empty(*shape, dtype="float32"):
    return np.full(shape, 7, dtype)


COLUMNS = np.asfortranarray(values(6, 5))
CALLS = {
    "add": partial(np.add, values(20, 3), values(20, 3), out=empty(20, 3)),
    "a row to each": partial(np.add, values(20, 3), values(3), out=empty(20, 3)),
    "a column to each": partial(np.multiply, values(20, 3), values(20, 1), out=empty(20, 3)),
    "a number": partial(np.multiply, values(7), 0.3, out=empty(7)),
    "a number first": partial(np.subtract, 1, values(7), out=empty(7)),
    "out by place": partial(np.greater, values(5, 4), 0, empty(5, 4, dtype=bool)),
    "of two layouts": partial(np.subtract, COLUMNS, values(6, 5), out=empty(6, 5)),
    "exp": partial(np.exp, values(33), out=empty(33)),
    "tanh of doubles": partial(np.tanh, values(33, dtype="f8"), out=empty(33, dtype="f8")),
    "whole numbers": partial(np.add, np.arange(5), 3, out=np.arange(5)),
    "fill": partial(empty(4, 3).fill, 0.1),
    "copy": partial(np.copyto, empty(4, 3), values(4, 3)),
    "sum of all": partial(np.add.reduce, values(300), 0, None, empty()),
    "sum of rows": partial(np.add.reduce, values(20, 3), 0, None, empty(3)),
    "sum of a column": partial(np.add.reduce, values(40, 1), (0,), None, empty(1, 1), True),
    "dot": partial(np.dot, values(13), values(13), empty()),
    "matrix by column": partial(np.dot, values(20, 13), values(13, 1), empty(20, 1)),
    "transposed": partial(np.dot, values(20, 13).T, values(20, 4), empty(13, 4)),
    "by transposed": partial(np.dot, values(20, 4), values(13, 4).T, empty(20, 13)),
    "matmul": partial(np.matmul, values(6, 5), values(5, 4), out=empty(6, 4)),
}


def result(call):
    owner = getattr(call.func, "__self__", None)
    if isinstance(owner, np.ndarray):
        return owner
    if call.func is np.copyto:
        return call.args[0]
    out = call.keywords.get("out")
    return [a for a in call.args if isinstance(a, np.ndarray)][-1] if out is None else out


@pytest.mark.parametrize("name", CALLS)
def test_a_joined_call_has_the_bits_of_the_call(name):
    call = CALLS[name]
    (joined,), owners = loop_runs.join_loops([call])
    assert joined is not call
    assert owners == [0]
    before = result(call).copy()
    call()
    expected = result(call).copy()
    result(call)[...] = before
    joined()
    assert result(call).tobytes() == expected.tobytes()


OVERLAP = values(12)
LEFT = {
    "many elements": partial(np.add, values(5000), values(5000), out=empty(5000)),
    "types that differ": partial(
        np.add, values(4), values(4, dtype="f8"), out=empty(4, dtype="f8")
    ),
    "a mask": partial(np.copyto, empty(4), values(4), where=values(4) > 0),
    "operands that half overlap": partial(np.add, OVERLAP[:-1], 1, out=OVERLAP[1:]),
    "nothing": partial(np.add, values(0), values(0), out=empty(0)),
    "whole numbers that may raise": partial(np.power, np.arange(4), np.arange(4), out=np.arange(4)),
    "unaligned": partial(np.negative, np.zeros(17, "u1")[1:].view("f4"), out=empty(4)),
    "other orders of bytes": partial(np.negative, values(4).astype(">f4"), out=empty(4)),
    "a sum along the second dimension": partial(np.add.reduce, values(4, 5), 1, None, empty(4)),
    "a greatest value": partial(np.maximum.reduce, values(4), 0, None, empty()),
    "anything else": lambda: None,
}


@pytest.mark.parametrize("name", LEFT)
def test_other_calls_are_left_as_they_are(name):
    assert loop_runs.join_loops([LEFT[name]]) == ([LEFT[name]], [0])


def test_neighbours_become_one_call_that_belongs_to_the_last_of_them():
    x, y, z = values(8), empty(8), empty(8)
    seen = []

    def other():
        seen.append(y.copy())

    steps = [
        partial(np.add, x, 1, out=y),
        in_sequence(partial(np.multiply, y, y, out=y), partial(np.negative, y, out=y)),
        other,
        partial(np.exp, y, out=z),
    ]
    joined, owners = loop_runs.join_loops(steps)
    assert owners == [1, 2, 3]
    assert joined[1] is other
    x += 1  # operands are read when it runs
    for call in joined:
        call()
    expected = x + np.float32(1)
    expected = -(expected * expected)
    assert seen[0].tobytes() == expected.tobytes()
    assert z.tobytes() == np.exp(expected).tobytes()


def test_a_call_is_joined_whole_or_not_at_all():
    def call():
        pass

    call.parts = [partial(np.add, values(3), 1, out=empty(3)), lambda: None]
    assert loop_runs.join_loops([call]) == ([call], [0])


def test_the_calls_of_a_sequence_are_joined_each():
    def poll():
        pass

    x, y = values(3), empty(3)
    first, second = partial(np.add, x, 1, out=y), partial(np.negative, y, out=y)
    joined, owners = loop_runs.join_loops([first, in_sequence(second, poll), poll])
    assert owners == [1, 1, 2]
    assert joined[1] is poll
    assert [joined.index(call) for call in joined] == [0, 1, 2]
    joined[0]()
    assert y.tobytes() == (-(x + np.float32(1))).tobytes()


def test_a_loop_that_computes_something_else_is_not_used(monkeypatch):
    other = ufunc_loops.loop_of(np.subtract, "ff->f")
    monkeypatch.setattr(loop_runs, "loop_of", lambda ufunc, types: other)
    monkeypatch.setattr(loop_runs, "tried", {})
    call = CALLS["add"]
    assert loop_runs.join_loops([call]) == ([call], [0])


def test_a_ufunc_of_another_layout_has_no_loop(monkeypatch):
    class Head:
        @staticmethod
        def from_address(address):
            return SimpleNamespace(nin=2, nout=1, nargs=4, ntypes=len(np.add.types))

    monkeypatch.setattr(ufunc_loops, "UfuncHead", Head)
    ufunc_loops.loop_of.cache_clear()
    assert ufunc_loops.loop_of(np.add, "ff->f") is None
    ufunc_loops.loop_of.cache_clear()


def test_a_kernel_made_of_calls_is_known_by_them():
    def kernel(xp, x, out, factor):
        xp.multiply(x, factor, out=out)
        xp.add(out, out, out=out)

    x, out = values(5), empty(5)
    call = by_calls(kernel)(np, x, out, factor=3.0)
    assert len(call.parts) == 2
    call()
    assert out.tobytes() == (x * np.float32(3) + x * np.float32(3)).tobytes()


def train(optimizer, steps=30):
    program, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        startup.random_seed = 5
        x = fluid.data(name="x", shape=[None, 6], dtype="float32")
        y = fluid.data(name="y", shape=[None, 1], dtype="float32")
        hidden = fluid.layers.fc(fluid.layers.fc(x, 8, act="tanh"), 4, act="sigmoid")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        optimizer().minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    random = np.random.RandomState(1)
    rows = [random.rand(16, 7).astype("float32") for _ in range(steps)]
    feeds = [
        {"x": np.ascontiguousarray(r[:, :6]), "y": np.ascontiguousarray(r[:, 6:])} for r in rows
    ]
    losses = [exe.run(program, feed, [loss], scope=scope)[0].tobytes() for feed in feeds]
    return losses, exe.forms(program)


@pytest.mark.parametrize(
    "optimizer", [lambda: fluid.optimizer.SGD(0.1), lambda: fluid.optimizer.Adam(0.1)]
)
def test_training_has_the_same_bits_before_and_after_its_calls_are_joined(optimizer, monkeypatch):
    monkeypatch.setattr(bound_step, "LONG_STEP_NS", 10**12)
    losses, (form,) = train(optimizer)
    assert "joined" in vars(form.compiled)
    assert len(form.compiled.joined[0]) < len(form.compiled.steps) / 2
    monkeypatch.setattr(bound_step, "LONG_STEP_NS", 0)
    apart, (form,) = train(optimizer)
    assert "joined" not in vars(form.compiled)
    assert losses == apart


def test_an_error_after_steps_were_joined_names_its_operator(monkeypatch):
    monkeypatch.setattr(bound_step, "LONG_STEP_NS", 10**12)
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        x = fluid.data(name="x", shape=[2, 3], dtype="float32")
        index = fluid.data(name="index", shape=[2, 1], dtype="int64")
        table = fluid.layers.embedding(index, size=[4, 3])
        out = fluid.layers.reduce_sum(fluid.layers.tanh(x) + table)
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = {"x": values(2, 3), "index": np.array([[0], [3]])}
    for _ in range(20):
        exe.run(program, feed, [out], scope=scope)
    wrong = {**feed, "index": np.array([[0], [9]])}
    with pytest.raises(fluid.errors.HpcdistError, match="lookup_table"):
        exe.run(program, wrong, [out], scope=scope)

"""Whatever the Program: sharing memory, views, dropped operators change no bit of any result."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist import layers
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph import Program, program_guard
from hpcdist.graph.names import guard
from hpcdist.optimizer import Momentum
from tests.property.element_wise_programs import (
    STATE,
    WIDTH,
    Builder,
    assert_bits,
    numbers,
)
from tests.support.eval import evaluate


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_results_are_those_of_operators_run_one_by_one(data):
    builder = Builder(data.draw)
    for _ in range(data.draw(st.sampled_from([2, 4, 8, 16]))):
        builder.append()
    program, state = builder.program, {n: numbers(s, 7) for n, s in STATE.items()}
    scope, exe = Scope(), Executor()
    for name, value in state.items():
        scope.var(name).get_tensor().set(value)
    runs = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    for run, rows in enumerate(runs):
        feed = {n: numbers((rows, WIDTH), 10 * run + i) for i, n in enumerate(("x", "y"))}
        wanted = evaluate(program, {**feed, **state})
        some = data.draw(st.lists(st.sampled_from(builder.values), max_size=4))
        fetch = data.draw(st.sampled_from([some, builder.values]))
        got = exe.run(program, feed, fetch, scope=scope)
        for name, value in zip(fetch, got):
            assert_bits(value, wanted[name], name)
        for name in STATE:
            assert_bits(np.array(scope.find_var(name).get_tensor()), wanted[name], name)
        state = {n: wanted[n] for n in STATE}


@settings(max_examples=60, deadline=None)
@given(
    thresholds=st.lists(st.integers(-3, 3), min_size=1, max_size=3),
    default=st.booleans(),
    nested=st.booleans(),
    at=st.lists(st.integers(-4, 4), min_size=1, max_size=3),
)
def test_a_switch_runs_the_first_case_that_holds(thresholds, default, nested, at):
    """The cases share their memory with what stands before and after them."""
    main = Program()
    with guard(), program_guard(main, Program()):
        x, n = layers.data("x", [WIDTH]), layers.data("n", [1], append_batch_size=False)
        before = layers.scale(x, 2.0)
        out = layers.scale(x, 0.0)
        with layers.Switch() as switch:
            for k, threshold in enumerate(thresholds):
                limit = layers.fill_constant([1], "float32", float(threshold))
                with switch.case(layers.less_than(n, limit)):
                    inside = layers.tanh(layers.scale(before, k + 1.0))
                    if nested:
                        with layers.Switch() as inner, inner.case(layers.less_than(limit, n)):
                            layers.assign(x, out)
                    layers.assign(layers.elementwise_add(inside, x), out)
            if default:
                with switch.default():
                    layers.assign(before, out)
        result = layers.elementwise_add(layers.relu(out), before)
    scope, exe = Scope(), Executor()
    for step, value in enumerate(at):
        feed = {"x": numbers((2 + step, WIDTH), step), "n": np.array([value], np.float32)}
        wanted = evaluate(main, feed)
        got = exe.run(main, feed, [out, result, before], scope=scope)
        for var, found in zip((out, result, before), got):
            assert_bits(found, wanted[var.name], var.name)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_batches_of_any_size_in_any_order_train_alike(sizes):
    def build():
        main, startup = Program(), Program()
        with guard(), program_guard(main, startup):
            hidden = layers.fc(layers.data("x", [WIDTH]), 5, act="tanh")
            loss = layers.mean(layers.square(layers.fc(hidden, 1)))
            Momentum(0.1, 0.9).minimize(loss)
        return main, startup, loss

    main, startup, loss = build()
    shared, alone = Scope(), Scope()
    exe = Executor()
    exe.run(startup, scope=shared)
    Executor().run(startup, scope=alone)
    for step, rows in enumerate(sizes):
        feed = {"x": numbers((rows, WIDTH), step)}
        (got,) = exe.run(main, feed, [loss], scope=shared)
        (wanted,) = Executor().run(main, feed, [loss], scope=alone)  # compiled afresh every time
        assert_bits(got, wanted, f"step {step}")


# -- by name ---------------------------------------------------------------------------------------
def program_of(*ops):
    """Return a Program over x [-1, 4] and the persistables, with (type, X, Out, attrs) appended."""
    program = Program()
    block = program.global_block()
    block.create_var("x", shape=(-1, WIDTH), is_data=True)
    for name, shape in STATE.items():
        block.create_parameter(name, shape=shape)
    for type, x, out, attrs in ops:
        outs = {"Out": out, "XShape": f"{out}.was"} if type == "reshape2" else {"Out": out}
        block.append_op(type, {"X": x}, outs, attrs)
    return program


def scope_of(**values):
    scope = Scope()
    for name, value in values.items():
        scope.var(name).get_tensor().set(value)
    return scope


X = np.arange(8, dtype=np.float32).reshape(2, WIDTH)
W = np.ones(STATE["w"], np.float32)
HALVE_ROWS = ("reshape2", "x", "v", {"shape": [0, 2, 2]})


def test_a_view_shows_the_value_of_its_own_time():
    program = program_of(HALVE_ROWS, ("scale", "x", "x", {"scale": 3.0}))
    view, x = Executor().run(program, {"x": X}, ["v", "x"], scope=Scope())
    np.testing.assert_array_equal(view.reshape(2, WIDTH), X)
    np.testing.assert_array_equal(x, 3 * X)


def test_a_fetched_view_is_a_copy():
    program, exe, scope = program_of(HALVE_ROWS), Executor(), Scope()
    (first,) = exe.run(program, {"x": X}, ["v"], scope=scope)
    kept = first.copy()
    first[...] = 99
    (second,) = exe.run(program, {"x": X}, ["v"], scope=scope)
    np.testing.assert_array_equal(second, kept)


def test_a_fetched_parameter_is_a_copy_of_the_new_value():
    program, scope = program_of(("scale", "w", "w", {"scale": 0.5})), scope_of(w=W)
    (w,) = Executor().run(program, {}, ["w"], scope=scope)
    np.testing.assert_array_equal(w, W / 2)
    w[...] = 99
    np.testing.assert_array_equal(np.array(scope.find_var("w").get_tensor()), W / 2)


def test_a_parameter_that_nothing_computes_can_be_fetched():
    (w, again) = Executor().run(program_of(), {}, ["w", "w"], scope=scope_of(w=W))
    np.testing.assert_array_equal(w, W)
    np.testing.assert_array_equal(again, W)


def test_a_fed_persistable_stays_in_the_scope():
    program = program_of(("scale", "w", "out", {"scale": 2.0}))
    scope, exe = scope_of(w=W), Executor()
    (out,) = exe.run(program, {"w": 3 * W}, ["out"], scope=scope)
    np.testing.assert_array_equal(out, 6 * W)
    (out,) = exe.run(program, {}, ["out"], scope=scope)
    np.testing.assert_array_equal(out, 6 * W)


def test_the_last_of_two_writes_is_fetched_and_each_reader_sees_its_own():
    twice = ("scale", "x", "t", {"scale": 2.0}), ("relu", "t", "first", None)
    thrice = ("scale", "x", "t", {"scale": -3.0}), ("relu", "t", "second", None)
    program = program_of(*twice, *thrice)
    first, second, t = Executor().run(program, {"x": X}, ["first", "second", "t"], scope=Scope())
    np.testing.assert_array_equal(first, 2 * X)
    np.testing.assert_array_equal(second, 0 * X)
    np.testing.assert_array_equal(t, -3 * X)


def test_what_nobody_needs_is_not_run():
    program = program_of()
    block = program.global_block()
    block.create_var("ghost", shape=(-1, WIDTH))  # nothing computes it
    block.append_op("scale", {"X": "ghost"}, {"Out": "unwanted"})
    block.append_op("scale", {"X": "x"}, {"Out": "wanted"}, {"scale": 2.0})
    (wanted,) = Executor().run(program, {"x": X}, ["wanted"], scope=Scope())
    np.testing.assert_array_equal(wanted, 2 * X)

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
from tests.support_eval import evaluate

WIDTH = 4
STATE = {"w": (WIDTH, WIDTH), "b": (WIDTH,)}
UNARY = ("relu", "tanh", "square", "sigmoid", "softsign", "softmax", "assign", "scale", "clip")
BINARY = ("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_max")


class Builder:
    """Appends random operators to a Program; its values are batches, and two persistables."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.program = Program()
        self.block = self.program.global_block()
        for name in ("x", "y"):
            self.block.create_var(name, shape=(-1, WIDTH), is_data=True)
        for name, shape in STATE.items():
            self.block.create_parameter(name, shape=shape)

    @property
    def values(self) -> list[str]:
        """Names to read from: everything that holds numbers."""
        return [v.name for v in self.block.vars.values() if 0 not in v.shape]

    def one_of(self, choices):
        return self.draw(st.sampled_from(list(choices)))

    def shape(self, name):
        return self.block.vars[name].shape

    def like(self, name):
        """Return names of the same shape."""
        return [n for n in self.values if self.shape(n) == self.shape(name)]

    def ranked(self, rank):
        return [n for n in self.values if len(self.shape(n)) == rank]

    def target(self, like=None):
        """Return a fresh name, or one written before: of the shape of ``like``."""
        fresh = f"t{len(self.block.ops)}"
        return self.one_of(self.like(like)) if like and self.draw(st.booleans()) else fresh

    def append(self) -> None:
        """Append one operator of a random kind."""
        kinds = (self.unary, self.binary, self.sum, self.row, self.concat, self.split)
        kinds += (self.reshape, self.transpose, self.mul, self.matmul, self.mean, self.shift)
        kinds += (self.unary, self.reshape)
        self.one_of(kinds)()

    def unary(self):
        x = self.one_of(self.values)
        attrs = {"scale": {"scale": 0.5, "bias": 0.1}, "clip": {"min": -0.5, "max": 0.5}}
        type = self.one_of(UNARY)
        self.block.append_op(type, {"X": x}, {"Out": self.target(x)}, attrs.get(type))

    def binary(self):
        x = self.one_of(self.values)
        y = self.one_of(self.like(x))
        self.block.append_op(self.one_of(BINARY), {"X": x, "Y": y}, {"Out": self.target(x)})

    def row(self):
        """Broadcast the bias over rows."""
        x = self.one_of(n for n in self.values if self.shape(n)[-1] == WIDTH)
        self.block.append_op(self.one_of(BINARY), {"X": x, "Y": "b"}, {"Out": self.target(x)})

    def sum(self):
        x = self.one_of(self.values)
        rest = self.draw(st.lists(st.sampled_from(self.like(x)), max_size=3))
        self.block.append_op("sum", {"X": [x, *rest]}, {"Out": self.target(x)})

    def concat(self):
        batches = [n for n in self.ranked(2) if self.shape(n)[0] == -1 and self.shape(n)[1] < 9]
        xs = self.draw(st.lists(st.sampled_from(batches), min_size=1, max_size=3))
        self.block.append_op("concat", {"X": xs}, {"Out": self.target()}, {"axis": 1})

    def split(self):
        x = self.one_of(n for n in self.ranked(2) if self.shape(n)[1] % 2 == 0)
        outs = [f"{self.target()}.{i}" for i in range(2)]
        self.block.append_op("split", {"X": x}, {"Out": outs}, {"num": 2, "axis": 1})

    def reshape(self):
        even = [n for n in self.values if self.shape(n)[-1] % 2 == 0 and len(self.shape(n)) < 4]
        x = self.one_of(even)
        *front, last = self.shape(x)
        shapes = [[*(0 for _ in front), 2, last // 2]]
        if len(front) == 2:
            shapes = [[0, front[1] * last]]
        attrs = {"shape": self.one_of(shapes)}
        name = self.target()
        self.block.append_op("reshape2", {"X": x}, {"Out": name, "XShape": f"{name}.was"}, attrs)

    def transpose(self):
        x = self.one_of(n for n in self.ranked(2) + self.ranked(3) if self.shape(n)[-1] > 1)
        rank = len(self.shape(x))
        axis = [*range(rank - 2), rank - 1, rank - 2]
        if rank == 2 and self.shape(x)[0] == -1:
            return  # a batch stays in front
        name = self.target()
        outs = {"Out": name, "XShape": f"{name}.was"}
        self.block.append_op("transpose2", {"X": x}, outs, {"axis": axis})

    def mul(self):
        x = self.one_of(n for n in self.ranked(2) if self.shape(n)[1] == WIDTH)
        self.block.append_op("mul", {"X": x, "Y": "w"}, {"Out": self.target()})

    def matmul(self):
        x = self.one_of(n for n in self.ranked(2) if self.shape(n)[1] == WIDTH)
        attrs = {"transpose_Y": self.draw(st.booleans()), "alpha": 0.5}
        self.block.append_op("matmul", {"X": x, "Y": "w"}, {"Out": self.target()}, attrs)

    def mean(self):
        x = self.one_of(self.ranked(2))
        attrs = {"dim": [1], "keep_dim": True}
        self.block.append_op("reduce_mean", {"X": x}, {"Out": self.target()}, attrs)

    def shift(self):
        """Change a persistable in place."""
        self.block.append_op("scale", {"X": "w"}, {"Out": "w"}, {"scale": 0.75})


def numbers(shape, seed):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def assert_bits(got, wanted, name):
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, name
    assert got.tobytes() == wanted.tobytes(), f"{name}: {got} is not {wanted}"


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
    """The cases share their memory with what stands before and behind them."""
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

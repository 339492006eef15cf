"""Whatever the Program: another order of its operators, and smaller pools, change no bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcdist as fluid
from hpcdist.executor.analysis import reads, writes
from hpcdist.executor.executor import Executor
from hpcdist.executor.ordering import dependences, free_first, update_at_once
from hpcdist.executor.scope import Scope
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from tests.property.element_wise_programs import STATE, WIDTH, Builder, assert_bits, numbers
from tests.support.eval import evaluate

ROLES = (OpRole.FORWARD, OpRole.FORWARD, OpRole.BACKWARD, OpRole.OPTIMIZE, OpRole.LR_SCHED)


def drawn(draw) -> Builder:
    """Return random operators with random roles: some may be moved as updates are."""
    builder = Builder(draw)
    for _ in range(draw(st.sampled_from([3, 6, 12, 20]))):
        builder.append()
    for op in builder.block.ops:
        op.attrs[ROLE_ATTR] = int(draw(st.sampled_from(ROLES)))
    return builder


def conflict(a, b) -> bool:
    """Tell whether one of two operators writes what the other touches."""
    return bool(
        set(writes(a)) & {*reads(b), *writes(b)} or set(writes(b)) & {*reads(a), *writes(a)}
    )


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_orders_keep_dependences_and_results(data, move_updates):
    builder = drawn(data.draw)
    ops = list(builder.block.ops)
    needs = dependences(ops, str, move_updates)
    sizes = {n: data.draw(st.integers(0, 3), label=n) for op in ops for n in writes(op)}
    kept = data.draw(st.lists(st.sampled_from(builder.values), max_size=3))
    early = update_at_once(ops, needs)
    values = {n: numbers((3, WIDTH), i) for i, n in enumerate(("x", "y"))}
    values |= {n: numbers(s, 7) for n, s in STATE.items()}
    wanted = evaluate(builder.program, values)
    for order in (early, free_first(ops, needs, early, str, sizes, ["x", "y"], kept)):
        assert sorted(order) == list(range(len(ops)))
        at = {index: place for place, index in enumerate(order)}
        for j in range(len(ops)):
            for i in range(j):
                assert at[i] < at[j] or not conflict(ops[i], ops[j]), (str(ops[i]), str(ops[j]))
        builder.block.ops = [ops[i] for i in order]
        got = evaluate(builder.program, values)
        for name, value in wanted.items():
            assert_bits(got[name], value, name)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_the_executor_gives_the_same_bits_from_less_memory(data, skip_grads):
    builder = drawn(data.draw)
    program, state = builder.program, {n: numbers(s, 7) for n, s in STATE.items()}
    fetch = data.draw(st.lists(st.sampled_from(builder.values), max_size=4))
    own = data.draw(st.sets(st.sampled_from(builder.values), max_size=2))
    feed = {n: numbers((3, WIDTH), i) for i, n in enumerate(("x", "y"))}
    wanted = evaluate(program, {**feed, **state})
    pools = []
    for skip_opt_set in (None, (), own):
        if skip_opt_set is not None:
            fluid.memory_optimize(program, skip_opt_set, skip_grads=skip_grads)
        scope, exe = Scope(), Executor()
        for name, value in state.items():
            scope.var(name).get_tensor().set(value)
        for name, value in zip(fetch, exe.run(program, feed, fetch, scope=scope)):
            assert_bits(value, wanted[name], name)
        for name in STATE:
            assert_bits(np.array(scope.find_var(name).get_tensor()), wanted[name], name)
        pools.append(exe.forms()[0].compiled.pool_bytes)
    assert pools[1] <= pools[0]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_training_gives_the_same_bits(data):
    """Layers side by side and on top of one another, with the gradients of all of them."""
    choice = data.draw(
        st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["fc", "add", "mul", "mean"])))
    )

    def build():
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            values = [fluid.layers.data("x", [WIDTH])]
            for pick, kind in choice:
                a, b = values[pick % len(values)], values[-1]
                if kind == "fc":
                    values.append(fluid.layers.fc(a, WIDTH, act="tanh"))
                elif kind == "add":
                    values.append(fluid.layers.elementwise_add(a, b))
                elif kind == "mul":
                    values.append(fluid.layers.elementwise_mul(a, b))
                else:
                    mean = fluid.layers.reduce_mean(a, dim=1, keep_dim=True)
                    values.append(fluid.layers.elementwise_sub(b, mean))
            top = fluid.layers.fc(fluid.layers.concat(values, axis=1), 1)
            loss = fluid.layers.mean(fluid.layers.square(top))
            rate = fluid.layers.exponential_decay(0.1, 2, 0.5)
            fluid.optimizer.Adam(rate, regularization=fluid.regularizer.L2Decay(0.1)).minimize(loss)
        return main, startup, loss

    every = [n for n in build()[0].global_block().vars if n.endswith("@GRAD")]
    grads = data.draw(st.lists(st.sampled_from(every), max_size=3))
    told = []
    for saving in (False, True):
        main, startup, loss = build()
        if saving:
            fluid.memory_optimize(main)
        scope, exe = Scope(), Executor()
        exe.run(startup, scope=scope)
        got = []
        for step in range(3):
            got += exe.run(main, {"x": numbers((3, WIDTH), step)}, [loss, *grads], scope=scope)
        got += [np.array(scope.find_var(p.name).get_tensor()) for p in main.all_parameters()]
        told.append([value.tobytes() for value in got])
    assert told[0] == told[1]

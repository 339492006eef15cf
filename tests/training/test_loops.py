"""Loops and branches compute what Fluid computes; their gradients are slopes; what is refused."""

import json

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FeedError, GraphError, GraphTypeError, HpcdistError
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.fluid.layers.nested import conditional_block
from tests.fluid_ops import loops

pytestmark = pytest.mark.usefixtures("programs")


def run(fetches, feed=None, **how):
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return exe.run(feed=feed or {}, fetch_list=list(fetches), **how)


def number(value, dtype="int64"):
    return layers.fill_constant([1], dtype, value)


@pytest.mark.parametrize("program", loops.PROGRAMS, ids=lambda program: program.__name__)
def test_values_and_gradients_are_those_of_fluid(program):
    with open(loops.PATH) as file:
        expected = json.load(file)[program.__name__]
    for found, wanted in zip(loops.run(fluid, program), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def counted_loop(steps, body):
    i, n = number(0), number(steps)
    holds = layers.less_than(i, n)
    with layers.While(holds).block():
        body(i)
        layers.increment(i)
        layers.less_than(i, n, cond=holds)
    return i


def test_a_gradient_goes_through_what_every_turn_writes_anew():
    x = layers.data("x", [2, 3], append_batch_size=False)
    x.stop_gradient = False
    state = layers.assign(x)
    counted_loop(3, lambda i: layers.assign(layers.elementwise_mul(state, state), state))
    loss = layers.reduce_sum(state)
    (slope,) = fluid.gradients(loss, x)
    given = np.array([[0.5, -1.0, 2.0], [1.5, 0.1, 1.0]], "float32")
    value, slope = run([loss, slope], {"x": given})
    np.testing.assert_allclose(value, (given**8).sum(), rtol=1e-5)
    np.testing.assert_allclose(slope, 8 * given**7, rtol=1e-5)


def test_a_gradient_goes_through_a_branch_within_a_loop():
    x = layers.data("x", [1], append_batch_size=False)
    x.stop_gradient = False
    state = layers.assign(x)

    def body(i):
        even = layers.equal(layers.elementwise_mod(i, number(2)), number(0))
        made = layers.cond(
            even, lambda: layers.scale(state, 3.0), lambda: layers.elementwise_mul(state, x)
        )
        layers.assign(made, state)

    counted_loop(4, body)
    (slope,) = fluid.gradients(layers.reduce_sum(state), x)
    value, slope = run([state, slope], {"x": np.array([2.0], "float32")})
    np.testing.assert_allclose([value[0], slope[0]], [9 * 2.0**3, 27 * 2.0**2], rtol=1e-6)


def test_sequences_of_other_lengths_follow_one_another():
    x = layers.data("x", [2], lod_level=1)
    drnn = layers.DynamicRNN()
    with drnn.block():
        row = drnn.step_input(x)
        memory = drnn.memory(shape=[2])
        total = layers.elementwise_add(row, memory)
        drnn.update_memory(memory, total)
        drnn.output(total)
    exe = fluid.Executor()
    for lengths in ([2, 1], [1, 3], [4, 4]):
        rows = np.random.default_rng(1).normal(size=(sum(lengths), 2)).astype("float32")
        feed = {"x": fluid.create_lod_tensor(rows, [lengths])}
        (found,) = exe.run(feed=feed, fetch_list=[drnn()], return_numpy=False)
        parts = np.split(rows, np.cumsum(lengths)[:-1])
        np.testing.assert_allclose(found, np.concatenate([p.cumsum(0) for p in parts]), rtol=1e-5)
        assert found.recursive_sequence_lengths() == [lengths]


def test_a_dynamic_rnn_and_a_dynamic_gru_are_the_same():
    x = layers.data("x", [6], lod_level=1)
    whole = layers.dynamic_gru(x, 2, param_attr="w", bias_attr="b")
    drnn = layers.DynamicRNN()
    with drnn.block():
        row = drnn.step_input(x)
        memory = drnn.memory(shape=[2])
        hidden, _, _ = layers.gru_unit(row, memory, 6, param_attr="w", bias_attr="b")
        drnn.update_memory(memory, hidden)
        drnn.output(hidden)
    both = [layers.reduce_sum(layers.square(out)) for out in (whole, drnn())]
    weight = fluid.default_main_program().global_block().var("w")
    slopes = [fluid.gradients(loss, weight)[0] for loss in both]
    rows = np.random.default_rng(1).normal(size=(9, 6)).astype("float32")
    feed = {"x": fluid.create_lod_tensor(rows, [[3, 4, 2]])}
    one, other, slope, other_slope = run([whole, drnn(), *slopes], feed)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, other_slope, rtol=1e-4, atol=1e-6)


def test_training_with_a_loop_keeps_its_parameters_in_place():
    x = layers.data("x", [4, 2, 3], append_batch_size=False)
    y = layers.data("y", [2, 1], append_batch_size=False)
    rnn = layers.StaticRNN()
    with rnn.step():
        part = rnn.step_input(x)
        memory = rnn.memory(shape=[-1, 5], batch_ref=x)
        hidden = layers.fc([part, memory], 5, act="tanh")
        rnn.update_memory(memory, hidden)
        rnn.output(hidden)
    last = layers.reshape(layers.slice(rnn(), [0], [3], [4]), [2, 5])
    loss = layers.mean(layers.square_error_cost(layers.fc(last, 1), y))
    fluid.optimizer.Adam(0.05).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    rng = np.random.default_rng(2)
    feed = {"x": rng.normal(size=(4, 2, 3)).astype("float32")}
    feed["y"] = np.array([[1.0], [-1.0]], "float32")
    losses = [float(exe.run(feed=feed, fetch_list=[loss])[0][0]) for _ in range(40)]
    assert losses[-1] < 0.01 * losses[0]


def test_outer_steps_give_no_sequences_of_other_lengths():
    x = layers.data("x", [2], lod_level=2)
    outer = layers.DynamicRNN()
    with outer.block():
        sentence = outer.step_input(x)
        outer.output(layers.sequence_concat([sentence, sentence]))
    given = fluid.create_lod_tensor(np.ones((3, 2), "float32"), [[2, 1], [1, 1, 1]], None)
    with pytest.raises(HpcdistError, match="step 0 has sequences of other lengths"):
        run([outer()], {"x": given})


# -- what is refused -------------------------------------------------------------------------------
def test_conditions_must_be_bool_of_one_element():
    with pytest.raises(GraphTypeError, match="bool"):
        layers.While(number(1))
    many = layers.fill_constant([3], "bool", True)
    with pytest.raises(GraphTypeError, match="shape"):
        layers.cond(many, lambda: None, lambda: None)


def test_branches_must_give_the_same_structure():
    holds = layers.less_than(number(1), number(2))
    with pytest.raises(GraphError, match="same structure"):
        layers.cond(holds, lambda: number(1), lambda: [number(1), number(2)])
    with pytest.raises(GraphError, match="the other nothing"):
        layers.cond(holds, lambda: number(1), lambda: None)


def test_branches_may_give_values_of_different_ranks():
    """They train, too: the shape that counts is the step's."""
    x = fluid.data("x", [None, 4])
    weight = layers.create_parameter([4], "float32", name="w")
    h = layers.elementwise_mul(x, weight)
    out = layers.cond(
        layers.mean(x) > 0.0,
        lambda: layers.reduce_sum(h),
        lambda: layers.square(layers.reshape(h, [-1, 2, 2])),
    )
    three = layers.switch_case(
        layers.cast(layers.reduce_max(x), "int64"),
        {3: lambda: number(3), 5: lambda: layers.fill_constant([2, 2], "int64", 5)},
        default=lambda: layers.fill_constant([3], "int64", 0),
    )
    (slope,) = fluid.gradients(layers.mean(out), weight)
    ones = np.ones((3, 4), "float32")
    for given, shapes, expected in (
        (ones * 3, [(1,), (1,)], lambda w, x: x.sum(0)),
        (ones * -2, [(3, 2, 2), (3,)], lambda w, x: (2 * w * x * x).mean(0) / 4),
        (ones * 5, [(1,), (2, 2)], lambda w, x: x.sum(0)),
    ):
        value, picked, w, dw = run([out, three, weight, slope], {"x": given})
        assert [value.shape, picked.shape] == shapes
        np.testing.assert_allclose(dw, expected(w, given), rtol=1e-5)


def test_an_array_is_read_where_it_was_written_only():
    array = layers.array_write(number(1.0, "float32"), number(0))
    with pytest.raises(HpcdistError, match="nothing was written at 3"):
        run([layers.array_read(array, number(3))])


def test_what_only_the_other_branch_computes_is_not_there():
    out = layers.create_tensor("float32")
    with conditional_block([layers.less_than(number(2), number(1))], True):
        layers.assign(layers.data("y", [-1, 2], append_batch_size=False), out)
    with pytest.raises(HpcdistError, match="no operator has written"):
        run([out], {"y": np.zeros((3, 2), "float32")})


def test_messages_to_other_ranks_do_not_stand_in_loops():
    def body(i):
        block = fluid.default_main_program().current_block()
        block.append_op("c_allreduce_sum", {"X": total}, {"Out": total}, {"ring_id": 0})

    total = number(0.0, "float32")
    counted_loop(2, body)
    with pytest.raises(GraphError, match="'c_allreduce_sum' within it exchanges data with"):
        run([total])


def test_a_sequence_that_is_not_fed_is_missed():
    x = layers.data("x", [2], lod_level=1)
    drnn = layers.DynamicRNN()
    with drnn.block():
        drnn.output(drnn.step_input(x))
    with pytest.raises(FeedError, match="'x' is not fed"):
        run([drnn()])


# -- what users see and take part in ---------------------------------------------------------------
def test_print_shows_the_value_and_its_gradient_and_changes_nothing(capsys):
    x = layers.data("x", [2, 2], append_batch_size=False)
    x.stop_gradient = False
    shown = layers.Print(x, first_n=2, message="look", summarize=3)
    (slope,) = fluid.gradients(layers.reduce_sum(layers.square(shown)), x)
    exe = fluid.Executor()
    given = np.array([[1, 2], [3, 4]], "float32")
    for _ in range(3):
        (found,) = exe.run(feed={"x": given}, fetch_list=[slope])
    np.testing.assert_array_equal(found, 2 * given)
    told = capsys.readouterr().out
    assert told.count("look") == 4
    assert "Variable: x\n  - shape: [2, 2]\n  - dtype: float32\n  - data: [1.0, 2.0, 3.0]" in told
    assert "Variable: x@GRAD" in told


def test_a_print_that_nobody_reads_is_printed(capsys):
    layers.Print(number(7))
    run([number(1)])
    assert "data: [7]" in capsys.readouterr().out


def test_a_function_of_the_user_computes_a_value_and_its_gradient():
    x = layers.data("x", [3])
    x.stop_gradient = False
    block = fluid.default_main_program().current_block()
    out = block.create_var("cubed", shape=[-1, 3], dtype="float32")

    def slope(value, dout):
        return 3 * np.square(value) * np.array(dout)

    layers.py_func(lambda value: np.array(value) ** 3, x, out, slope, out)
    (gradient,) = fluid.gradients(layers.reduce_sum(layers.scale(out, 2.0)), x)
    given = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    value, found = run([out, gradient], {"x": given})
    np.testing.assert_allclose(value, given**3, rtol=1e-6)
    np.testing.assert_allclose(found, 6 * given**2, rtol=1e-5)


def test_what_is_computed_of_a_loop_is_kept_if_that_is_said(tmp_path):
    steps = layers.transpose(layers.data("x", [4, 3]), [1, 0, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        step = rnn.step_input(steps)
        before = rnn.memory(shape=[-1, 3], batch_ref=steps)
        after = before + step
        rnn.update_memory(before, after)
        rnn.step_output(after)
    last = layers.concat([layers.slice(rnn(), [0], [3], [4])] * 2, axis=0)
    last.persistable = True
    exe, scope = fluid.Executor(), Scope()
    with scope_guard(scope):
        for rows in (2, 2, 5):
            fed = np.random.default_rng(rows).normal(size=(rows, 4, 3)).astype(np.float32)
            exe.run(feed={"x": fed})
            kept = np.array(scope.find_var(last.name).get_tensor())
            np.testing.assert_allclose(kept, [fed.sum(1)] * 2, rtol=1e-5, atol=1e-6)
        fluid.save(fluid.default_main_program(), str(tmp_path / "model"))
        scope.find_var(last.name).get_tensor().set(np.zeros_like(kept), fluid.CPUPlace())
        fluid.load(fluid.default_main_program(), str(tmp_path / "model"))
        np.testing.assert_array_equal(np.array(scope.find_var(last.name).get_tensor()), kept)


def test_a_loop_may_change_the_lists_and_dicts_it_is_given():
    def body(i, held):
        held["sum"] = held["sum"] + 1.0
        held["last"][0] = held["sum"] * 2.0
        return [layers.increment(i), held]

    held = {"sum": number(0.0, "float32"), "last": [number(0.0, "float32")]}
    ten = number(10)
    i, found = layers.while_loop(lambda i, _: i < ten, body, [number(0), held])
    assert [v.item() for v in run([i, found["sum"], found["last"][0]])] == [10, 10.0, 20.0]


def test_a_loop_without_variables_is_refused():
    with pytest.raises(GraphError, match="must have a variable"):
        layers.while_loop(lambda: None, lambda: None, [])


def test_a_conditional_block_runs_if_its_inputs_have_rows():
    x = fluid.data("x", [None, 2])
    out = layers.create_global_var([1], 0.0, "float32", persistable=True)
    with layers.control_flow.ConditionalBlock([x]).block():
        layers.assign(layers.reduce_sum(x), out)
    assert run([out], {"x": np.zeros((0, 2), "float32")})[0].item() == 0
    assert run([out], {"x": np.ones((3, 2), "float32")})[0].item() == 6
    with pytest.raises(GraphTypeError, match="inputs must be Variables"):
        layers.control_flow.ConditionalBlock([3])


def test_a_memory_of_sequences_of_sequences_has_a_row_for_each_outer_one():
    x = fluid.data("x", [-1, 2], "float32", lod_level=2)
    documents = layers.DynamicRNN()
    with documents.block():
        sentence = documents.step_input(x)
        so_far = documents.memory(shape=[2], value=1.0)
        total = so_far + layers.sequence_pool(sentence, "sum")
        documents.update_memory(so_far, total)
        documents.output(total)
    out = layers.sequence_last_step(documents())
    rows = np.arange(12, dtype="float32").reshape(6, 2)
    fed = fluid.create_lod_tensor(rows, [[1, 2], [3, 1, 2]], fluid.CPUPlace())
    (got,) = fluid.Executor().run(feed={"x": fed}, fetch_list=[out])
    assert got.tolist() == [(rows[:3].sum(0) + 1).tolist(), (rows[3:].sum(0) + 1).tolist()]


def test_an_array_that_is_read_twice_has_the_sum_of_both_gradients():
    x = layers.data("x", [4], append_batch_size=False, stop_gradient=False)
    array = layers.array_write(x, number(0))
    once, twice = layers.array_read(array, number(0)), layers.array_read(array, number(0))
    fluid.backward.append_backward(layers.mean(once * once + twice))
    (slope,) = run([x.grad_name], {"x": np.arange(4, dtype=np.float32)})
    np.testing.assert_allclose(slope, [0.25, 0.75, 1.25, 1.75])


def test_a_while_loop_takes_and_gives_an_array():
    x, i = layers.data("x", [3], append_batch_size=False), number(0)
    array = layers.array_write(x, i)

    def body(i, array):
        value = layers.array_read(array, i)
        i = layers.increment(i)
        layers.array_write(value * 2.0, i, array)
        return [i, array]

    i, array = layers.while_loop(lambda i, _: layers.less_than(i, number(3)), body, [i, array])
    fetched = [layers.array_read(array, i), layers.array_length(array)]
    last, length = run(fetched, {"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(last, [8, 8, 8])
    assert length == [4]


def test_a_switch_case_is_told_what_it_cannot_take():
    index, one = number(1), lambda: number(1)
    for branches in (1, [1], [(1, one, one)], [(1, 2)]):
        with pytest.raises(GraphTypeError, match="switch_case"):
            layers.switch_case(index, branches)
    for other in (1, number(1, "float32")):
        with pytest.raises(GraphTypeError, match="branch_index"):
            layers.switch_case(other, {1: one})


def test_data_that_a_loop_writes_anew_and_counts_on_has_a_gradient():
    i, x, last = fluid.data("i", [1]), fluid.data("x", [1]), number(11, "float32")
    i.stop_gradient = x.stop_gradient = False

    def body(i, x):
        square = layers.elementwise_mul(i, i)
        return [layers.increment(i), square]  # in place

    found = layers.while_loop(lambda i, x: layers.less_than(i, last), body, [i, x])
    fluid.backward.append_backward(layers.mean(found[1]))
    one = np.ones(1, "float32")
    value, slope = run([found[1].name, i.grad_name], {"i": one, "x": one})
    assert (value, slope) == (100, 20)


def test_a_body_gives_as_many_values_as_it_takes():
    with pytest.raises(GraphError, match="what it takes, 1 values, got 2"):
        layers.while_loop(lambda i: layers.less_than(i, number(3)), lambda i: (i, i), [number(0)])


def test_joined_arrays_tell_their_sizes_when_they_are_stacked_too():
    array = layers.array_write(layers.ones([2, 3], "float32"), number(0))
    for stacked in (True, False):
        (sizes,) = run([layers.tensor_array_to_tensor(array, axis=1, use_stack=stacked)[1]])
        assert sizes.tolist() == [3]

"""Layers of arithmetic and control flow: names, operators and values as Fluid's."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist import layers
from hpcdist.backward import gradients
from hpcdist.errors import GraphError, GraphTypeError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope


def data(name, shape, dtype="float32"):
    from hpcdist.graph import default_main_program

    block = default_main_program().global_block()
    return block.create_var(name, shape=shape, dtype=dtype, is_data=True)


def ops(program, block=0):
    return [op.type for op in program.block(block).ops]


def run(programs, feed, fetch, times=1):
    main, startup = programs
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    return [exe.run(main, feed=feed, fetch_list=fetch, scope=scope) for _ in range(times)]


# -- signs -----------------------------------------------------------------------------------------
X = np.array([[1.0, 2.0, 4.0]], "float32")


@pytest.mark.parametrize(
    ("expression", "types", "value"),
    [
        (lambda x: x + 1, ["scale"], X + 1),
        (lambda x: 1 + x, ["scale"], X + 1),
        (lambda x: x - 1, ["scale"], X - 1),
        (lambda x: 1 - x, ["scale"], 1 - X),
        (lambda x: x * 3, ["scale"], X * 3),
        (lambda x: x / 4, ["scale"], X / 4),
        (lambda x: -x, ["scale"], -X),
        (lambda x: x**2, ["fill_constant", "elementwise_pow"], X**2),
        (lambda x: 1 / x, ["fill_constant_batch_size_like", "elementwise_div"], 1 / X),
        (lambda x: 2**x, ["fill_constant_batch_size_like", "elementwise_pow"], 2**X),
        (lambda x: x % 2, ["fill_constant", "elementwise_mod"], X % 2),
        (lambda x: x // 2, ["fill_constant", "elementwise_floordiv"], X // 2),
        (lambda x: x < 2, ["fill_constant", "less_than"], X < 2),
        (lambda x: x >= 2, ["fill_constant", "greater_equal"], X >= 2),
        (lambda x: x == 2, ["fill_constant", "equal"], X == 2),
        (lambda x: x != 2, ["fill_constant", "not_equal"], X != 2),
        (lambda x: x + x, ["elementwise_add"], X + X),
        (lambda x: x.astype("int64"), ["cast"], X.astype("int64")),
        (lambda x: np.float32(2) * x, ["scale"], 2 * X),
    ],
)
def test_signs_append_the_operators_of_fluid(programs, expression, types, value):
    out = expression(data("x", [-1, 3]))
    assert ops(programs[0]) == types
    assert out.name == f"tmp_{len(types) - 1}"
    ((got,),) = run(programs, {"x": X}, [out])
    assert got.dtype == value.dtype
    np.testing.assert_allclose(got, value, rtol=1e-6)


def test_a_number_of_a_known_shape_is_filled_whole(programs):
    out = 1 / data("x", [1, 3])
    assert programs[0].global_block().ops[0].attr("shape") == [1, 3]
    np.testing.assert_allclose(run(programs, {"x": X}, [out])[0][0], 1 / X)


def test_signs_convert_the_right_side_to_the_type_of_the_left(programs):
    out = data("x", [-1, 3]) + data("i", [-1, 3], "int64")
    assert ops(programs[0]) == ["cast", "elementwise_add"]
    ((got,),) = run(programs, {"x": X, "i": np.ones((1, 3), "int64")}, [out])
    assert got.tolist() == (X + 1).tolist()


def test_variables_are_compared_by_operators_and_found_by_identity(programs):
    x, y = data("x", [-1, 3]), data("i", [-1, 3], "int64")
    assert {x: 1, y: 2}[y] == 2 and len({x, y, x}) == 2
    assert x in [x, y] and x is not None and x != None and x != "x"  # noqa: E711
    assert ops(programs[0]) == []
    out = [x == y, x != y, x == 2.0]
    assert ops(programs[0]) == ["cast", "equal", "cast", "not_equal", "fill_constant", "equal"]
    twos = np.full((1, 3), 2, "int64")
    same, other, two = (v.tolist() for v in run(programs, {"x": X, "i": twos}, out)[0])
    assert same == two == (X == 2).tolist() and other == (X != 2).tolist()


def test_signs_refuse_what_is_no_number(programs):
    x = data("x", [1])
    with pytest.raises(TypeError):
        x + "1"
    for several in (np.ones(2, "float32"), [1.0], (1.0, 2.0)):
        with pytest.raises(GraphTypeError, match="expected a Variable or a number"):
            x == several  # noqa: B015
        with pytest.raises(GraphTypeError, match="expected a Variable or a number"):
            x != several  # noqa: B015


def test_an_array_of_one_element_is_a_number(programs):
    x, two = data("x", [-1, 3]), np.array([2.0], "float32")
    got = run(programs, {"x": X}, [x == two, x != two, x + two])[0]
    for value, expected in zip(got, (X == 2, X != 2, X + 2)):
        assert value.tolist() == expected.tolist()


# -- parts -----------------------------------------------------------------------------------------
CUBE = np.arange(60, dtype="float32").reshape(3, 4, 5)


@pytest.mark.parametrize(
    ("part", "types", "name"),
    [
        (np.s_[1], ["slice"], "x_slice_0"),
        (np.s_[-1], ["slice"], "x_slice_0"),
        (np.s_[1:3, :, 2], ["slice"], "x_slice_0"),
        (np.s_[:, 1:-1, -2:], ["slice"], "x_slice_0"),
        (np.s_[:, np.int64(1)], ["slice"], "x_slice_0"),
        (np.s_[:], [], "x"),
        (np.s_[0:], [], "x"),
        (np.s_[:, ::-1], ["reverse"], "x_slice_reverse_0"),
        (np.s_[::-1, 1:3], ["slice", "reverse"], "x_slice_reverse_0"),
        (np.s_[0:3:2, 3:0:-2], ["strided_slice"], "x_strided_slice_0"),
        (np.s_[::2, :1:-1, 3], ["strided_slice"], "x_strided_slice_0"),
    ],
)
def test_parts_append_the_operators_of_fluid(programs, part, types, name):
    found = data("x", [3, 4, 5])[part]
    assert (ops(programs[0]), found.name) == (types, name)
    ((got,),) = run(programs, {"x": CUBE}, [found])
    np.testing.assert_array_equal(got, CUBE[part])
    assert found.shape == got.shape


def test_a_slice_of_all_rows_is_none(programs):
    data("x", [3, 4, 5])[0:, 1:2, 0::1]
    (op,) = programs[0].global_block().ops
    assert (op.attr("axes"), op.attr("starts")) == ([1], [1])


def test_one_element_has_a_shape_as_in_fluid(programs):
    x = data("x", [3, 4, 5])
    found = x[0, 1, 2]
    op = programs[0].global_block().ops[0]
    assert (op.attr("starts"), op.attr("ends")) == ([0, 1, 2], [1, 2, 3])
    assert op.attr("decrease_axis") == [0, 1, 2]
    assert run(programs, {"x": CUBE}, [found])[0][0].tolist() == [7.0]


@pytest.mark.parametrize(
    ("part", "type"),
    [
        (lambda a, b: np.s_[:, a:b, :], "slice"),
        (lambda a, b: np.s_[a], "slice"),
        (lambda a, b: np.s_[0, b, a:], "slice"),
        (lambda a, b: np.s_[1:, -2:b], "slice"),
        (lambda a, b: np.s_[:b, :, 4:a:-2], "strided_slice"),
    ],
)
def test_parts_by_variables(programs, part, type):
    x = data("x", [-1, 4, 5])
    a = layers.fill_constant([1], "int32", 0) + 1
    b = layers.shape(x)[1] - 1
    found = x[part(a, b)]
    assert found.name == f"x_{type}_0"
    ((got,),) = run(programs, {"x": CUBE}, [found])
    np.testing.assert_array_equal(got.reshape(CUBE[part(1, 3)].shape), CUBE[part(1, 3)])


def test_an_index_may_be_fed(programs):
    found = data("x", [-1, 4, 5])[data("at", [1], "int64"), 1:]
    assert found.shape == (3, 5)
    exe, scope = Executor(), Scope()
    for at in (2, 0):
        feed = {"x": CUBE, "at": np.array([at])}
        (got,) = exe.run(programs[0], feed=feed, fetch_list=[found], scope=scope)
        np.testing.assert_array_equal(got, CUBE[at, 1:])


def test_parts_by_variables_have_gradients(programs):
    x = layers.create_parameter([3, 4], "float32", "w")
    a = layers.fill_constant([1], "int32", 1)
    (grad,) = gradients(layers.reduce_sum(x[:, a:3]), x)
    ((got,),) = run(programs, {}, [grad])
    assert got.tolist() == [[0, 1, 1, 0]] * 3


def test_parts_that_cannot_be(programs):
    x = data("x", [3, 4, 5])
    for part in (..., None, "a", [0, 1], np.s_["a":], np.s_[::1.5]):
        with pytest.raises(TypeError, match=r"x\[...\]: an index is a number or a slice"):
            x[part]
    for part in (3, np.s_[2:1], np.s_[0, 0, 0, 0]):
        with pytest.raises(GraphError):
            x[part]
    with pytest.raises(TypeError, match="'x' is float32, expected int32 or int64"):
        x[x]
    with pytest.raises(TypeError, match="is float32, expected int32 or int64"):
        x[:: x[0, 0, 0]]
    with pytest.raises(TypeError, match="not iterable"):
        list(x)


# -- layers ----------------------------------------------------------------------------------------
def test_names_are_those_of_fluid(programs):
    x = data("x", [-1, 3, 4])
    made = [
        (layers.elementwise_mul(x, x), "elementwise_mul_0.tmp_0"),
        (layers.elementwise_add(x, x, act="relu"), "elementwise_add_0.tmp_1"),
        (layers.reduce_sum(x), "reduce_sum_0.tmp_0"),
        (layers.mean(x), "mean_0.tmp_0"),
        (layers.cast(x, "int64"), "cast_0.tmp_0"),
        (layers.reshape(x, [0, -1], act="tanh"), "reshape2_0.tmp_2"),
        (layers.transpose(x, [0, 2, 1]), "transpose_0.tmp_0"),
        (layers.unsqueeze(x, [1]), "unsqueeze2_0.tmp_0"),
        (layers.sums([x, x]), "sum_0.tmp_0"),
        (layers.zeros([1], "float32"), "fill_constant_0.tmp_0"),
        (layers.argmax(x), "arg_max_0.tmp_0"),
        (layers.create_tensor("float32"), "create_tensor_0"),
        (layers.create_parameter([2, 2], "float32"), "create_parameter_0.w_0"),
        (layers.create_global_var([1], 1.0, "float32"), "_generated_var_0"),
        (layers.square(x, name="mine"), "mine.tmp_0"),
    ]
    assert [var.name for var, _ in made] == [name for _, name in made]


def test_what_stops_gradients(programs):
    x = data("x", [-1, 3])
    stopping = [
        layers.fill_constant([1], "float32", 1.0),
        layers.zeros_like(x),
        layers.less_than(x, x),
        layers.argmax(x, axis=1),
        layers.create_global_var([1], 0.0, "float32"),
    ]
    assert all(var.stop_gradient for var in stopping)
    assert not layers.square(x).stop_gradient


def test_assign_of_arrays(programs):
    values = [np.array([[1, 2]], dtype) for dtype in ("float32", "int32", "int64")]
    out = [layers.assign(v) for v in values] + [layers.assign([0.5, 1.5])]
    (got,) = run(programs, {}, out)
    for have, want in zip(got, [*values, np.array([0.5, 1.5], "float32")]):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)
    with pytest.raises(GraphError, match="array of float32, float16, int32, int64, bool"):
        layers.assign(np.zeros(1, "uint8"))


def test_bad_arguments_are_refused_when_the_program_is_built(programs):
    x = data("x", [-1, 3, 4])
    for wrong, message in (
        (lambda: layers.clip(x, 1.0, 1.0), "min must be below max"),
        (lambda: layers.reduce_sum(x, dim=3), "dim 3 is outside"),
        (lambda: layers.matmul(x, x), "4 columns meet 3 rows"),
        (lambda: layers.concat([x, layers.mean(x)]), "cannot concat shapes"),
    ):
        with pytest.raises(GraphError, match=message):
            wrong()


def test_split_gives_variables_with_shapes(programs):
    x = data("x", [-1, 3, 4])
    assert [v.shape for v in layers.split(x, 2)] == [(-1, 3, 2)] * 2
    assert [v.shape for v in layers.split(x, [1, -1], dim=1)] == [(-1, 1, 4), (-1, 2, 4)]


# -- control flow ----------------------------------------------------------------------------------
def test_counter_begins_and_steps(programs):
    counter = layers.autoincreased_step_counter("@C@", begin=5, step=2)
    assert layers.autoincreased_step_counter("@C@") is counter
    assert ops(programs[0]) == ["increment"]
    assert [int(got[0]) for (got,) in run(programs, {}, [counter], 3)] == [6, 8, 10]


def test_switch_runs_the_first_case_that_holds(programs):
    main, _ = programs
    rate = layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
    step = layers.cast(layers.autoincreased_step_counter(begin=0), "float32")
    with layers.Switch() as switch:
        for bound, value in ((2.0, 1.0), (4.0, 0.5)):
            with switch.case(step < bound):
                layers.assign(np.array([value], "float32"), rate)
        with switch.default():
            layers.assign(np.array([0.25], "float32"), rate)
    conditions = [op for op in main.global_block().ops if op.type == "conditional_block"]
    assert [op.attr("sub_block") for op in conditions] == [1, 2, 3]
    assert all(op.attr("is_scalar_condition") and op.output("Out") == ["rate"] for op in conditions)
    assert [ops(main, i) for i in (1, 2, 3)] == [["assign_value"]] * 3
    values = [float(got[0]) for (got,) in run(programs, {}, [rate], 6)]
    assert values == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_switch_refuses_misuse(programs):
    x = data("x", [1])
    switch = layers.Switch()
    with pytest.raises(GraphError, match="inside"), switch.case(x < 1):
        pass
    with (
        layers.Switch() as switch,
        pytest.raises(GraphError, match="case before it"),
        switch.default(),
    ):
        pass
    with (
        layers.Switch() as switch,
        pytest.raises(TypeError, match="condition must be a Variable"),
        switch.case(1),
    ):
        pass
    assert programs[0].current_block_idx == 0


def test_an_if_cannot_ask_for_what_only_a_step_knows(programs):
    """Fluid takes every such comparison for true."""
    x, y = data("x", [1]), data("y", [1])
    for compared in (x > 0.5, x < y, x >= 0, y >= 1, x == y, x != 1):
        with pytest.raises(GraphTypeError, match=r"compares values that only a step knows.*cond"):
            bool(compared)
    with pytest.raises(GraphTypeError, match="use layers.cond"):
        _ = 0 < x < 1
    assert x and layers.less_than(x, y)  # that there is a variable, as everywhere
    with pytest.raises(GraphTypeError, match="`a is b`"):
        _ = x in [y]
    layers.cond(layers.mean(x) > 0.5, lambda: x + 1.0, lambda: x - 1.0)


def test_formulas_in_docstrings_are_what_is_computed(programs):
    """Of layers that are made in one line, whose docstrings no example tests."""
    values = np.array([0.125, 0.5, 0.75], "float32")
    names = {name.replace("arc", "a"): getattr(np, name) for name in NAMES.split()}
    tried = 0
    for name in sorted(layers.__all__):
        layer = getattr(layers, name)
        said, _, rest = (layer.__doc__ or "").partition(" of every element.\n\nx: float32")
        if not rest:
            continue
        tried += 1
        formula = said.removeprefix("Return ")
        for signed in [values] if formula in POSITIVE else [values, -values]:
            (got,) = run(programs, {}, [layer(layers.assign(signed))])[0]
            told = eval(formula, {"max": np.maximum, "x": signed, **names})
            np.testing.assert_allclose(got, told, rtol=1e-5, atol=1e-6, err_msg=name)
    assert tried >= 20


NAMES = "abs arccos arcsin arctan ceil cos exp floor log round sign sin sqrt tanh"
POSITIVE = ("log(x)", "sqrt(x)", "1 / sqrt(x)")

"""append_backward: which gradient operators, in which order, under which names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hpcdist import layers, optimizer
from hpcdist.backward import append_backward, calc_gradient, gradients
from hpcdist.errors import GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.names import guard
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import Program, default_main_program, program_guard
from hpcdist.graph.variable import Variable
from hpcdist.initializer import Constant, NumpyArrayInitializer


@pytest.fixture(autouse=True)
def programs() -> Iterator[None]:
    with guard(), program_guard(Program(), Program()):
        yield


def backward_ops() -> list[Any]:
    ops = default_main_program().global_block().ops
    return [op for op in ops if op.role & OpRole.BACKWARD]


def types() -> list[str]:
    return [op.type for op in backward_ops()]


def weight(name: str, shape: tuple[int, ...] = (4, 4), value: Any = None) -> Variable:
    first = Constant(0.5) if value is None else NumpyArrayInitializer(np.float32(value))
    return layers.create_parameter(shape, "float32", name=name, default_initializer=first)


def mean_of(x: Variable) -> Variable:
    return layers.mean(x)


def values(fetches: list[Any], **feed: np.ndarray) -> list[np.ndarray]:
    scope, exe = Scope(), Executor()
    from hpcdist.graph.program import default_startup_program

    exe.run(default_startup_program(), scope=scope)
    return exe.run(default_main_program(), feed, fetches, scope=scope)


# -- the chain -------------------------------------------------------------------------------------
def test_roles_and_role_variables() -> None:
    loss = mean_of(layers.fc(layers.data("x", [3]), 2))
    pairs = append_backward(loss)
    assert [(p.name, g.name) for p, g in pairs] == [
        ("fc_0.w_0", "fc_0.w_0@GRAD"),
        ("fc_0.b_0", "fc_0.b_0@GRAD"),
    ]
    assert loss.op.role == OpRole.LOSS
    fill, *rest = backward_ops()
    assert (fill.type, fill.role, fill.attr("value")) == ("fill_constant", 257, 1.0)
    assert {op.role for op in rest} == {OpRole.BACKWARD}
    finished = {op.type: op.attrs["op_role_var"] for op in rest if "op_role_var" in op.attrs}
    assert finished == {
        "mul_grad": ["fc_0.w_0", "fc_0.w_0@GRAD"],
        "elementwise_add_grad": ["fc_0.b_0", "fc_0.b_0@GRAD"],
    }


def test_gradients_have_shape_and_dtype_of_their_variables() -> None:
    append_backward(mean_of(layers.fc(layers.data("x", [3]), 2)))
    block = default_main_program().global_block()
    for name in [n for n in block.vars if n.endswith("@GRAD")]:
        forward = block.var(name.removesuffix("@GRAD"))
        assert (block.var(name).shape, block.var(name).dtype) == (forward.shape, forward.dtype)


def test_data_gets_no_gradient() -> None:
    append_backward(mean_of(layers.fc(layers.data("x", [3]), 2)))
    assert not any("x@GRAD" in op.output_arg_names for op in backward_ops())


def test_data_that_asks_for_a_gradient_gets_one() -> None:
    x = layers.data("x", [3], stop_gradient=False)
    append_backward(mean_of(layers.fc(x, 2)))
    (mul,) = [op for op in backward_ops() if op.type == "mul_grad"]
    assert mul.output("X@GRAD") == ["x@GRAD"]


def test_values_that_only_depend_on_data_get_none() -> None:
    scaled = layers.scale(layers.square(layers.data("x", [3])), 2.0)
    append_backward(mean_of(layers.fc(scaled, 2)))
    assert types() == ["fill_constant", "mean_grad", "elementwise_add_grad", "mul_grad"]
    assert backward_ops()[-1].output("X@GRAD") == []


# -- repeated gradients ----------------------------------------------------------------------------
def test_a_value_used_twice_is_summed_before_its_own_gradient() -> None:
    h = layers.relu(weight("w"))
    append_backward(mean_of(layers.elementwise_add(layers.tanh(h), layers.sigmoid(h))))
    assert types()[-4:] == ["sigmoid_grad", "tanh_grad", "sum", "relu_grad"]
    total = backward_ops()[-2]
    assert total.input("X") == [
        "relu_0.tmp_0@GRAD@RENAME@block0@0",
        "relu_0.tmp_0@GRAD@RENAME@block0@1",
    ]
    assert total.output("Out") == ["relu_0.tmp_0@GRAD"]


def test_a_parameter_used_three_times_is_summed_at_the_end() -> None:
    w = weight("w")
    ((_, g),) = append_backward(
        mean_of(layers.sums([layers.tanh(w), layers.exp(w), layers.sqrt(w)]))
    )
    total = backward_ops()[-1]
    assert total.type == "sum"
    assert total.input("X") == [f"w@GRAD@RENAME@block0@{k}" for k in range(3)]
    assert total.attrs["op_role_var"] == ["w", "w@GRAD"]
    assert g.op is total


def test_both_operands_of_one_operator() -> None:
    w = weight("w")
    append_backward(mean_of(layers.elementwise_mul(w, w)))
    grad, total = backward_ops()[-2:]
    assert grad.output("X@GRAD") == ["w@GRAD@RENAME@block0@0"]
    assert grad.output("Y@GRAD") == ["w@GRAD@RENAME@block0@1"]
    assert total.input("X") == ["w@GRAD@RENAME@block0@0", "w@GRAD@RENAME@block0@1"]


def test_twice_in_one_list() -> None:
    w = weight("w")
    append_backward(mean_of(layers.concat([w, w], axis=0)))
    grad, total = backward_ops()[-2:]
    assert grad.output("X@GRAD") == total.input("X")
    assert len(set(total.input("X"))) == 2


@pytest.mark.parametrize(
    ("net", "derivative"),
    [
        (lambda w: layers.elementwise_mul(w, w), lambda w: 2 * w),
        (lambda w: layers.elementwise_mul(w, layers.square(w)), lambda w: 3 * w**2),
        (
            lambda w: layers.sums([layers.square(w), layers.exp(w), w]),
            lambda w: 2 * w + np.exp(w) + 1,
        ),
        (
            lambda w: layers.concat([w, layers.square(w), w], axis=0),
            lambda w: (2 + 2 * w) / 3,
        ),
    ],
)
def test_bucket_allreduce_are_right(
    net: Callable[..., Variable], derivative: Callable[..., Any]
) -> None:
    first = np.linspace(0.1, 0.8, 8, dtype=np.float32).reshape(2, 4)
    ((_, g),) = append_backward(mean_of(net(weight("w", (2, 4), first))))
    np.testing.assert_allclose(values([g])[0], derivative(first) / 8, rtol=1e-5)


# -- what is left out ------------------------------------------------------------------------------
def test_stop_gradient_and_no_grad_set_cut_the_chain() -> None:
    for cut in ("stop_gradient", "no_grad_set"):
        with guard(), program_guard(Program(), Program()):
            hidden = layers.fc(layers.data("x", [3]), 2, name="first")
            hidden.stop_gradient = cut == "stop_gradient"
            loss = mean_of(layers.fc(hidden, 2, name="second"))
            pairs = append_backward(loss, no_grad_set={hidden} if cut == "no_grad_set" else None)
            assert [p.name for p, _ in pairs] == ["second.w_0", "second.b_0"]
            assert types().count("mul_grad") == 1


def test_no_grad_set_takes_names_of_parameters() -> None:
    pairs = append_backward(mean_of(layers.fc(layers.data("x", [3]), 2)), no_grad_set={"fc_0.b_0"})
    assert [p.name for p, _ in pairs] == ["fc_0.w_0"]


def test_integers_get_no_gradient() -> None:
    ids = layers.data("ids", [1], dtype="int64", stop_gradient=False)
    append_backward(mean_of(layers.embedding(ids, [10, 4])))
    assert "ids@GRAD" not in default_main_program().global_block().vars


def test_operators_beside_the_way_get_none() -> None:
    hidden = layers.fc(layers.data("x", [3]), 2)
    layers.mean(layers.square(hidden))
    append_backward(mean_of(layers.tanh(hidden)))
    assert "square_grad" not in types()


def test_an_output_nobody_uses_counts_as_zero() -> None:
    w = weight("w", (4, 4), np.ones((4, 4)))
    left, _ = layers.split(w, 2, dim=1)
    ((_, g),) = append_backward(mean_of(layers.square(left)))
    assert "fill_zeros_like" in types()
    want = np.hstack([np.full((4, 2), 0.25), np.zeros((4, 2))])
    np.testing.assert_allclose(values([g])[0], want, rtol=1e-6)


def test_parameter_list_limits_the_pairs() -> None:
    loss = mean_of(layers.fc(layers.data("x", [3]), 2))
    assert [p.name for p, _ in append_backward(loss, ["fc_0.b_0"])] == ["fc_0.b_0"]


def test_a_frozen_parameter_gets_none() -> None:
    from hpcdist.fluid.layers.param_attr import ParamAttr

    x = layers.data("x", [3])
    loss = mean_of(layers.fc(x, 2, param_attr=ParamAttr(trainable=False)))
    assert [p.name for p, _ in append_backward(loss)] == ["fc_0.b_0"]


def test_sparse_embedding_gives_selected_rows() -> None:
    ids = layers.data("ids", [1], dtype="int64")
    ((_, g),) = append_backward(mean_of(layers.embedding(ids, [10, 4], is_sparse=True)))
    assert (g.type, g.shape) == ("SELECTED_ROWS", (10, 4))


# -- a second backward -----------------------------------------------------------------------------
def test_a_second_loss_keeps_the_first_ones_gradients() -> None:
    first = np.float32([[1, 2], [3, 4]])
    h = layers.square(weight("w", (2, 2), first))
    a, b = mean_of(h), mean_of(layers.square(h))
    ((_, g1),) = append_backward(a)
    ((_, g2),) = append_backward(b)
    assert g1.name == "w@GRAD"
    assert g2.name != g1.name
    got = values([g1, g2])
    np.testing.assert_allclose(got[0], 2 * first / 4, rtol=1e-6)
    np.testing.assert_allclose(got[1], 4 * first**3 / 4, rtol=1e-6)


def test_two_optimizers_in_one_program() -> None:
    h = layers.fc(layers.data("x", [3]), 2)
    optimizer.SGD(0.1).minimize(mean_of(h))
    optimizer.SGD(0.1).minimize(mean_of(layers.square(h)))
    values([], x=np.ones((2, 3), np.float32))


# -- gradients() -----------------------------------------------------------------------------------
def test_gradients_of_an_input() -> None:
    x = layers.data("x", [3], stop_gradient=False)
    (g,) = gradients(layers.square(x), x)
    fed = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(values([g], x=fed)[0], 2 * fed)


def test_gradients_of_a_value_inside_and_of_stopped_data() -> None:
    x = layers.data("x", [3])
    h = layers.square(x)
    got = gradients([layers.exp(h)], [h, x])
    fed = np.float32([[0.1, 0.2, 0.3]])
    dh, dx = values(got, x=fed)
    np.testing.assert_allclose(dh, np.exp(fed**2), rtol=1e-6)
    np.testing.assert_allclose(dx, 2 * fed * np.exp(fed**2), rtol=1e-6)


def test_gradients_weighted_and_absent() -> None:
    w, v = weight("w", (1, 3)), weight("v", (1, 3))
    weights = layers.data("c", [3])
    weights.shape = (1, 3)
    got = gradients([layers.scale(w, 2.0)], [w, v], [weights])
    assert got[1] is None
    np.testing.assert_allclose(values(got[:1], c=np.float32([[1, 2, 3]]))[0], [[2, 4, 6]])
    assert calc_gradient(layers.square(v), v).shape == (1, 3)


def test_the_weights_of_a_target_may_have_the_name_of_its_gradient() -> None:
    """As where Fluid's own tests check second derivatives."""
    x = layers.data("x", [2], stop_gradient=False)
    y = layers.square(x)
    (first,) = gradients([y], [x], [layers.data(f"{y.name}@GRAD", [2])])
    weighted = {"x": np.float32([[1, 2]]), f"{y.name}@GRAD": np.float32([[3, 5]])}
    np.testing.assert_allclose(values([first], **weighted)[0], [[6, 20]])


# -- refusals --------------------------------------------------------------------------------------
def test_loss_of_another_shape() -> None:
    with pytest.raises(AssertionError, match=r"shape \(1,\) or \(\), got \(-1, 2\).*layers.mean"):
        append_backward(layers.fc(layers.data("x", [3]), 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "mean"}, "must be a Variable"),
        ({"no_grad_set": 3}, "no_grad_set"),
        ({"no_grad_set": [3]}, "expected a Variable or a name"),
        ({"callbacks": 3}, "callbacks"),
    ],
)
def test_arguments_of_wrong_type(arguments: dict[str, Any], message: str) -> None:
    loss = mean_of(weight("w"))
    with pytest.raises(TypeError, match=message):
        append_backward(**{"loss": loss, **arguments})


def test_unknown_parameter_and_loss_without_operator() -> None:
    with pytest.raises(GraphError, match="no parameter 'nobody'"):
        append_backward(mean_of(weight("w")), ["nobody"])
    x = layers.data("x", [1])
    x.shape = (1,)
    with pytest.raises(GraphError, match="no operator computes"):
        append_backward(x)


def test_callbacks_see_every_operator() -> None:
    seen = []

    def note(block: Any, context: dict[str, Any]) -> None:
        seen.append(context["__current_op_desc__"].type)

    append_backward(mean_of(layers.tanh(weight("w"))), callbacks=[note])
    assert seen == types()


def test_the_gradient_of_a_sum_says_no_more_than_its_scale() -> None:
    # As in Fluid 1.8.5: bias and bias_after_scale are only on scales that layers made.
    append_backward(layers.sum([mean_of(weight("a")), mean_of(weight("b"))]))
    scales = [op.all_attrs() for op in backward_ops() if op.type == "scale"]
    assert scales == [{"scale": 1.0, "op_role": 1}] * 2


def test_the_name_for_nobody_is_no_variable() -> None:
    both = layers.concat([layers.data("x", [4]), layers.fc(layers.data("y", [4]), 4)], axis=1)
    append_backward(layers.mean(both))
    (split,) = [op for op in backward_ops() if op.type == "concat_grad"]
    assert split.output("X@GRAD")[0] == "@EMPTY@"
    assert not default_main_program().global_block().has_var("@EMPTY@")


def test_an_increment_has_a_gradient() -> None:
    x = layers.data("x", [2], append_batch_size=False)
    x.stop_gradient = False
    y = layers.increment(layers.reduce_sum(x * x, keep_dim=True), 3.0)  # in place
    append_backward(mean_of(y * y))
    (slope,) = values([x.grad_name], x=np.float32([1, 2]))
    np.testing.assert_allclose(slope, [32, 64])


def test_a_gradient_reads_what_an_increment_has_left_alone() -> None:
    x = layers.data("x", [1], append_batch_size=False)
    x.stop_gradient = False
    first = layers.scale(x, 2.0)
    square = layers.elementwise_mul(first, first)
    append_backward(mean_of(square + layers.increment(first, 3.0, in_place=False)))
    assert values([x.grad_name], x=np.float32([1]))[0] == 10


def test_a_result_that_counts_as_a_constant_is_named():
    logits = layers.fc(layers.data("x", [4]), 3)
    label = layers.data("y", [1], dtype="int64")
    loss, softmax = layers.softmax_with_cross_entropy(logits, label, return_softmax=True)
    gradients(layers.mean(loss), logits)
    both = layers.mean(loss) + layers.mean(softmax)
    with pytest.warns(UserWarning, match=f"back through Softmax of softmax.*{softmax.name}"):
        gradients(both, logits)


def test_no_gradient_flows_through_whole_numbers():
    x = layers.data("x", [3])
    x.stop_gradient = False
    through = layers.cast(layers.cast(x * 3.0, "int32"), "float32")
    assert gradients(layers.reduce_sum(through * 1.5), x) == [None]


@pytest.mark.parametrize("bad", ["name", 3])
def test_gradients_are_asked_for_by_variables(bad):
    x = layers.data("x", [3])
    x.stop_gradient = False
    y = layers.relu(x)
    for targets, inputs, weights in ((bad, x, None), (y, bad, None), (y, x, bad)):
        with pytest.raises(TypeError, match="gradients: expected Variables"):
            gradients(targets, inputs, weights)
    loss = layers.mean(layers.fc(x, 1))
    with pytest.raises(TypeError, match="parameter_list holds parameters or names"):
        append_backward(loss, bad if bad == "name" else [bad])

"""Arithmetic, activations, reductions and products against plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcdist import layers
from hpcdist.errors import GraphError
from hpcdist.ops.embedding.selected_rows import SelectedRows
from tests.support.ops import names_kernels_use, run_op

RNG = np.random.default_rng(7)
X = RNG.uniform(-2, 2, (2, 3, 4)).astype("float32")
Y = RNG.uniform(0.5, 2, (2, 3, 4)).astype("float32")


def close(a, b):
    assert a.shape == np.shape(b)
    assert a.dtype == "float32"
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("type", "function"),
    [
        ("elementwise_add", np.add),
        ("elementwise_sub", np.subtract),
        ("elementwise_mul", np.multiply),
        ("elementwise_div", np.divide),
        ("elementwise_max", np.maximum),
        ("elementwise_min", np.minimum),
    ],
)
@pytest.mark.parametrize(
    ("y", "axis"),
    [
        (Y, -1),
        (Y[0, 0], -1),
        (Y[0, :, 0], 1),
        (Y[:, :1, :1], -1),
        (Y[:, 0, 0], 0),
        (Y[0, :1, 0], -1),
    ],
)
def test_elementwise_places_y_within_x(type, function, y, axis):
    start = X.ndim - y.ndim if axis == -1 else axis
    placed = y.reshape((1,) * start + y.shape + (1,) * (X.ndim - start - y.ndim))
    close(run_op(type, {"X": X, "Y": y}, {"axis": axis})["Out"], function(X, placed))


@pytest.mark.parametrize(
    ("type", "function"),
    [
        ("elementwise_pow", np.power),
        ("elementwise_mod", np.mod),
        ("elementwise_floordiv", np.floor_divide),
    ],
)
def test_the_smaller_of_two_values_stays_on_its_side(type, function):
    """Fluid turns them round where X is the smaller one."""
    x = np.array([5, 3]) if type != "elementwise_pow" else np.array([5, 3], "float32")
    y = np.array([[1, 2], [3, 4]], x.dtype)
    np.testing.assert_array_equal(run_op(type, {"X": x, "Y": y})["Out"], function(x, y))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elementwise_of_equal_shapes_takes_any_axis(axis):
    close(run_op("elementwise_add", {"X": X, "Y": Y}, {"axis": axis})["Out"], X + Y)


def test_elementwise_places_a_smaller_x_within_y():
    x = X[0, :, 0]
    close(run_op("elementwise_sub", {"X": x, "Y": Y}, {"axis": 1})["Out"], x[:, None] - Y)


@pytest.mark.parametrize(("shape", "axis"), [((3,), -1), ((2, 4), -1), ((4, 4, 4, 4), 1)])
def test_elementwise_refuses_shapes_that_do_not_fit(shape, axis):
    with pytest.raises(GraphError, match=r"\(2, 3, 4\)"):
        run_op("elementwise_add", {"X": X, "Y": np.zeros(shape, "float32")}, {"axis": axis})


def test_quotients_of_integers_drop_the_fraction_as_c_does():
    a, b = np.array([-7, 7, 5, -5]), np.array([2, -2, 3, 3])
    for type in ("elementwise_div", "elementwise_floordiv"):
        assert run_op(type, {"X": a, "Y": b})["Out"].tolist() == [-3, -3, 1, -1]
    assert run_op("elementwise_mod", {"X": a, "Y": b})["Out"].tolist() == [-1, 1, 2, -2]


def test_remainders_of_floats_have_the_sign_of_the_divisor():
    a, b = np.array([-7.5, 7.5, 5, -5], "float32"), np.array([2, -2, 3, -3], "float32")
    assert run_op("elementwise_mod", {"X": a, "Y": b})["Out"].tolist() == [0.5, -0.5, 2, -2]


@pytest.mark.parametrize(
    ("type", "holds"),
    [
        ("less_than", [True, False, False]),
        ("less_equal", [True, True, False]),
        ("greater_than", [False, False, True]),
        ("greater_equal", [False, True, True]),
        ("equal", [False, True, False]),
        ("not_equal", [True, False, True]),
    ],
)
def test_comparisons(type, holds):
    out = run_op(type, {"X": np.array([1.0, 2.0, 3.0]), "Y": np.array([2.0])})["Out"]
    assert out.dtype == bool
    assert out.tolist() == holds


def test_logic():
    p, q = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert run_op("logical_and", {"X": p, "Y": q})["Out"].tolist() == [True, False, False, False]
    assert run_op("logical_or", {"X": p, "Y": q})["Out"].tolist() == [True, True, True, False]
    assert run_op("logical_xor", {"X": p, "Y": q})["Out"].tolist() == [False, True, True, False]
    assert run_op("logical_not", {"X": p})["Out"].tolist() == [False, False, True, True]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")
erf = np.vectorize(math.erf)


@pytest.mark.parametrize(
    ("type", "attrs", "function"),
    [
        ("square", {}, np.square),
        ("sqrt", {}, np.sqrt),
        ("rsqrt", {}, lambda x: 1 / np.sqrt(x)),
        ("reciprocal", {}, lambda x: 1 / x),
        ("abs", {}, np.abs),
        ("exp", {}, np.exp),
        ("log", {}, np.log),
        ("sin", {}, np.sin),
        ("cos", {}, np.cos),
        ("floor", {}, np.floor),
        ("ceil", {}, np.ceil),
        ("round", {}, np.round),
        ("sign", {}, np.sign),
        ("pow", {"factor": 2.0}, np.square),
        ("relu", {}, lambda x: np.maximum(x, 0)),
        ("leaky_relu", {"alpha": 0.1}, lambda x: np.where(x > 0, x, 0.1 * x)),
        ("leaky_relu", {"alpha": 2.0}, lambda x: np.where(x > 0, x, 2 * x)),
        ("relu6", {"threshold": 1.5}, lambda x: np.clip(x, 0, 1.5)),
        ("elu", {"alpha": 0.5}, lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
        ("sigmoid", {}, sigmoid),
        ("logsigmoid", {}, lambda x: np.log(sigmoid(x))),
        ("tanh", {}, np.tanh),
        ("softplus", {}, lambda x: np.log1p(np.exp(x))),
        ("softsign", {}, lambda x: x / (1 + np.abs(x))),
        ("hard_sigmoid", {}, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
        ("swish", {"beta": 1.5}, lambda x: x * sigmoid(1.5 * x)),
        ("gelu", {}, lambda x: x * (1 + erf(x / math.sqrt(2))) / 2),
        (
            "gelu",
            {"approximate": True},
            lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        ),
    ],
)
def test_functions_of_one_value(type, attrs, function):
    x = Y if type in POSITIVE else 2 * X
    close(run_op(type, {"X": x}, attrs)["Out"], function(x.astype("float64")))


def test_a_leak_is_not_negative():
    """Its gradient is told from the sign of the result."""
    with pytest.raises(GraphError, match=r"leaky_relu: alpha must not be negative, got -0\.4"):
        layers.leaky_relu(layers.data("x", [3]), -0.4)


@pytest.mark.parametrize(
    "type", ["sigmoid", "logsigmoid", "softplus", "elu", "swish", "gelu", "tanh"]
)
def test_activations_survive_large_numbers(type):
    with np.errstate(over="raise", invalid="raise"):
        out = run_op(type, {"X": np.array([-1e4, 1e4], "float32")})["Out"]
    assert np.isfinite(out).all()


def test_erf_is_exact_to_thirteen_digits():
    from hpcdist.ops.elementwise.gelu import erf as ours

    x = np.linspace(-8, 8, 4001)
    np.testing.assert_allclose(ours(np, x), erf(x), rtol=0, atol=1e-13)


# -- sums, scale, clip ---------------------------------------------------------------------------
def test_sum_adds_in_order_also_into_one_of_its_inputs():
    from hpcdist.graph import lookup

    xs = [X.copy(), Y.copy(), (X * Y).copy()]
    close(run_op("sum", {"X": xs})["Out"], X + Y + X * Y)
    lookup("sum").bind(np, xs, xs[2])()
    close(xs[2], X + Y + X * Y)
    lookup("sum").bind(np, xs[:1], xs[1])()
    close(xs[1], X)


def test_there_is_no_mean_of_no_rows():
    with pytest.raises(GraphError, match=r"no mean of a value of shape \(0, 3\): .* got 0"):
        run_op("mean", {"X": X.reshape(-1, 3)[:0]})


def test_sum_refuses_other_shapes():
    with pytest.raises(GraphError, match=r"cannot add shapes \[\(2, 3, 4\), \(3, 4\)\]"):
        run_op("sum", {"X": [X, X[0]]})


def sparse(rows, width=2, height=6):
    value = np.arange(len(rows) * width, dtype="float32").reshape(-1, width) - 2
    return SelectedRows(np.array(rows), value, height)


def like(rows, width=2, height=6):
    return SelectedRows(np.empty(rows, "int64"), np.empty((rows, width), "float32"), height)


def bound(type, inputs, out, **attrs):
    from hpcdist.graph import lookup
    from hpcdist.graph.registry import declared_attrs

    definition = lookup(type)
    facts = declared_attrs(definition, attrs)
    if definition.bind is not None:
        definition.bind(np, inputs, out, **facts)()
    else:
        absent = [None] * (len(definition.inputs) - 1)
        definition.kernel(np, inputs, *absent, out, **facts)
    return out


def test_sum_of_selected_rows_keeps_repeats_and_order():
    a, b = sparse([5, 1]), sparse([1, 1, 0])
    out = bound("sum", [a, b], like(5))
    assert out.rows.tolist() == [5, 1, 1, 1, 0]
    close(out.to_dense(), a.to_dense() + b.to_dense())


def test_sum_of_dense_and_selected_rows_is_dense():
    a, d = sparse([3, 3, 0]), np.ones((6, 2), "float32")
    close(bound("sum", [d, a], np.empty((6, 2), "float32")), d + a.to_dense())


def test_scale_of_selected_rows_leaves_the_rows():
    a = sparse([4, 0, 4])
    out = bound("scale", a, like(3), scale=0.5)
    assert out.rows.tolist() == [4, 0, 4]
    close(out.value, a.value / 2)
    close(bound("scale", a, a, scale=0.5).value, out.value)  # in place


def test_clips_see_the_sum_of_repeated_rows():
    a = sparse([4, 0, 4])  # rows -2 -1, 0 1, 2 3: row 4 sums to 0 2
    close(bound("clip", a, like(3), min=-1, max=1).to_dense(), np.clip(a.to_dense(), -1, 1))
    dense = a.to_dense()
    norm = np.linalg.norm(dense)
    close(bound("clip_by_norm", a, like(3), max_norm=1.0).to_dense(), dense / norm)
    close(bound("clip_by_norm", a, like(3), max_norm=9.0).to_dense(), dense)


def test_merging_selected_rows_keeps_their_number():
    a = sparse([4, 0, 4])
    merged = bound("merge_selected_rows", a, like(3))
    assert merged.rows[:2].tolist() == [0, 4]
    close(merged.to_dense(), a.to_dense())
    value = bound("get_tensor_from_selected_rows", merged, np.empty((3, 2), "float32"))
    assert (value**2).sum() == (a.to_dense() ** 2).sum()


@pytest.mark.parametrize(("after", "expected"), [(True, 2 * X + 1), (False, 2 * (X + 1))])
def test_scale(after, expected):
    attrs = {"scale": 2.0, "bias": 1.0, "bias_after_scale": after}
    close(run_op("scale", {"X": X}, attrs)["Out"], expected)


def test_scale_of_integers_cuts_the_factor():
    assert run_op("scale", {"X": np.array([3, -3])}, {"scale": 2.5})["Out"].tolist() == [6, -6]


def test_clip_by_norm():
    norm = np.linalg.norm(X)
    close(run_op("clip_by_norm", {"X": X}, {"max_norm": 1.0})["Out"], X / norm)
    close(run_op("clip_by_norm", {"X": X}, {"max_norm": 100.0})["Out"], X)


def test_a_gradient_of_zeros_stays_zero():
    out = run_op("clip_by_norm", {"X": np.zeros_like(X)}, {"max_norm": 1.0})["Out"]
    np.testing.assert_array_equal(out, 0)
    close(run_op("clip", {"X": X}, {"min": -1.0, "max": 0.5})["Out"], np.clip(X, -1, 0.5))


# -- reductions ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("attrs", "axes", "keep"),
    [
        ({"dim": [1]}, 1, False),
        ({"dim": [0, -1]}, (0, 2), False),
        ({"dim": [-2], "keep_dim": True}, 1, True),
        ({"dim": [0], "reduce_all": True, "keep_dim": True}, (0, 1, 2), True),
    ],
)
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "prod"])
def test_reductions(kind, attrs, axes, keep):
    out = run_op(f"reduce_{kind}", {"X": X}, attrs)["Out"]
    close(out, getattr(X, kind)(axis=axes, keepdims=keep))


def test_reductions_of_everything_have_shape_1():
    close(run_op("mean", {"X": X})["Out"], [X.mean()])
    close(run_op("reduce_sum", {"X": X}, {"reduce_all": True})["Out"], [X.sum()])


def test_reduction_refuses_a_dimension_outside():
    with pytest.raises(GraphError, match="dim 3 is outside a value of 3 dimensions"):
        run_op("reduce_sum", {"X": X}, {"dim": [3]})


@pytest.mark.parametrize("keep", [False, True])
def test_arg_max_and_min(keep):
    for axis in (0, 1, -1):
        attrs = {"axis": axis, "keepdims": keep}
        most, least = (run_op(f"arg_{k}", {"X": X}, attrs)["Out"] for k in ("max", "min"))
        assert most.dtype == "int64"
        np.testing.assert_array_equal(most, X.argmax(axis, keepdims=keep))
        np.testing.assert_array_equal(least, X.argmin(axis, keepdims=keep))


def test_questions_about_values():
    for bad, finite, nan, inf in ((1, True, False, False), (np.nan, 0, 1, 0), (np.inf, 0, 0, 1)):
        x = np.array([0, bad], "float32")
        answers = [run_op(t, {"X": x})["Out"].tolist() for t in ("isfinite", "isnan", "isinf")]
        assert answers == [[finite], [nan], [inf]]


# -- products --------------------------------------------------------------------------------------
M = RNG.uniform(-1, 1, (2, 4, 5)).astype("float32")
V = RNG.uniform(-1, 1, 4).astype("float32")


@pytest.mark.parametrize(
    ("x", "y", "attrs", "expected"),
    [
        (X, M, {"alpha": 0.5}, 0.5 * (X @ M)),
        (X, M[0], {}, X @ M[0]),
        (X, Y, {"transpose_Y": True}, X @ Y.swapaxes(1, 2)),
        (X, Y, {"transpose_X": True}, X.swapaxes(1, 2) @ Y),
        (M, X, {"transpose_X": True, "transpose_Y": True}, M.swapaxes(1, 2) @ X.swapaxes(1, 2)),
        (X[:, None], M, {}, X[:, None] @ M),
        (X, V, {}, X @ V),
        (V, M[0], {}, V @ M[0]),
        (V, V, {}, [V @ V]),
        (V, V + 1, {"transpose_X": True, "transpose_Y": True}, np.outer(V, V + 1)),
    ],
)
def test_matmul(x, y, attrs, expected):
    close(run_op("matmul", {"X": x, "Y": y}, attrs)["Out"], np.asarray(expected))


def test_mul_flattens_both_sides():
    w = RNG.uniform(-1, 1, (3, 4, 2)).astype("float32")
    attrs = {"x_num_col_dims": 1, "y_num_col_dims": 2}
    close(run_op("mul", {"X": X, "Y": w}, attrs)["Out"], X.reshape(2, 12) @ w.reshape(12, 2))


@pytest.mark.parametrize("type", ["mul", "matmul"])
def test_products_refuse_shapes_that_do_not_meet(type):
    with pytest.raises(GraphError, match=r"cannot multiply \(3, 4\) by \(3, 4\).*4 columns"):
        run_op(type, {"X": X[0], "Y": Y[0]})


def test_kernels_call_what_numpy_has():
    of_cupy_alone = {"cuda", "fuse"}
    assert {name for name in names_kernels_use() if not hasattr(np, name)} == of_cupy_alone

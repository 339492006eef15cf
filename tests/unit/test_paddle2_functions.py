"""Functions and layers of Paddle 2: what 2.6.2 computes, and its gradients."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcdist.compat import aspaddle
from hpcdist.errors import GraphError, HpcdistError
from tests.paddle_2_6 import functions

EXPECTED = json.loads((Path(functions.__file__).parent / "expected.json").read_text())
ARRAYS = functions.feeds()
# Faults of 2.6.2: gradients that are not those of what it computes.
WRONG_GRADIENTS = (
    "paddle.distribution.Geometric(p1).variance",
    "paddle.gather(x, idx, axis=1)",
    "F.binary_cross_entropy_with_logits(x, b2, pos_weight=w3)",
    "paddle.trapezoid(x)",
    "paddle.trapezoid(x, x=v)",
)


@pytest.fixture(scope="module")
def paddle():
    assert "paddle" not in sys.modules
    aspaddle.install()
    import paddle

    paddle.enable_static()
    yield paddle
    aspaddle.uninstall()


@pytest.mark.parametrize("expression", functions.expressions())
def test_what_paddle_2_6_computes(paddle, expression):
    expected = EXPECTED[expression]
    try:
        found = functions.evaluated(paddle, expression, ARRAYS)
    except HpcdistError as error:
        if "needs torch" not in str(error):
            raise
        pytest.importorskip("torch")  # which computes images and volumes
        raise
    close = {"rtol": 1e-4, "atol": 3e-6}
    np.testing.assert_allclose(found["value"], expected["value"], **close)
    assert found["shape"] == expected["shape"]
    packed = {name for name in expected["parameters"] if "_cell_" not in name and "rnn" in name}
    packed |= {"gru_0.w_0", "lstm_0.w_0"}
    kept = {k: v for k, v in expected["parameters"].items() if k not in packed}
    assert found["parameters"] == kept
    if expression not in WRONG_GRADIENTS:
        assert len(found["gradients"]) == len(expected["gradients"])
        for gradient, wanted in zip(found["gradients"], expected["gradients"]):
            np.testing.assert_allclose(gradient, wanted, **close)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum"])
def test_what_two_operands_make_is_called_as_the_call(paddle, name):
    with paddle.static.program_guard(paddle.static.Program()), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [2, 3])
        operator = getattr(paddle, name)(x, x).name
        assert operator.startswith("elementwise_") and operator.endswith("_0")
        assert getattr(paddle, name)(x, x, name="chosen").name == "chosen"
        (found,) = paddle.static.Executor().run(
            feed={"x": np.ones((2, 3), "float32")}, fetch_list=["chosen"]
        )
        assert found.shape == (2, 3)


def test_the_greatest_of_a_row_of_any_length_are_found(paddle):
    with paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [None])
        x.stop_gradient = False
        values, places = paddle.topk(x, 2)
        (gradient,) = paddle.static.gradients([values], [x])
        found = paddle.static.Executor().run(
            feed={"x": np.array([1, 5, 2, 4], "float32")}, fetch_list=[values, places, gradient]
        )
    for one, other in zip(found, [[5, 4], [1, 3], [0, 1, 0, 1]], strict=True):
        np.testing.assert_array_equal(one, other)


def test_expand_as_hands_gradients_back_where_a_batch_is_open(paddle):  # 0 in 2.6.2
    with paddle.static.program_guard(paddle.static.Program()):
        x, y = (paddle.static.data(name, [-1, n, 3]) for name, n in (("x", 1), ("y", 4)))
        x.stop_gradient = False
        wanted = paddle.static.gradients([paddle.sum(paddle.expand_as(x, y) * y)], [x])
        feed = {"x": ARRAYS["x3"][:, :1, :3], "y": np.swapaxes(ARRAYS["x3"], 1, 2)}
        (found,) = paddle.static.Executor().run(feed=feed, fetch_list=wanted)
    np.testing.assert_allclose(found, feed["y"].sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"])
def test_what_takes_integers_refuses_floats_when_it_is_called(paddle, name):
    with paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [2])
        with pytest.raises(GraphError, match=f"paddle.{name}: .*expected integers, got float32"):
            getattr(paddle, name)(x, x)


def test_what_is_no_decoder_is_not_decoded(paddle):
    with pytest.raises(TypeError, match="dynamic_decode: decoder: expected a Decoder, got 3"):
        paddle.nn.dynamic_decode(3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("D.AffineTransform(1.0, x)", "AffineTransform: loc"),
        ("D.ExpTransform().forward(3)", "ExpTransform.forward: x"),
        ("D.ReshapeTransform([3], [2])", "ReshapeTransform: expected shapes of as many elements"),
        ("D.ReshapeTransform([2], [1, 2]).forward(x)", "expected events (2,), got the shape"),
        ("D.SoftmaxTransform().forward(x[0, 0])", "an event has 1 dimensions, got the shape ()"),
        ("D.StackTransform([D.ExpTransform()], 1).forward(x)", "expected 1 places along dimension"),
        ("D.ChainTransform([])", "ChainTransform: transforms: expected one at least"),
        ("D.ChainTransform([x])", "expected a list of transforms"),
        ("D.Independent(D.Normal(x, x), 3)", "expected at most 2"),
        ("D.TransformedDistribution(x, [])", "base: expected a distribution"),
        ("D.SoftmaxTransform().forward_log_det_jacobian(x)", "SoftmaxTransform has no forward_log"),
    ],
)
def test_wrong_transforms_are_refused_by_name(paddle, call, says):
    with paddle.static.program_guard(paddle.static.Program()):
        known = {"D": paddle.distribution, "x": paddle.static.data("x", [4, 3])}
        with pytest.raises((GraphError, TypeError, NotImplementedError)) as caught:
            eval(call, known)
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_transform_of_ones_own_is_taken_back_and_drawn(paddle):
    class Twice(paddle.distribution.Transform):
        def _forward(self, x):
            return x * 2

        def _inverse(self, y):
            return y / 2

        def _inverse_log_det_jacobian(self, y):
            return y * 0 - float(np.log(2))

    with paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [4, 3])
        made = Twice()(paddle.distribution.Normal(x, x * 0 + 1))
        both = Twice()(paddle.distribution.ExpTransform())
        wanted = [
            made.log_prob(x),
            paddle.distribution.Normal(x * 2, x * 0 + 2).log_prob(x),
            both.inverse(both.forward(x)),
            both.forward_log_det_jacobian(x),
            made.sample([5]),
        ]
        found = paddle.static.Executor().run(feed={"x": ARRAYS["x"]}, fetch_list=wanted)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    np.testing.assert_allclose(found[2], ARRAYS["x"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[3], np.log(2) + 2 * ARRAYS["x"], rtol=1e-5)
    assert found[4].shape == (5, 4, 3) and made.batch_shape == (4, 3)


@pytest.mark.parametrize("rowvar", [True, False])
def test_covariances_are_numpys(paddle, rowvar):  # 2.6.2's are infinite in static programs
    with paddle.static.program_guard(paddle.static.Program()):
        x = paddle.static.data("x", [4, 3])
        wanted = [
            paddle.linalg.cov(x, rowvar),
            paddle.linalg.cov(x, rowvar, ddof=False),
            paddle.linalg.corrcoef(x, rowvar),
        ]
        found = paddle.static.Executor().run(feed={"x": ARRAYS["x"]}, fetch_list=wanted)
    x = ARRAYS["x"]
    expected = [np.cov(x, rowvar=rowvar), np.cov(x, rowvar=rowvar, ddof=0)]
    for one, other in zip(found, [*expected, np.corrcoef(x, rowvar=rowvar)], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_mean_with_padding_counts_the_padding_that_there_is(paddle):
    """2.6.2 counts as much behind the image as there is before it."""
    x = paddle.static.data("padded", [1, 1, 4, 4])
    pool = paddle.nn.functional.avg_pool2d
    (found,) = paddle.static.Executor().run(
        feed={"padded": np.ones((1, 1, 4, 4), np.float32)},
        fetch_list=[pool(x, 3, 3, [1, 0, 0, 0], ceil_mode=True, exclusive=False)],
    )
    np.testing.assert_allclose(found[0, 0], [[2 / 3, 2 / 3], [1, 1]], rtol=1e-6)


def test_a_truth_value_is_no_index(paddle):
    with pytest.raises(TypeError, match="got a bool"):
        paddle.static.data("truths", [3, 4])[True]

"""Functions and layers of Paddle 2: what 2.6.2 computes, and its gradients."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcdist.compat import aspaddle
from hpcdist.errors import HpcdistError
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

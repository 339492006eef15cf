"""Functions of one value, element by element, and their gradients.

``unary(type, forward, needs, derivative)``: the gradient operator takes ``needs`` (X or Out, as
Fluid's does) and the gradient of Out; ``derivative(xp, value, dout, dx, **attrs)`` writes dx.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, define
from hpcdist.graph.rows import by_element
from hpcdist.ops.algebra.second_derivatives import UNARY
from hpcdist.ops.common import Wanted, by_calls, define_with_grad, in_sequence, same
from hpcdist.ops.types import ArrayModule, Bind, Call, Kernel

_ROW = 4096  # elements: enough to hide what a row costs


def _ufunc(name: str) -> Bind:
    def bind(xp: ArrayModule, x, out) -> Call:
        return partial(getattr(xp, name), x, out=out)

    return bind


def unary(
    type: str,
    forward: Kernel | str,
    needs: str,
    derivative: Kernel | None = None,
    derivative_bind: Bind | None = None,
    bind: Bind | None = None,
    calls: bool = False,
    **attrs,
) -> None:
    """Enter an operator and its gradient; ``forward`` is a kernel or a ufunc's name.

    ``calls``: the kernels are nothing but calls of ``xp`` (`by_calls`).
    """
    if calls and derivative is not None:
        derivative_bind, derivative = by_calls(derivative), None
    slots = f"{needs}, Out@GRAD -> X@GRAD" if needs else "Out@GRAD -> X@GRAD"
    if isinstance(forward, str):
        parts: dict[str, Any] = {"bind": bind or _ufunc(forward), "inplace": {"Out": "X"}}
    else:
        parts = {"bind": by_calls(forward)} if calls else {"kernel": forward}
    define_with_grad(
        type,
        "X -> Out",
        slots,
        rows=by_element(),
        attrs=attrs,
        infer=same,
        **parts,
        grad_kernel=derivative,
        grad_bind=derivative_bind,
        grad_grad=UNARY.get(type),
    )


# -- relu: on every training step, so nothing is allocated or looked up there --------------------
def _relu_bind(xp: ArrayModule, x, out) -> Call:
    """out = max(x, 0)."""
    if xp is not np:  # as they are: cupy would copy another view of the result's memory
        return partial(xp.maximum, x, 0, out=out)
    # numpy compares two arrays in vector registers, an array with a scalar three times slower;
    # a row of zeros does, where zeros like x would take as much memory.
    columns = 1
    for extent in reversed(x.shape):
        columns *= extent
        if columns >= _ROW:
            break
    if columns == x.size:
        return partial(xp.maximum, x, xp.zeros_like(x), out=out)
    rows, out_rows = x.reshape(-1, columns), out.reshape(-1, columns)
    return partial(xp.maximum, rows, xp.zeros(columns, x.dtype), out=out_rows)


def _relu_grad_bind(xp: ArrayModule, out, dout, dx) -> Call:
    """dx = dout where out > 0, else 0."""
    mask = xp.empty(out.shape, bool)
    return in_sequence(
        partial(xp.greater, out, 0, mask),
        partial(xp.multiply, dout, mask, dx),
    )


unary("relu", "maximum", "Out", bind=_relu_bind, derivative_bind=_relu_grad_bind)


# -- powers and roots ----------------------------------------------------------------------------
def _square_grad(xp: ArrayModule, x, dout, dx) -> None:
    """dx = 2 x dout."""
    xp.multiply(x, dout, out=dx)
    xp.add(dx, dx, out=dx)  # cheaper than a Python number as operand


def _sqrt_grad(xp: ArrayModule, out, dout, dx) -> None:
    """dx = dout / (2 out)."""
    xp.true_divide(dout, out, out=dx)
    xp.multiply(dx, 0.5, out=dx)


def _rsqrt(xp: ArrayModule, x, out) -> None:
    """out = 1 / sqrt(x)."""
    xp.sqrt(x, out=out)
    xp.true_divide(1, out, out=out)


def _rsqrt_grad(xp: ArrayModule, out, dout, dx) -> None:
    """dx = -out^3 dout / 2."""
    xp.multiply(out, out, out=dx)
    xp.multiply(dx, out, out=dx)
    xp.multiply(dx, dout, out=dx)
    xp.multiply(dx, -0.5, out=dx)


def _reciprocal_grad(xp: ArrayModule, out, dout, dx) -> None:
    """dx = -out^2 dout."""
    xp.multiply(out, out, out=dx)
    xp.multiply(dx, dout, out=dx)
    xp.negative(dx, out=dx)


def _pow(xp: ArrayModule, x, out, factor: float) -> None:
    xp.power(x, factor, out=out)


def _pow_grad(xp: ArrayModule, x, dout, dx, factor: float) -> None:
    """dx = factor x^(factor - 1) dout."""
    xp.power(x, factor - 1, out=dx)
    xp.multiply(dx, dout, out=dx)
    xp.multiply(dx, factor, out=dx)


unary("square", "square", "X", _square_grad, calls=True)
unary("sqrt", "sqrt", "Out", _sqrt_grad, calls=True)
unary("rsqrt", _rsqrt, "Out", _rsqrt_grad, calls=True)
unary("reciprocal", "reciprocal", "Out", _reciprocal_grad, calls=True)
unary("pow", _pow, "X", _pow_grad, factor=1.0, calls=True)


# -- elementary functions ------------------------------------------------------------------------
def _times(name: str) -> Kernel:
    """Derivative: a ufunc of the value, times dout."""

    def derivative(xp: ArrayModule, value, dout, dx) -> None:
        getattr(xp, name)(value, out=dx)
        xp.multiply(dx, dout, out=dx)

    return derivative


def _exp_grad(xp: ArrayModule, out, dout, dx) -> None:
    xp.multiply(out, dout, out=dx)


def _log_grad(xp: ArrayModule, x, dout, dx) -> None:
    xp.true_divide(dout, x, out=dx)


def _cos_grad(xp: ArrayModule, x, dout, dx) -> None:
    """dx = -sin(x) dout."""
    xp.sin(x, out=dx)
    xp.multiply(dx, dout, out=dx)
    xp.negative(dx, out=dx)


def _tanh_grad(xp: ArrayModule, out, dout, dx) -> None:
    """dx = (1 - out^2) dout."""
    xp.multiply(out, out, out=dx)
    xp.subtract(1, dx, out=dx)
    xp.multiply(dx, dout, out=dx)


def _flat_grad(xp: ArrayModule, dout, dx) -> None:
    dx.fill(0)


unary("exp", "exp", "Out", _exp_grad, calls=True)
unary("log", "log", "X", _log_grad, calls=True)
unary("abs", "absolute", "X", _times("sign"), calls=True)
unary("sin", "sin", "X", _times("cos"), calls=True)
unary("cos", "cos", "X", _cos_grad, calls=True)
unary("tanh", "tanh", "Out", _tanh_grad, calls=True)
unary("floor", "floor", "", _flat_grad)
unary("ceil", "ceil", "", _flat_grad)
unary("round", "rint", "", _flat_grad)


def _sign_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    return [GradOp("scale", {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, {"scale": 0.0})]


define(
    "sign",
    "X -> Out",
    rows=by_element(),
    infer=same,
    bind=_ufunc("sign"),
    inplace={"Out": "X"},
    grad=_sign_grad,
)


# -- sigmoid and what is made of it --------------------------------------------------------------
def sigmoid(xp: ArrayModule, x, out) -> None:
    """Write 1 / (1 + exp(-x)), by way of tanh, which cannot overflow."""
    xp.multiply(x, 0.5, out=out)
    xp.tanh(out, out=out)
    xp.multiply(out, 0.5, out=out)
    xp.add(out, 0.5, out=out)


def _sigmoid_grad(xp: ArrayModule, out, dout, dx) -> None:
    """dx = out (1 - out) dout."""
    xp.subtract(1, out, out=dx)
    xp.multiply(dx, out, out=dx)
    xp.multiply(dx, dout, out=dx)


def _logsigmoid(xp: ArrayModule, x, out) -> None:
    """out = -log(1 + exp(-x))."""
    _softplus(xp, -x, out)
    xp.negative(out, out=out)


def _logsigmoid_grad(xp: ArrayModule, x, dout, dx) -> None:
    """dx = sigmoid(-x) dout."""
    sigmoid(xp, -x, dx)
    xp.multiply(dx, dout, out=dx)


def _softplus(xp: ArrayModule, x, out) -> None:
    """Write log(1 + exp(x)), as max(x, 0) + log1p(exp(-|x|))."""
    xp.absolute(x, out=out)
    xp.negative(out, out=out)
    xp.exp(out, out=out)
    xp.log1p(out, out=out)
    xp.add(out, xp.maximum(x, 0), out=out)


def _softplus_grad(xp: ArrayModule, x, dout, dx) -> None:
    """dx = sigmoid(x) dout."""
    sigmoid(xp, x, dx)
    xp.multiply(dx, dout, out=dx)


def _swish(xp: ArrayModule, x, out, beta: float) -> None:
    """out = x sigmoid(beta x)."""
    sigmoid(xp, x * beta, out)
    xp.multiply(out, x, out=out)


def _swish_grad(xp: ArrayModule, x, dout, dx, beta: float) -> None:
    """dx = (s + beta x s (1 - s)) dout, with s = sigmoid(beta x)."""
    gate = xp.empty_like(x)
    sigmoid(xp, x * beta, gate)
    xp.multiply(gate + beta * x * gate * (1 - gate), dout, out=dx)


unary("sigmoid", sigmoid, "Out", _sigmoid_grad, calls=True)
unary("logsigmoid", _logsigmoid, "X", _logsigmoid_grad)
unary("softplus", _softplus, "X", _softplus_grad)
unary("swish", _swish, "X", _swish_grad, beta=1.0)


# -- pieces of lines -----------------------------------------------------------------------------
def _softsign(xp: ArrayModule, x, out) -> None:
    """out = x / (1 + |x|)."""
    xp.absolute(x, out=out)
    xp.add(out, 1, out=out)
    xp.true_divide(x, out, out=out)


def _softsign_grad(xp: ArrayModule, x, dout, dx) -> None:
    """dx = dout / (1 + |x|)^2."""
    xp.absolute(x, out=dx)
    xp.add(dx, 1, out=dx)
    xp.multiply(dx, dx, out=dx)
    xp.true_divide(dout, dx, out=dx)


def _leaky_relu(xp: ArrayModule, x, out, alpha: float) -> None:
    """out = x where x > 0, else alpha x."""
    xp.multiply(x, alpha, out=out)
    xp.maximum(x, out, out=out) if alpha <= 1 else xp.minimum(x, out, out=out)


def _leaky_relu_grad(xp: ArrayModule, out, dout, dx, alpha: float) -> None:
    xp.multiply(dout, xp.where(out > 0, 1, alpha), out=dx)


def _relu6(xp: ArrayModule, x, out, threshold: float) -> None:
    xp.clip(x, 0, threshold, out=out)


def _relu6_grad(xp: ArrayModule, out, dout, dx, threshold: float) -> None:
    xp.multiply(dout, (out > 0) & (out < threshold), out=dx)


def _hard_sigmoid(xp: ArrayModule, x, out, slope: float, offset: float) -> None:
    """out = min(max(slope x + offset, 0), 1)."""
    xp.multiply(x, slope, out=out)
    xp.add(out, offset, out=out)
    xp.clip(out, 0, 1, out=out)


def _hard_sigmoid_grad(xp: ArrayModule, out, dout, dx, slope: float, offset: float) -> None:
    xp.multiply(dout, (out > 0) & (out < 1), out=dx)
    xp.multiply(dx, slope, out=dx)


def _elu(xp: ArrayModule, x, out, alpha: float) -> None:
    """out = x where x > 0, else alpha (exp(x) - 1)."""
    xp.minimum(x, 0, out=out)
    xp.expm1(out, out=out)
    xp.multiply(out, alpha, out=out)
    xp.add(out, xp.maximum(x, 0), out=out)


def _elu_grad(xp: ArrayModule, x, dout, dx, alpha: float) -> None:
    """dx = dout where x > 0, else alpha exp(x) dout."""
    xp.minimum(x, 0, out=dx)
    xp.exp(dx, out=dx)
    xp.multiply(dout, xp.where(x > 0, 1, alpha * dx), out=dx)


unary("softsign", _softsign, "X", _softsign_grad, calls=True)
unary("leaky_relu", _leaky_relu, "Out", _leaky_relu_grad, alpha=0.02)
unary("relu6", _relu6, "Out", _relu6_grad, threshold=6.0)
unary("hard_sigmoid", _hard_sigmoid, "Out", _hard_sigmoid_grad, slope=0.2, offset=0.5)
unary("elu", _elu, "X", _elu_grad, alpha=1.0)

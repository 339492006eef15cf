"""Functions of one value, element by element, and their gradients.

``unary(type, formula, needs, derivative)``: the gradient operator takes ``needs`` (X or Out, as
Fluid's does) and the gradient of Out; ``derivative(xp, value, dout, **attrs)`` is that of X.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcdist.graph.registry import Given
from hpcdist.graph.rows import by_element
from hpcdist.ops.algebra.second_derivatives import UNARY
from hpcdist.ops.common import define_with_grad, in_sequence, same
from hpcdist.ops.formulas import Formula, enter, sigmoid, softplus, traced
from hpcdist.ops.types import Array, ArrayModule, Attrs, Bind, Call

_ROW = 4096  # elements: enough to hide what a row costs


def unary(
    type: str,
    formula: Formula | None,
    needs: str,
    derivative: Formula | None,
    *,
    bind: Bind | None = None,
    derivative_bind: Bind | None = None,
    torch: Formula | None = None,
    torch_derivative: Formula | None = None,
    inplace: bool = False,
    given: str = "",
    **attrs,
) -> None:
    """Enter an operator and its gradient, each by a formula for numpy, cupy and torch.

    ``bind``: what computes arrays otherwise; ``torch``: tensors. ``inplace``: the formula is one
    call, which may write into X. ``given``: the slot that may give the attribute.
    """
    enter(type, torch or formula)
    enter(f"{type}_grad", torch_derivative or derivative)
    slots = [needs] * bool(needs) + ["Out@GRAD"]
    define_with_grad(
        type,
        f"X, {given}? -> Out" if given else "X -> Out",
        f"{', '.join(slots)} -> X@GRAD",
        rows=by_element(),
        attrs=attrs,
        given={name: Given(given) for name in attrs if given},
        infer=same,
        bind=bind or traced(formula, 1),
        inplace={"Out": "X"} if inplace else {},
        grad_bind=derivative_bind or traced(derivative, len(slots)),
        grad_grad=UNARY.get(type),
    )


def named(name: str) -> Formula:
    """Return the function of that name, of numpy, cupy or torch, as a formula."""
    return lambda xp, x: getattr(xp, name)(x)


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


unary(
    "relu",
    None,
    "Out",
    None,
    bind=_relu_bind,
    torch=named("relu"),
    derivative_bind=_relu_grad_bind,
    torch_derivative=lambda torch, out, dout: torch.ops.aten.threshold_backward(dout, out, 0),
    inplace=True,
)


# -- sigmoid, tanh, and what is made of them -------------------------------------------------------
def _swish_grad(xp: ArrayModule, x, dout, beta: float) -> Array:
    gate = sigmoid(xp, x * beta)
    return (gate + beta * x * gate * (1 - gate)) * dout


def _stanh_grad(xp: ArrayModule, x, dout, scale_a: float, scale_b: float) -> Array:
    tanh = xp.tanh(scale_a * x)
    return dout * (scale_a * scale_b * (1 - tanh * tanh))


unary(
    "sigmoid",
    sigmoid,
    "Out",
    lambda xp, out, dout: (1 - out) * out * dout,
    torch_derivative=lambda torch, out, dout: torch.ops.aten.sigmoid_backward(dout, out),
)
unary(
    "tanh",
    named("tanh"),
    "Out",
    lambda xp, out, dout: (1 - out * out) * dout,
    torch_derivative=lambda torch, out, dout: torch.ops.aten.tanh_backward(dout, out),
    inplace=True,
)
unary(
    "logsigmoid", lambda xp, x: -softplus(xp, -x), "X", lambda xp, x, dout: sigmoid(xp, -x) * dout
)
unary("softplus", softplus, "X", lambda xp, x, dout: sigmoid(xp, x) * dout)
unary("swish", lambda xp, x, beta: sigmoid(xp, x * beta) * x, "X", _swish_grad, beta=1.0)
unary(
    "stanh",
    lambda xp, x, scale_a, scale_b: scale_b * xp.tanh(scale_a * x),
    "X",
    _stanh_grad,
    scale_a=0.67,
    scale_b=1.7159,
)
unary(
    "tanh_shrink",
    lambda xp, x: x - xp.tanh(x),
    "X",
    lambda xp, x, dout: dout * xp.square(xp.tanh(x)),
)


# -- pieces of lines -----------------------------------------------------------------------------
def _softsign_grad(xp: ArrayModule, x, dout) -> Array:
    size = xp.absolute(x) + 1
    return dout / (size * size)


def _leaky_relu(xp: ArrayModule, x, alpha: float) -> Array:
    return xp.maximum(x, x * alpha) if alpha <= 1 else xp.minimum(x, x * alpha)


def _hard_swish_grad(
    xp: ArrayModule, x, dout, threshold: float, scale: float, offset: float
) -> Array:
    above = x + offset >= threshold
    middle = (x + offset > 0) & ~above
    # As Fluid: one above the middle, whatever threshold / scale is.
    return dout * xp.where(middle, (2 * x + offset) / scale, above)


unary("softsign", lambda xp, x: x / (xp.absolute(x) + 1), "X", _softsign_grad)
unary(
    "leaky_relu",
    _leaky_relu,
    "Out",
    lambda xp, out, dout, alpha: dout * xp.where(out > 0, 1, alpha),
    torch_derivative=lambda torch, out, dout, alpha: torch.where(out > 0, dout, dout * alpha),
    alpha=0.02,
)
unary(
    "relu6",
    lambda xp, x, threshold: xp.clip(x, 0, threshold),
    "Out",
    lambda xp, out, dout, threshold: dout * ((out > 0) & (out < threshold)),
    threshold=6.0,
)
unary(
    "brelu",
    lambda xp, x, t_min, t_max: xp.clip(x, t_min, t_max),
    "X",
    lambda xp, x, dout, t_min, t_max: dout * ((x > t_min) & (x < t_max)),
    t_min=0.0,
    t_max=24.0,
)
unary(
    "hard_sigmoid",
    lambda xp, x, slope, offset: xp.clip(x * slope + offset, 0, 1),
    "Out",
    lambda xp, out, dout, slope, offset: dout * ((out > 0) & (out < 1)) * slope,
    slope=0.2,
    offset=0.5,
)
unary(
    "hard_swish",
    lambda xp, x, threshold, scale, offset: x * (xp.clip(x + offset, 0, threshold) / scale),
    "X",
    _hard_swish_grad,
    threshold=6.0,
    scale=6.0,
    offset=3.0,
)
unary(
    "hard_shrink",
    lambda xp, x, threshold: x * (xp.absolute(x) > threshold),
    "X",
    lambda xp, x, dout, threshold: dout * (xp.absolute(x) > threshold),
    threshold=0.5,
)
_LAMBDA: Attrs = {"lambda": 0.5}  # a word of Python's
unary(
    "softshrink",
    lambda xp, x, **attrs: xp.sign(x) * xp.clip(xp.absolute(x) - attrs["lambda"], 0, None),
    "X",
    lambda xp, x, dout, **attrs: dout * (xp.absolute(x) > attrs["lambda"]),
    **_LAMBDA,
)
unary(
    "thresholded_relu",
    lambda xp, x, threshold: x * (x > threshold),
    "X",
    lambda xp, x, dout, threshold: dout * (x > threshold),
    threshold=1.0,
)


# -- smooth variants of relu -----------------------------------------------------------------------
def _elu_grad(xp: ArrayModule, x, dout, alpha: float) -> Array:
    return dout * xp.where(x > 0, 1.0, alpha * xp.exp(xp.clip(x, None, 0)))


def _soft_relu_grad(xp: ArrayModule, out, dout, threshold: float) -> Array:
    # As Fluid: what is compared with the threshold is the result.
    return dout * (-xp.expm1(-out) * ((out > -threshold) & (out < threshold)))


def _selu(xp: ArrayModule, x, scale: float, alpha: float) -> Array:
    """Klambauer et al., 2017."""
    return scale * xp.where(x > 0, x, alpha * xp.expm1(xp.clip(x, None, 0)))


def _soft(xp: ArrayModule, x, threshold: float) -> Array:
    """Return softplus as mish has it: x above the threshold, exp(x) below its negative."""
    inside = xp.log1p(xp.exp(xp.clip(x, -threshold, threshold)))
    below = xp.where(x < -threshold, xp.exp(xp.clip(x, None, 0)), inside)
    return xp.where(x > threshold, x, below)


def _mish_grad(xp: ArrayModule, x, dout, threshold: float) -> Array:
    soft = _soft(xp, x, threshold)
    tanh = xp.tanh(soft)
    return dout * (tanh + x * (1 - tanh * tanh) * -xp.expm1(-soft))


SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
unary(
    "elu",
    lambda xp, x, alpha: xp.expm1(xp.clip(x, None, 0)) * alpha + xp.clip(x, 0, None),
    "X",
    _elu_grad,
    alpha=1.0,
)
unary(
    "soft_relu",
    lambda xp, x, threshold: xp.log1p(xp.exp(xp.clip(x, -threshold, threshold))),
    "Out",
    _soft_relu_grad,
    threshold=40.0,
)
unary(
    "selu",
    _selu,
    "Out",
    lambda xp, out, dout, scale, alpha: dout * xp.where(out > 0, scale, out + scale * alpha),
    scale=SELU_SCALE,
    alpha=SELU_ALPHA,
)
unary(
    "mish",  # Misra, 2019
    lambda xp, x, threshold: x * xp.tanh(_soft(xp, x, threshold)),
    "X",
    _mish_grad,
    threshold=20.0,
)

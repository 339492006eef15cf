"""gelu, and the error function that neither numpy nor plain cupy has."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.polynomial import chebyshev

from hpcdist.graph.rows import by_element
from hpcdist.ops.by_torch import Kernels, kernels_of, tensor_on, torch_for
from hpcdist.ops.common import define_with_grad, same
from hpcdist.ops.host_loops import compiled
from hpcdist.ops.types import Array, ArrayModule, Call

# erfc(t) exp(t^2) for t in [0, _FAR] is smooth in s = (t - _MIDDLE) / (t + _MIDDLE): a short
# Chebyshev series gives it to 1e-14 (Schonfelder 1978). Beyond _FAR, erf is 1 to double precision.
_FAR, _MIDDLE, _DEGREE = 6.0, 3.75, 16
_S_FAR = (_FAR - _MIDDLE) / (_FAR + _MIDDLE)


def _series() -> list[float]:
    def scaled_erfc(u) -> Array:
        s = (np.asarray(u) + 1) / 2 * (_S_FAR + 1) - 1
        t = _MIDDLE * (1 + s) / (1 - s)
        return np.array([math.erfc(v) * math.exp(v * v) for v in t])

    return [float(c) for c in chebyshev.chebinterpolate(scaled_erfc, _DEGREE)]


_COEFFICIENTS = _series()


# Below it the series' first term is all there is: 1 - erfc would keep few digits, or none of 0.
_NEAR = 1e-4


def erf(xp: ArrayModule, x) -> Array:
    """Return the error function of each element, in float64: float32 loses digits near 0."""
    x = x.astype("float64")
    t = xp.minimum(xp.absolute(x), _FAR)
    u = ((t - _MIDDLE) / (t + _MIDDLE) + 1) * (2 / (_S_FAR + 1)) - 1
    later, last = xp.zeros_like(u), xp.zeros_like(u)  # Clenshaw's recurrence
    for c in reversed(_COEFFICIENTS[1:]):
        later, last = 2 * u * later - last + c, later
    scaled = u * later - last + _COEFFICIENTS[0]
    far = xp.copysign(1 - xp.exp(-t * t) * scaled, x)
    return xp.where(t < _NEAR, x * (2 / math.sqrt(math.pi)), far)


_TANH_SCALE, _CUBE = math.sqrt(2 / math.pi), 0.044715


def _cdf(xp: ArrayModule, x, approximate: bool) -> Array:
    """Return the probability that a standard normal number is below x."""
    if approximate:
        return 0.5 * (1 + xp.tanh(_TANH_SCALE * (x + _CUBE * x * x * x)))
    return 0.5 * (1 + erf(xp, x * math.sqrt(0.5)))


def _gelu(xp: ArrayModule, x, out, approximate: bool) -> None:
    xp.multiply(x, _cdf(xp, x, approximate), out=out)


def _gelu_grad(xp: ArrayModule, x, dout, dx, approximate: bool) -> None:
    cdf = _cdf(xp, x, approximate)
    if approximate:
        density = 2 * cdf * (1 - cdf) * _TANH_SCALE * (1 + 3 * _CUBE * x * x)
    else:
        density = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    xp.multiply(dout, cdf + x * density, out=dx)


def _bind(xp: ArrayModule, x, out, approximate: bool) -> Call:
    if kernels_of(xp) is Kernels.OWN:
        if xp is np and not approximate:
            return compiled("elementwise.gelu_kernels", "gelu", x.reshape(-1), out.reshape(-1))
        return partial(_gelu, xp, x, out, approximate)
    torch = torch_for("gelu")
    x, out = (tensor_on(torch, array) for array in (x, out))
    options = {"approximate": "tanh" if approximate else "none"}
    return lambda: torch.ops.aten.gelu.out(x, out=out, **options)


def _grad_bind(xp: ArrayModule, x, dout, dx, approximate: bool) -> Call:
    if kernels_of(xp) is Kernels.OWN:
        if xp is np and not approximate:
            return compiled(
                "elementwise.gelu_kernels", "gelu_back", *(a.reshape(-1) for a in (x, dout, dx))
            )
        return partial(_gelu_grad, xp, x, dout, dx, approximate)
    torch = torch_for("gelu")
    x, dout, dx = (tensor_on(torch, array) for array in (x, dout, dx))
    options = {"approximate": "tanh" if approximate else "none"}
    return lambda: torch.ops.aten.gelu_backward.grad_input(dout, x, grad_input=dx, **options)


define_with_grad(
    "gelu",
    "X -> Out",
    "X, Out@GRAD -> X@GRAD",
    rows=by_element(),
    attrs={"approximate": False},
    infer=same,
    bind=_bind,
    grad_bind=_grad_bind,
)

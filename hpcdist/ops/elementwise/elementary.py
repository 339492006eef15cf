"""Elementary functions of one value, element by element: powers, logarithms, angles, signs."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, define
from hpcdist.graph.rows import by_element
from hpcdist.ops.common import Wanted, same
from hpcdist.ops.elementwise.activation import named, unary
from hpcdist.ops.elementwise.gelu import erf
from hpcdist.ops.formulas import enter, traced
from hpcdist.ops.host_loops import compiled
from hpcdist.ops.types import Array, ArrayModule, Call


# -- powers and roots ----------------------------------------------------------------------------
def _square_grad(xp: ArrayModule, x, dout) -> Array:
    half = x * dout
    return half + half  # cheaper than a Python number as operand


unary(
    "square",
    named("square"),
    "X",
    _square_grad,
    torch_derivative=lambda torch, x, dout: 2 * x * dout,
    inplace=True,
)


def _rsqrt_grad(xp: ArrayModule, out, dout) -> Array:
    return out * out * out * dout * -0.5


unary("rsqrt", lambda xp, x: 1 / xp.sqrt(x), "Out", _rsqrt_grad, torch=named("rsqrt"))
unary(
    "pow",
    lambda xp, x, factor: x**factor,
    "X",
    lambda xp, x, dout, factor: x ** (factor - 1) * dout * factor,
    given="FactorTensor",
    factor=1.0,
)


# -- elementary functions: in place, each is one call ----------------------------------------------
def _flat(xp: ArrayModule, dout, dx) -> Call:
    return partial(dx.fill, 0)


for _type, _name, _needs, _derivative in (
    ("sqrt", "sqrt", "Out", lambda xp, out, dout: dout / out * 0.5),
    ("reciprocal", "reciprocal", "Out", lambda xp, out, dout: -(out * out * dout)),
    ("exp", "exp", "Out", lambda xp, out, dout: out * dout),
    ("log", "log", "X", lambda xp, x, dout: dout / x),
    ("log1p", "log1p", "X", lambda xp, x, dout: dout / (1 + x)),
    ("abs", "absolute", "X", lambda xp, x, dout: xp.sign(x) * dout),
    ("sin", "sin", "X", lambda xp, x, dout: xp.cos(x) * dout),
    ("cos", "cos", "X", lambda xp, x, dout: -(xp.sin(x) * dout)),
    ("acos", "arccos", "X", lambda xp, x, dout: -dout / xp.sqrt(1 - x * x)),
    ("asin", "arcsin", "X", lambda xp, x, dout: dout / xp.sqrt(1 - x * x)),
    ("atan", "arctan", "X", lambda xp, x, dout: dout / (1 + x * x)),
    ("tan", "tan", "Out", lambda xp, out, dout: dout * (1 + out * out)),
    ("expm1", "expm1", "Out", lambda xp, out, dout: dout * (out + 1)),
    ("log2", "log2", "X", lambda xp, x, dout: dout / (x * math.log(2))),
    ("log10", "log10", "X", lambda xp, x, dout: dout / (x * math.log(10))),
    ("sinh", "sinh", "X", lambda xp, x, dout: dout * xp.cosh(x)),
    ("cosh", "cosh", "X", lambda xp, x, dout: dout * xp.sinh(x)),
    ("asinh", "arcsinh", "X", lambda xp, x, dout: dout / xp.sqrt(1 + x * x)),
    ("acosh", "arccosh", "X", lambda xp, x, dout: dout / xp.sqrt(x * x - 1)),
    ("atanh", "arctanh", "X", lambda xp, x, dout: dout / (1 - x * x)),
):
    unary(_type, named(_name), _needs, _derivative, inplace=True)
for _type, _name in {"floor": "floor", "ceil": "ceil", "round": "rint"}.items():
    unary(
        _type,
        named(_name),
        "",
        None,
        torch=named(_type),
        derivative_bind=_flat,
        torch_derivative=lambda torch, dout: torch.zeros_like(dout),
        inplace=True,
    )


def _erf_bind(xp: ArrayModule, x, out) -> Call:
    if xp is np:
        return compiled("elementwise.gelu_kernels", "erf", x.reshape(-1), out.reshape(-1))

    def run() -> None:
        out[...] = erf(xp, x)

    return run


unary(
    "erf",
    None,
    "X",
    lambda xp, x, dout: 2 / math.sqrt(math.pi) * xp.exp(-x * x) * dout,
    bind=_erf_bind,
    torch=named("erf"),
)


def _sign_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    return [GradOp("scale", {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, {"scale": 0.0})]


enter("sign", named("sign"))
define(
    "sign",
    "X -> Out",
    rows=by_element(),
    infer=same,
    bind=traced(named("sign"), 1),
    inplace={"Out": "X"},
    grad=_sign_grad,
)

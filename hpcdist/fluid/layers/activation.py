"""Functions of one value, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import append, named
from hpcdist.fluid.layers.math import constant, elementwise_pow
from hpcdist.graph.variable import Variable

__all__ = [
    "abs",
    "ceil",
    "cos",
    "elu",
    "exp",
    "floor",
    "gelu",
    "hard_sigmoid",
    "leaky_relu",
    "log",
    "logsigmoid",
    "pow",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "swish",
    "tanh",
]


def apply(type: str, x: Variable, name: str | None = None, **attrs: Any) -> Variable:
    """Append an operator from X to an Out of the same shape and element type; return that."""
    return append(type, {"X": x}, name, **attrs)


def plain(type: str, formula: str) -> Callable[..., Variable]:
    """Return the layer of an operator without attributes: ``layer(x, name=None)``."""

    def layer(x: Variable, name: str | None = None) -> Variable:
        return apply(type, x, name)

    told = "of every element; the result has the shape and the float type of ``x``."
    return named(type, layer, f"Return {formula} {told}")


abs = plain("abs", "abs(x)")
ceil = plain("ceil", "ceil(x)")
cos = plain("cos", "cos(x)")
exp = plain("exp", "exp(x)")
floor = plain("floor", "floor(x)")
log = plain("log", "log(x)")
logsigmoid = plain("logsigmoid", "-log(1 + exp(-x))")
reciprocal = plain("reciprocal", "1 / x")
relu = plain("relu", "max(x, 0)")
round = plain("round", "round(x)")
rsqrt = plain("rsqrt", "1 / sqrt(x)")
sigmoid = plain("sigmoid", "1 / (1 + exp(-x))")
sign = plain("sign", "sign(x)")
sin = plain("sin", "sin(x)")
softplus = plain("softplus", "log(1 + exp(x))")
softsign = plain("softsign", "x / (1 + abs(x))")
sqrt = plain("sqrt", "sqrt(x)")
square = plain("square", "x * x")
tanh = plain("tanh", "tanh(x)")


def pow(x: Variable, factor: float | Variable = 1.0, name: str | None = None) -> Variable:
    """Raise every element to the power ``factor``: a number, or a Variable of shape (1,).

    No gradient flows into a Variable, as in Fluid.

    Examples:
        >>> x = fluid.layers.assign(np.array([2.0, 3.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.pow(x, factor=2.0)])
        [array([4., 9.], dtype=float32)]
    """
    if isinstance(factor, Variable):
        return elementwise_pow(x, constant(factor), name=name)
    return apply("pow", x, name, factor=float(factor))


def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """Return x where positive, alpha x elsewhere; GraphError if ``alpha`` is negative.

    The gradient is told from the sign of the result, which such an alpha would turn round.

    x: float32 or float64, any shape; the result has the same shape and type, as in all layers of
    this module.

    Examples:
        >>> x = fluid.layers.assign(np.array([-1.0, 2.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.leaky_relu(x, alpha=0.5)])
        [array([-0.5,  2. ], dtype=float32)]
    """
    if alpha < 0:
        raise GraphError(f"leaky_relu: alpha must not be negative, got {alpha}")
    return apply("leaky_relu", x, name, alpha=float(alpha))


def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """Limit every element to the interval [0, threshold]."""
    return apply("relu6", x, name, threshold=float(threshold))


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """Return x where positive, alpha (exp(x) - 1) elsewhere."""
    return apply("elu", x, name, alpha=float(alpha))


def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """Return x sigmoid(beta x)."""
    return apply("swish", x, name, beta=float(beta))


def hard_sigmoid(
    x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None
) -> Variable:
    """Limit slope x + offset to the interval [0, 1]."""
    return apply("hard_sigmoid", x, name, slope=float(slope), offset=float(offset))


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """Return x times the probability that a standard normal number is below x."""
    return apply("gelu", x, None, approximate=approximate)

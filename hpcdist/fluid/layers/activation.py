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


def plain(type: str, formula: str, at: str, gives: str) -> Callable[..., Variable]:
    """Return the layer of an operator without attributes: ``layer(x, name=None)``.

    Its example shows what it ``gives`` ``at`` some places.
    """

    def layer(x: Variable, name: str | None = None) -> Variable:
        return apply(type, x, name)

    return named(type, layer, _PLAIN.format(formula=formula, type=type, at=at, gives=gives))


_PLAIN = """Return {formula} of every element.

x: float32 or float64, any shape; the result has the same shape and type.

Examples:
    >>> x = fluid.layers.assign(np.array([{at}], "float32"))
    >>> fluid.Executor().run(fetch_list=[fluid.layers.{type}(x)])
    [array([{gives}], dtype=float32)]
"""


abs = plain("abs", "abs(x)", "-1.0, 2.0", "1., 2.")
ceil = plain("ceil", "ceil(x)", "-1.5, 2.5", "-1.,  3.")
cos = plain("cos", "cos(x)", "0.0", "1.")
exp = plain("exp", "exp(x)", "0.0", "1.")
floor = plain("floor", "floor(x)", "-1.5, 2.5", "-2.,  2.")
log = plain("log", "log(x)", "1.0", "0.")
logsigmoid = plain("logsigmoid", "-log(1 + exp(-x))", "-100.0", "-100.")
reciprocal = plain("reciprocal", "1 / x", "0.5, 4.0", "2.  , 0.25")
relu = plain("relu", "max(x, 0)", "-1.0, 2.0", "0., 2.")
round = plain("round", "round(x)", "-1.2, 2.7", "-1.,  3.")
rsqrt = plain("rsqrt", "1 / sqrt(x)", "1.0, 4.0", "1. , 0.5")
sigmoid = plain("sigmoid", "1 / (1 + exp(-x))", "0.0, 100.0", "0.5, 1. ")
sign = plain("sign", "sign(x)", "-3.0, 2.0", "-1.,  1.")
sin = plain("sin", "sin(x)", "0.0", "0.")
softplus = plain("softplus", "log(1 + exp(x))", "100.0", "100.")
softsign = plain("softsign", "x / (1 + abs(x))", "-1.0, 3.0", "-0.5 ,  0.75")
sqrt = plain("sqrt", "sqrt(x)", "1.0, 4.0", "1., 2.")
square = plain("square", "x * x", "-1.0, 3.0", "1., 9.")
tanh = plain("tanh", "tanh(x)", "0.0, 100.0", "0., 1.")


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
    """Limit every element to the interval [0, threshold].

    Examples:
        >>> x = fluid.layers.assign(np.array([-1.0, 8.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.relu6(x)])
        [array([0., 6.], dtype=float32)]
    """
    return apply("relu6", x, name, threshold=float(threshold))


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """Return x where positive, alpha (exp(x) - 1) elsewhere.

    Examples:
        >>> x = fluid.layers.assign(np.array([-100.0, 2.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.elu(x, alpha=1.0)])
        [array([-1.,  2.], dtype=float32)]
    """
    return apply("elu", x, name, alpha=float(alpha))


def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """Return x sigmoid(beta x).

    Examples:
        >>> x = fluid.layers.assign(np.array([0.0, 100.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.swish(x)])
        [array([  0., 100.], dtype=float32)]
    """
    return apply("swish", x, name, beta=float(beta))


def hard_sigmoid(
    x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None
) -> Variable:
    """Limit slope x + offset to the interval [0, 1].

    Examples:
        >>> x = fluid.layers.assign(np.array([-1.0, 4.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.hard_sigmoid(x)])
        [array([0.3, 1. ], dtype=float32)]
    """
    return apply("hard_sigmoid", x, name, slope=float(slope), offset=float(offset))


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """Return x times the probability that a standard normal number is below x.

    Examples:
        >>> x = fluid.layers.assign(np.array([0.0, 20.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.gelu(x)])
        [array([ 0., 20.], dtype=float32)]
    """
    return apply("gelu", x, None, approximate=approximate)

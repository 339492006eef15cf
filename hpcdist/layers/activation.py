"""Functions of one value, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.graph.variable import Variable
from hpcdist.layers.helper import LayerHelper

_PLAIN = (
    "abs",
    "ceil",
    "cos",
    "exp",
    "floor",
    "log",
    "logsigmoid",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "tanh",
)
_WITH_ATTRIBUTES = ("elu", "gelu", "hard_sigmoid", "leaky_relu", "pow", "relu6", "swish")
__all__ = [*_PLAIN, *_WITH_ATTRIBUTES]


def _apply(type: str, x: Variable, name: str | None, **attrs: Any) -> Variable:
    return LayerHelper(type, name).apply(type, {"X": x}, attrs, dtype=x.dtype)


def _plain(type: str) -> Callable[..., Variable]:
    def layer(x: Variable, name: str | None = None) -> Variable:
        return _apply(type, x, name)

    layer.__name__ = layer.__qualname__ = type
    layer.__doc__ = f"Append ``{type}`` of every element."
    return layer


abs = _plain("abs")
ceil = _plain("ceil")
cos = _plain("cos")
exp = _plain("exp")
floor = _plain("floor")
log = _plain("log")
logsigmoid = _plain("logsigmoid")
reciprocal = _plain("reciprocal")
relu = _plain("relu")
round = _plain("round")
rsqrt = _plain("rsqrt")
sigmoid = _plain("sigmoid")
sign = _plain("sign")
sin = _plain("sin")
softplus = _plain("softplus")
softsign = _plain("softsign")
sqrt = _plain("sqrt")
square = _plain("square")
tanh = _plain("tanh")


def pow(x: Variable, factor: float = 1.0, name: str | None = None) -> Variable:
    """Raise every element to the power ``factor``."""
    return _apply("pow", x, name, factor=float(factor))


def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """Return x where positive, alpha x elsewhere."""
    return _apply("leaky_relu", x, name, alpha=float(alpha))


def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """Limit every element to the interval [0, threshold]."""
    return _apply("relu6", x, name, threshold=float(threshold))


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """Return x where positive, alpha (exp(x) - 1) elsewhere."""
    return _apply("elu", x, name, alpha=float(alpha))


def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """Return x sigmoid(beta x)."""
    return _apply("swish", x, name, beta=float(beta))


def hard_sigmoid(
    x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None
) -> Variable:
    """Limit slope x + offset to the interval [0, 1]."""
    return _apply("hard_sigmoid", x, name, slope=float(slope), offset=float(offset))


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """Return x times the probability that a standard normal number is below x."""
    return _apply("gelu", x, None, approximate=approximate)

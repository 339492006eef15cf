"""Rarer functions of one value, element by element; and two whose parts are channels."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers.activation import apply, plain
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.graph.variable import Variable

__all__ = [
    "acos",
    "asin",
    "atan",
    "brelu",
    "erf",
    "hard_shrink",
    "hard_swish",
    "log1p",
    "maxout",
    "mish",
    "prelu",
    "selu",
    "soft_relu",
    "softshrink",
    "stanh",
    "tanh_shrink",
    "thresholded_relu",
]

acos = plain("acos", "acos(x)", "1.0", "0.")
asin = plain("asin", "asin(x)", "0.0", "0.")
atan = plain("atan", "atan(x)", "0.0", "0.")
tanh_shrink = plain("tanh_shrink", "x - tanh(x)", "0.0, 100.0", " 0., 99.")


def erf(x: Variable) -> Variable:
    """Append ``erf``, the error function, of every element.

    Examples:
        >>> x = fluid.layers.assign(np.array([0.0, 5.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.erf(x)])
        [array([0., 1.], dtype=float32)]
    """
    return apply("erf", x, None)


def log1p(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Return log(1 + x).

    Examples:
        >>> x = fluid.layers.assign(np.array([0.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.log1p(x)])
        [array([0.], dtype=float32)]
    """
    return LayerHelper("log1p", name).apply("log1p", {"X": x}, out=out, dtype=x.dtype)


def brelu(
    x: Variable, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None
) -> Variable:
    """Limit every element to the interval [t_min, t_max].

    Examples:
        >>> x = fluid.layers.assign(np.array([-1.0, 30.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.brelu(x)])
        [array([ 0., 24.], dtype=float32)]
    """
    return apply("brelu", x, name, t_min=float(t_min), t_max=float(t_max))


def soft_relu(x: Variable, threshold: float = 40.0, name: str | None = None) -> Variable:
    """Return log(1 + exp(x)), of x limited to [-threshold, threshold].

    Examples:
        >>> x = fluid.layers.assign(np.array([50.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.soft_relu(x)])
        [array([40.], dtype=float32)]
    """
    return apply("soft_relu", x, name, threshold=float(threshold))


def _default(value: float | None, other: float) -> float:
    return other if value is None else float(value)


def hard_shrink(x: Variable, threshold: float | None = None) -> Variable:
    """Return x where it is farther from 0 than ``threshold`` (0.5), else 0.

    Examples:
        >>> x = fluid.layers.assign(np.array([0.4, -2.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.hard_shrink(x)])
        [array([ 0., -2.], dtype=float32)]
    """
    return apply("hard_shrink", x, None, threshold=_default(threshold, 0.5))


def softshrink(x: Variable, alpha: float | None = None) -> Variable:
    """Bring every element nearer to 0 by ``alpha`` (0.5), at most to 0.

    Examples:
        >>> x = fluid.layers.assign(np.array([0.4, -2.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.softshrink(x)])
        [array([ 0. , -1.5], dtype=float32)]
    """
    return apply("softshrink", x, None, **{"lambda": _default(alpha, 0.5)})


def thresholded_relu(x: Variable, threshold: float | None = None) -> Variable:
    """Return x where it is greater than ``threshold`` (1), else 0.

    Examples:
        >>> x = fluid.layers.assign(np.array([0.5, 2.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.thresholded_relu(x)])
        [array([0., 2.], dtype=float32)]
    """
    return apply("thresholded_relu", x, None, threshold=_default(threshold, 1.0))


def hard_swish(
    x: Variable,
    threshold: float = 6.0,
    scale: float = 6.0,
    offset: float = 3.0,
    name: str | None = None,
) -> Variable:
    """Return x min(max(x + offset, 0), threshold) / scale.

    Examples:
        >>> x = fluid.layers.assign(np.array([-4.0, 3.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.hard_swish(x)])
        [array([-0.,  3.], dtype=float32)]
    """
    attrs = {"threshold": float(threshold), "scale": float(scale), "offset": float(offset)}
    return apply("hard_swish", x, name, **attrs)


def mish(x: Variable, threshold: float = 20, name: str | None = None) -> Variable:
    """Return x tanh(log(1 + exp(x))).

    Examples:
        >>> x = fluid.layers.assign(np.array([0.0, 100.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.mish(x)])
        [array([  0., 100.], dtype=float32)]
    """
    return apply("mish", x, name, threshold=float(threshold))


def selu(
    x: Variable, scale: float | None = None, alpha: float | None = None, name: str | None = None
) -> Variable:
    """Return scale x where positive, scale alpha (exp(x) - 1) elsewhere.

    Examples:
        >>> x = fluid.layers.assign(np.array([0.0, 1.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.selu(x)])
        [array([0.      , 1.050701], dtype=float32)]
    """
    attrs = {"scale": scale, "alpha": alpha}
    return apply("selu", x, name, **{k: float(v) for k, v in attrs.items() if v is not None})


def stanh(
    x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None
) -> Variable:
    """Return scale_b tanh(scale_a x).

    Examples:
        >>> x = fluid.layers.assign(np.array([0.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.stanh(x)])
        [array([0.], dtype=float32)]
    """
    return apply("stanh", x, name, scale_a=float(scale_a), scale_b=float(scale_b))


def prelu(
    x: Variable, mode: str, param_attr: ParamLike = None, name: str | None = None
) -> Variable:
    """Return x where positive, slope x elsewhere; the slopes (0.25) are learned.

    mode: one slope for "all", one for each "channel" (dimension 1), or for each "element" of a
    sample.

    x: [n, channels, ...]; slopes are [1] (all), [1, channels, 1, ...] (channel) or
    [1, channels, ...] (element). The result has the shape of x.

    Examples:
        >>> x = fluid.data("x", [None, 8])
        >>> fluid.layers.prelu(x, mode="all").shape
        (-1, 8)
    """
    helper = LayerHelper("prelu", name)
    if mode not in ("all", "channel", "element"):
        raise GraphError(f"prelu: mode must be all, channel or element, got {mode!r}")
    shape: Sequence[int] = [1]
    if mode == "channel":
        shape = [1, x.shape[1], 1, 1]
    elif mode == "element":
        shape = [1, *x.shape[1:]]
    alpha = helper.create_parameter(param_attr, shape, x.dtype, default_initializer=Constant(0.25))
    return helper.apply("prelu", {"X": x, "Alpha": alpha}, {"mode": mode}, dtype=x.dtype)


def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """Return the largest of each ``groups`` channels that follow one another.

    x: [n, channels, rows, columns], groups divides the channels. Returns channels / groups of them.

    Examples:
        >>> images = fluid.data("images", [None, 4, 8, 8])
        >>> fluid.layers.maxout(images, groups=2).shape
        (-1, 2, 8, 8)
    """
    if axis not in (1, -1, 3):
        raise GraphError(f"maxout: axis must be 1 for NCHW, 3 or -1 for NHWC, got {axis}")
    return append("maxout", {"X": x}, name, groups=groups, axis=3 if axis == -1 else axis)

"""``paddle.nn.initializer``: Fluid's initializers with Paddle 2's parameters and defaults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import initializer as fluid
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import Positive, Unsigned
from hpcdist.fluid.initializer import Bilinear, Initializer  # noqa: F401
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.variable import Variable

_GAINS = {
    "sigmoid": 1.0,
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv1d_transpose": 1.0,
    "conv2d_transpose": 1.0,
    "conv3d_transpose": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor of a standard deviation for an activation."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise GraphError(
            f"paddle.nn.initializer.calculate_gain: expected one of leaky_relu, "
            f"{', '.join(_GAINS)}, got {nonlinearity!r}"
        )
    return _GAINS[nonlinearity]


def Constant(value: float = 0.0) -> Initializer:
    """Fill with one value."""
    return fluid.Constant(value)


def Normal(mean: float = 0.0, std: Unsigned = 1.0, name: str | None = None) -> Initializer:
    """Draw from the normal distribution."""
    return fluid.Normal(mean, std)


def TruncatedNormal(
    mean: float = 0.0, std: Unsigned = 1.0, name: str | None = None, a: float = -2.0, b: float = 2.0
) -> Initializer:
    """Draw from the normal distribution cut off at two standard deviations."""
    if (a, b) != (-2.0, 2.0):
        raise GraphError(
            f"paddle.nn.initializer.TruncatedNormal: cut off at -2.0 and 2.0 here, got {a} and {b}"
        )
    return fluid.TruncatedNormal(mean, std)


def Uniform(low: float = -1.0, high: float = 1.0, name: str | None = None) -> Initializer:
    """Draw from [low, high]."""
    return fluid.Uniform(low, high)


def XavierNormal(
    fan_in: Positive | None = None,
    fan_out: Positive | None = None,
    name: str | None = None,
    gain: float = 1.0,
) -> Initializer:
    """Draw from the normal distribution with variance 2 / (fan_in + fan_out)."""
    return _scaled(fluid.Xavier(False, fan_in, fan_out), gain)


def XavierUniform(
    fan_in: Positive | None = None,
    fan_out: Positive | None = None,
    name: str | None = None,
    gain: float = 1.0,
) -> Initializer:
    """Draw evenly with variance 2 / (fan_in + fan_out)."""
    return _scaled(fluid.Xavier(True, fan_in, fan_out), gain)


def KaimingNormal(
    fan_in: Positive | None = None, negative_slope: float = 0.0, nonlinearity: str = "relu"
) -> Initializer:
    """Draw from the normal distribution with standard deviation gain / sqrt(fan_in)."""
    return Kaiming(False, fan_in, negative_slope, nonlinearity)


def KaimingUniform(
    fan_in: Positive | None = None, negative_slope: float = 0.0, nonlinearity: str = "relu"
) -> Initializer:
    """Draw evenly with standard deviation gain / sqrt(fan_in)."""
    return Kaiming(True, fan_in, negative_slope, nonlinearity)


def _scaled(initializer: Initializer, gain: float) -> Initializer:
    if gain != 1.0:
        raise GraphError(
            f"paddle.nn.initializer: gain is 1.0 here, got {gain}: use Normal or Uniform with the "
            "standard deviation or limit"
        )
    return initializer


class Kaiming(Initializer):
    """Draw with standard deviation gain / sqrt(fan_in) (He et al., 2015)."""

    def __init__(
        self, uniform: bool, fan_in: float | None, negative_slope: float, nonlinearity: str
    ) -> None:
        self.uniform, self.fan_in = uniform, fan_in
        self.gain = calculate_gain(nonlinearity, negative_slope)

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``uniform_random`` or ``gaussian_random``."""
        fan = self.fan_in or fluid.fans(var.shape)[0]
        if self.uniform:
            limit = self.gain * math.sqrt(3.0 / fan)
            return fluid.Uniform(-limit, limit)(var, block)
        return fluid.Normal(0.0, self.gain / math.sqrt(fan))(var, block)


class Assign(Initializer):
    """Fill with the values of an array or a list, of the parameter's shape."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        if isinstance(value, Variable):
            raise GraphTypeError(
                "paddle.nn.initializer.Assign: expected numbers, got a Variable, whose value only "
                "a step knows"
            )
        self.value = np.asarray(value)

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``assign_value``."""
        return fluid.NumpyArrayInitializer(self.value.reshape(var.shape))(var, block)


class Orthogonal(Initializer):
    """Fill with a matrix whose rows, or columns if there are fewer, are orthogonal."""

    def __init__(self, gain: float = 1.0, name: str | None = None) -> None:
        self.gain = float(gain)

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``assign_value``, drawn from the startup Program's seed and the name."""
        if len(var.shape) < 2:
            raise GraphError(f"Orthogonal: {var.name!r} has shape {var.shape}, expected a matrix")
        rows, columns = var.shape[0], math.prod(var.shape[1:])
        seed = [block.program.random_seed, *var.name.encode()]
        drawn = np.random.default_rng(seed).normal(size=(max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(drawn)
        q *= np.sign(np.diag(r))
        whole = (q if rows >= columns else q.T).reshape(var.shape) * self.gain
        return fluid.NumpyArrayInitializer(whole.astype(var.dtype))(var, block)


class Dirac(Initializer):
    """Fill the kernels of a convolution so that it gives what it is given, in each group."""

    def __init__(self, groups: int = 1, name: str | None = None) -> None:
        self.groups = declare.KINDS["int"]("paddle.nn.initializer.Dirac: groups", groups)

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``assign_value``."""
        if len(var.shape) not in (3, 4, 5) or self.groups < 1 or var.shape[0] % self.groups:
            raise GraphError(
                f"Dirac: {var.name!r} has shape {var.shape}, expected kernels of 3 to 5 dimensions,"
                f" the first of which can be divided among {self.groups} groups"
            )
        whole = np.zeros(var.shape, var.dtype)
        each, middle = var.shape[0] // self.groups, tuple(size // 2 for size in var.shape[2:])
        for group in range(self.groups):
            for channel in range(min(each, var.shape[1])):
                whole[(group * each + channel, channel, *middle)] = 1
        return fluid.NumpyArrayInitializer(whole)(var, block)


def set_global_initializer(weight_init: Any, bias_init: Any = None) -> None:
    """Refuse: a ParamAttr says of each parameter how it begins."""
    raise GraphError(
        "paddle.nn.initializer.set_global_initializer is not in hpcdist: give each layer a "
        "weight_attr=paddle.ParamAttr(initializer=...)"
    )


_UNCHECKED = ("calculate_gain", "set_global_initializer")
__all__ = declare.offered("paddle.nn.initializer", globals(), ["Bilinear"], _UNCHECKED)

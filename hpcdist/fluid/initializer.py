"""Initializers: each prepends the operator that fills a parameter to the startup block.

Fluid builds startup programs back to front, so the last parameter made is initialized first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.operator import Operator
from hpcdist.graph.variable import Variable
from hpcdist.ops.tensor.constant import VALUE_ATTRS


class Initializer:
    """A way to fill a variable: ``initializer(var, block)`` prepends the operator to ``block``."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend the operator that fills ``var``."""
        raise NotImplementedError


class ConstantInitializer(Initializer):
    """Fill with one value. ``force_cpu`` is kept as an attribute only."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        self.value = float(value)
        self.force_cpu = bool(force_cpu)

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``fill_constant``."""
        attrs = {"shape": list(var.shape), "dtype": var.dtype, "value": self.value}
        attrs["force_cpu"] = self.force_cpu
        return block.prepend_op("fill_constant", {}, {"Out": var}, attrs)


class _Random(Initializer):
    """Fill from a random stream; ``seed`` 0 takes the startup program's, 0 there the job's."""

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def _prepend(self, type: str, var: Variable, block: Block, **attrs: float) -> Operator:
        if not is_float(var.dtype):
            raise GraphTypeError(
                f"{type}: {var.name!r} is {var.dtype}, but random values are floats"
            )
        seed = self.seed or block.program.random_seed
        facts: dict[str, Any] = {"shape": list(var.shape), "dtype": var.dtype}
        facts |= {"seed": int(seed), "stream": var.name}
        return block.prepend_op(type, {}, {"Out": var}, {**facts, **attrs})

    def _uniform(self, var: Variable, block: Block, low: float, high: float) -> Operator:
        return self._prepend("uniform_random", var, block, min=float(low), max=float(high))

    def _normal(self, var: Variable, block: Block, mean: float, std: float) -> Operator:
        return self._prepend("gaussian_random", var, block, mean=float(mean), std=float(std))

    def _of_fan(self, var: Variable, block: Block, fan: float, uniform: bool) -> Operator:
        """Draw with variance 2 / fan."""
        if uniform:
            limit = math.sqrt(6.0 / fan)
            return self._uniform(var, block, -limit, limit)
        return self._normal(var, block, 0.0, math.sqrt(2.0 / fan))


class UniformInitializer(_Random):
    """Draw from [low, high]."""

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ) -> None:
        super().__init__(seed)
        if high < low:
            raise GraphError(f"Uniform: low {low} is above high {high}")
        if diag_num:
            raise GraphError(
                f"Uniform: diag_num is {diag_num}, but no element is set apart here: "
                "NumpyArrayInitializer takes any values"
            )
        self.low, self.high = low, high

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``uniform_random``."""
        return self._uniform(var, block, self.low, self.high)


class NormalInitializer(_Random):
    """Draw from the normal distribution with mean ``loc`` and standard deviation ``scale``."""

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__(seed)
        self.loc, self.scale = loc, scale

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``gaussian_random``."""
        return self._normal(var, block, self.loc, self.scale)


class TruncatedNormalInitializer(NormalInitializer):
    """Draw from the normal distribution cut off at two standard deviations."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``truncated_gaussian_random``."""
        facts = {"mean": float(self.loc), "std": float(self.scale)}
        return self._prepend("truncated_gaussian_random", var, block, **facts)


class XavierInitializer(_Random):
    """Draw with variance 2 / (fan_in + fan_out), uniform or normal (Glorot and Bengio, 2010)."""

    def __init__(
        self,
        uniform: bool = True,
        fan_in: float | None = None,
        fan_out: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.uniform, self.fan_in, self.fan_out = uniform, fan_in, fan_out

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``uniform_random`` or ``gaussian_random``."""
        fan_in, fan_out = fans(var.shape)
        both = (self.fan_in or fan_in) + (self.fan_out or fan_out)
        return self._of_fan(var, block, both, self.uniform)


class MSRAInitializer(_Random):
    """Draw with variance 2 / fan_in, uniform or normal (He et al., 2015)."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.uniform, self.fan_in = uniform, fan_in

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``uniform_random`` or ``gaussian_random``."""
        return self._of_fan(var, block, self.fan_in or fans(var.shape)[0], self.uniform)


class NumpyArrayInitializer(Initializer):
    """Fill with the values of an array of the parameter's shape."""

    def __init__(self, value: np.ndarray) -> None:
        if not isinstance(value, np.ndarray):
            raise GraphTypeError(f"NumpyArrayInitializer: expected an array, got {value!r}")
        self.value = value

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``assign_value``."""
        if self.value.shape != var.shape:
            raise GraphError(
                f"NumpyArrayInitializer: the array has shape {self.value.shape}, "
                f"but {var.name!r} has {var.shape}"
            )
        if var.dtype not in VALUE_ATTRS:
            raise GraphTypeError(
                f"NumpyArrayInitializer: {var.name!r} is {var.dtype}, "
                f"expected one of {', '.join(VALUE_ATTRS)}"
            )
        values = self.value.astype(var.dtype)
        attrs = {"shape": list(var.shape), "dtype": var.dtype, VALUE_ATTRS[var.dtype]: values}
        return block.prepend_op("assign_value", {}, {"Out": var}, attrs)


class BilinearInitializer(Initializer):
    """Fill square filters with the weights by which a transposed convolution enlarges images."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Prepend ``assign_value``."""
        if len(var.shape) != 4 or var.shape[2] != var.shape[3]:
            raise GraphError(
                f"BilinearInitializer: {var.name!r} has shape {var.shape}, expected square filters "
                "[filters, channels, size, size]"
            )
        size = var.shape[3]
        half = math.ceil(size / 2)
        center = (2 * half - 1 - half % 2) / (2 * half)
        place = np.arange(math.prod(var.shape))
        # As Fluid: the row is a fraction, which grows within it.
        column, row = place % size, place / size % size
        weights = (1 - abs(column / half - center)) * (1 - abs(row / half - center))
        return NumpyArrayInitializer(weights.reshape(var.shape).astype("float32"))(var, block)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight: rows and columns, or channels times the kernel."""
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    if len(shape) == 2:
        # A table of any number of rows counts as many as a row is wide.
        return shape[0] if shape[0] > 0 else shape[1], shape[1]
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


Constant = ConstantInitializer
Uniform = UniformInitializer
Normal = NormalInitializer
TruncatedNormal = TruncatedNormalInitializer
Xavier = XavierInitializer
MSRA = MSRAInitializer
Bilinear = BilinearInitializer

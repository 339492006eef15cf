"""Random values inside a step: noise that every run draws anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphTypeError
from hpcdist.fluid.layers.extents import as_extents
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.dtypes import DTypeLike, canonical, is_float
from hpcdist.graph.variable import Variable

__all__ = [
    "gaussian_random",
    "gaussian_random_batch_size_like",
    "uniform_random",
    "uniform_random_batch_size_like",
]


def uniform_random(
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """Draw values of [min, max); with a ``seed`` Fluid's for it, the same in every run.

    Examples:
        >>> fluid.layers.uniform_random([2, 3], min=0.0, max=1.0).shape
        (2, 3)
    """
    return _draw("uniform_random", None, shape, dtype, seed, min=float(min), max=float(max))


def gaussian_random(
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = "float32",
) -> Variable:
    """Draw normal values; with a ``seed`` Fluid's for it, the same in every run.

    Examples:
        >>> fluid.layers.gaussian_random([2, 3]).shape
        (2, 3)
    """
    return _draw("gaussian_random", None, shape, dtype, seed, mean=float(mean), std=float(std))


def uniform_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """Draw values of [min, max), one extent of ``shape`` taken from ``input``.

    Examples:
        >>> x = fluid.data("x", [None, 3])
        >>> fluid.layers.uniform_random_batch_size_like(x, [1, 4]).shape
        (-1, 4)
    """
    like = {"input_dim_idx": input_dim_idx, "output_dim_idx": output_dim_idx}
    facts = {"min": float(min), "max": float(max), **like}
    return _draw("uniform_random_batch_size_like", input, shape, dtype, seed, **facts)


def gaussian_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = "float32",
) -> Variable:
    """Draw normal values, one extent of ``shape`` taken from ``input``.

    Examples:
        >>> x = fluid.data("x", [None, 3])
        >>> fluid.layers.gaussian_random_batch_size_like(x, [1, 4]).shape
        (-1, 4)
    """
    like = {"input_dim_idx": input_dim_idx, "output_dim_idx": output_dim_idx}
    facts = {"mean": float(mean), "std": float(std), **like}
    return _draw("gaussian_random_batch_size_like", input, shape, dtype, seed, **facts)


def _draw(
    type: str, like: Variable | None, shape: Any, dtype: DTypeLike, seed: int, **facts: Any
) -> Variable:
    if not is_float(canonical(dtype)):
        raise GraphTypeError(f"{type}: random values are floats, got dtype {dtype!r}")
    helper = LayerHelper(type)
    inputs = {} if like is None else {"Input": like}
    attrs = {"shape": as_extents(shape), "dtype": canonical(dtype), "seed": int(seed)}
    return helper.apply(type, inputs, {**attrs, **facts}, dtype=dtype, stop_gradient=True)

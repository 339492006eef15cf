"""Functions of Paddle 2 that make Variables: filled, counted, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.declare import Extents
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import LayerHelper, into
from hpcdist.graph.dtypes import canonical, is_float
from hpcdist.graph.variable import Variable

_default_dtype = "float32"


def get_default_dtype() -> str:
    """Return the element type of values that are made without one."""
    return _default_dtype


def set_default_dtype(d: Any) -> None:
    """Set the element type of values that are made without one: float32 or float64."""
    global _default_dtype
    name = declare.KINDS["dtype"]("paddle.set_default_dtype: d", "" if d is None else d)
    if not is_float(name):
        raise GraphError(f"paddle.set_default_dtype: expected a float type, got {d!r}")
    _default_dtype = name


def finfo(dtype: Any) -> np.finfo:
    """Return the limits of a float type: ``min``, ``max``, ``eps``, ``tiny``, ``bits``."""
    return np.finfo(_numpy_type("finfo", dtype, "f"))


def iinfo(dtype: Any) -> np.iinfo:
    """Return the limits of an integer type: ``min``, ``max``, ``bits``."""
    return np.iinfo(_numpy_type("iinfo", dtype, "iu"))


def _numpy_type(of: str, dtype: Any, kinds: str) -> np.dtype:
    found = (
        None if dtype is None else np.dtype(declare.KINDS["dtype"](f"paddle.{of}: dtype", dtype))
    )
    if found is None or found.kind not in kinds:
        other = (
            "of floats, iinfo tells of integers"
            if of == "finfo"
            else "of integers, finfo of floats"
        )
        raise GraphTypeError(f"paddle.{of}: dtype: expected a type {other}, got {dtype!r}")
    return found


def _kind(dtype: Any) -> str:
    return _default_dtype if dtype is None else canonical(dtype)


def full(shape: Extents, fill_value: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """Return a value of this shape, each element ``fill_value``; extents may be Variables."""
    if dtype is None and isinstance(fill_value, bool):
        dtype = "bool"
    out = layers.fill_constant(shape, _kind(dtype), fill_value)
    out.stop_gradient = True
    return out


def zeros(shape: Extents, dtype: Any = None, name: str | None = None) -> Variable:
    """Return zeros."""
    return full(shape, 0.0, _kind(dtype), name)


def ones(shape: Extents, dtype: Any = None, name: str | None = None) -> Variable:
    """Return ones."""
    return full(shape, 1.0, _kind(dtype), name)


empty = zeros  # values that nobody has set are zeros here


def arange(
    start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return start, start + step, ... below end; int64 unless one of them is a float."""
    if end is None:
        start, end = 0, start
    if dtype is None:
        of = [getattr(v, "dtype", type(v).__name__) for v in (start, end, step)]
        dtype = _default_dtype if any(str(kind).startswith("float") for kind in of) else "int64"
    return layers.range(start, end, step, canonical(dtype))


def linspace(
    start: Any, stop: Any, num: Any, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return ``num`` numbers at equal distances, both ends included."""
    if not isinstance(num, Variable):
        num = declare.KINDS["int"]("paddle.linspace: num", num)
    for name, bound in (("start", start), ("stop", stop)):
        if not isinstance(bound, Variable):
            declare.KINDS["float"](f"paddle.linspace: {name}", bound)
    return layers.linspace(start, stop, num, _kind(dtype))


def eye(
    num_rows: int, num_columns: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return an identity matrix."""
    return layers.eye(num_rows, num_columns, dtype=_kind(dtype))


def assign(x: Any, output: Variable | None = None) -> Variable:
    """Return a copy of a Variable, or numbers (an array, a list, one) as a Variable."""
    if isinstance(x, Variable):
        return into(output, x) if output is not None else _copied(x)
    return _constant("paddle.assign", np.asarray(x), output)


def to_tensor(
    data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True
) -> Variable:
    """Return numbers as a Variable; floats are of the default type unless ``dtype`` is given."""
    if isinstance(data, Variable):
        return data if dtype is None else data.astype(dtype)
    array = np.asarray(data)
    if dtype is not None:
        array = array.astype(canonical(dtype))
    elif array.dtype == np.float64 and not isinstance(data, np.ndarray):
        array = array.astype(_default_dtype)
    out = _constant("paddle.to_tensor", array, None)
    out.stop_gradient = stop_gradient
    return out


def _copied(x: Variable) -> Variable:
    return LayerHelper("assign").apply("assign", {"X": x}, dtype=x.dtype)


def _constant(where: str, array: np.ndarray, output: Variable | None) -> Variable:
    if array.dtype.kind not in "bifu":
        raise GraphError(f"{where}: expected numbers, got an array of {array.dtype}")
    if array.dtype == np.float64:  # operators hold values of float32
        wide = layers.assign(array.astype(np.float32))
        return into(output, wide.astype("float64") if output is None else wide)
    if array.dtype == np.float16 or array.dtype.name in ("int8", "int16", "uint8"):
        wider = np.float32 if array.dtype == np.float16 else np.int32
        return into(output, layers.assign(array.astype(wider)).astype(array.dtype.name))
    shaped = layers.assign(array.reshape(array.shape or (1,)))
    return into(output, shaped if array.shape else scalar(shaped))


def clone(x: Variable, name: str | None = None) -> Variable:
    """Return a copy, through which gradients flow."""
    return _copied(x)


# -- drawn anew in every step ----------------------------------------------------------------------
def uniform(
    shape: Extents,
    dtype: Any = None,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    name: str | None = None,
) -> Variable:
    """Draw from [min, max)."""
    return layers.uniform_random(shape, _kind(dtype), min, max, seed)


def rand(shape: Extents, dtype: Any = None, name: str | None = None) -> Variable:
    """Draw from [0, 1)."""
    return layers.uniform_random(shape, _kind(dtype), 0.0, 1.0)


def randn(shape: Extents, dtype: Any = None, name: str | None = None) -> Variable:
    """Draw from the normal distribution with mean 0 and standard deviation 1."""
    return layers.gaussian_random(shape, dtype=_kind(dtype))


standard_normal = randn


def normal(mean: Any = 0.0, std: Any = 1.0, shape: Any = None, name: str | None = None) -> Variable:
    """Draw from normal distributions; Variables for ``mean`` or ``std`` give the shape."""
    like = next((v for v in (mean, std) if isinstance(v, Variable)), None)
    if like is None:
        return layers.gaussian_random([1] if shape is None else shape, float(mean), float(std))
    noise = layers.gaussian_random_batch_size_like(like, list(like.shape))
    return noise * std + mean


def randint(
    low: int = 0,
    high: int | None = None,
    shape: Extents = (1,),
    dtype: Any = None,
    name: str | None = None,
) -> Variable:
    """Draw integers of [low, high), or of [0, low) if that is the only bound."""
    bounds = (0, low) if high is None else (low, high)
    kind = "int64" if dtype is None else canonical(dtype)
    return layers.randint(bounds[0], bounds[1], shape, dtype=kind)


def randperm(n: int, dtype: Any = "int64", name: str | None = None) -> Variable:
    """Return 0 .. n - 1 in an order drawn anew in every step."""
    return layers.randperm(n, dtype=canonical(dtype))


def bernoulli(x: Variable, name: str | None = None) -> Variable:
    """Draw 1 with the probability that the element of ``x`` is, else 0."""
    drawn = layers.uniform_random_batch_size_like(x, list(x.shape), x.dtype, min=0.0, max=1.0)
    return (drawn < x).astype(x.dtype)


def poisson(x: Variable, name: str | None = None) -> Variable:
    """Draw from Poisson's distribution with the mean that the element of ``x`` is."""
    drawn = layers.uniform_random_batch_size_like(x, list(x.shape), x.dtype, min=0.0, max=1.0)
    helper, inputs = LayerHelper("poisson", name), {"X": x, "Chance": drawn}
    return helper.apply("poisson_quantile", inputs, dtype=x.dtype, stop_gradient=True)


def randint_like(
    x: Variable, low: int = 0, high: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """Draw integers of [low, high), or of [0, low), in the shape and element type of ``x``."""
    low, high = (0, low) if high is None else (low, high)
    if low >= high:
        raise GraphError(f"paddle.randint_like: no integers from {low} to below {high}")
    like, shape = (x if is_float(x.dtype) else x.astype("float32")), list(x.shape)
    drawn = layers.uniform_random_batch_size_like(like, shape, "float64", min=low, max=high)
    return layers.floor(drawn).astype(x.dtype if dtype is None else canonical(dtype))


__all__ = declare.offered(
    "paddle", globals(), unchecked=["finfo", "get_default_dtype", "iinfo", "set_default_dtype"]
)

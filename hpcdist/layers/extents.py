"""Extents, starts and ends that may be Variables, alone or among numbers, as Fluid takes them."""

from __future__ import annotations

from typing import Any

from hpcdist.errors import GraphTypeError
from hpcdist.graph.variable import Variable
from hpcdist.layers.helper import LayerHelper


def extents(
    helper: LayerHelper, shape: Any, tensor: str, listed: str
) -> tuple[dict[str, Any], list[int]]:
    """Return an operator's inputs for what is given, and its attribute.

    One Variable goes into the slot ``tensor``. A list that has some goes into ``listed``, numbers
    made to values of shape (1,); the attribute says -1 where there is a Variable. Variables are
    int32 or int64 and stop gradients; GraphTypeError for others.
    """
    if isinstance(shape, Variable):
        return {tensor: _integers(helper, shape)}, []
    if not any(isinstance(d, Variable) for d in shape):
        return {}, [int(d) for d in shape]
    values = [_integers(helper, d) if isinstance(d, Variable) else _one(helper, d) for d in shape]
    return {listed: values}, [-1 if isinstance(d, Variable) else int(d) for d in shape]


def _integers(helper: LayerHelper, value: Variable) -> Variable:
    if value.dtype not in ("int32", "int64"):
        raise GraphTypeError(
            f"{helper.layer_type}: {value.name!r} is {value.dtype}, expected int32 or int64 for a "
            "shape: use layers.cast"
        )
    value.stop_gradient = True
    return value


def _one(helper: LayerHelper, number: int) -> Variable:
    attrs = {"shape": [1], "dtype": "int32", "value": float(number), "force_cpu": True}
    return helper.apply("fill_constant", {}, attrs, dtype="int32", stop_gradient=True)

"""Element types by their numpy names, accepted in every spelling Fluid scripts use."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from hpcdist.base.element_types import CODES, NAMES
from hpcdist.base.errors import GraphError, GraphTypeError, HpcdistError

KNOWN = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")


class ElementType(str):
    """The name of an element type, of which ``int()`` gives Fluid's number."""

    __slots__ = ()

    def __int__(self) -> int:
        return CODES[self]


class VarType:
    """Fluid's ``core.VarDesc.VarType``: kinds of variables, and element types."""

    BOOL, INT8, UINT8, INT16 = map(ElementType, ("bool", "int8", "uint8", "int16"))
    INT32, INT64 = map(ElementType, ("int32", "int64"))
    FP16, FP32, FP64 = map(ElementType, ("float16", "float32", "float64"))
    LOD_TENSOR, SELECTED_ROWS, RAW = "LOD_TENSOR", "SELECTED_ROWS", "RAW"
    STEP_SCOPES, READER, LOD_TENSOR_ARRAY = "STEP_SCOPES", "READER", "LOD_TENSOR_ARRAY"
    # Kinds that no variable has here, for scripts that tell variables of these kinds apart.
    FEED_MINIBATCH, FETCH_LIST, LOD_RANK_TABLE = "FEED_MINIBATCH", "FETCH_LIST", "LOD_RANK_TABLE"
    PLACE_LIST = "PLACE_LIST"


DTypeLike: TypeAlias = str | type | np.dtype[Any] | int  # a name, a type, Fluid's number


def canonical(dtype: DTypeLike) -> str:
    """Return ``dtype`` (a name, a numpy type, Fluid's number) as one of ``KNOWN``.

    GraphTypeError for what numpy does not know either, as in Fluid; GraphError for anything else.
    """
    wrong: type[HpcdistError] = GraphError
    if isinstance(dtype, int):
        name = NAMES.get(dtype, str(dtype))
    else:
        try:
            name = str(np.dtype(dtype).name)
        except TypeError:
            name, wrong = str(dtype), GraphTypeError
    if name not in KNOWN:
        raise wrong(f"unknown dtype {dtype!r}: expected one of {', '.join(KNOWN)}")
    return name


def is_float(dtype: str) -> bool:
    """Return whether gradients may flow through values of this element type."""
    return dtype.startswith("float")

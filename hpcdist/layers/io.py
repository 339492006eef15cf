"""Variables that are fed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.errors import GraphError, GraphTypeError
from hpcdist.graph.dtypes import VarType, canonical
from hpcdist.graph.program import default_main_program
from hpcdist.graph.variable import Variable


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: str = VarType.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """Declare a variable to be fed; a batch dimension -1 is put first unless one is there."""
    dims = _dims("layers.data", name, shape)
    if append_batch_size and -1 not in dims:
        dims = (-1, *dims)
    return _feed_variable(name, dims, dtype, lod_level, type, stop_gradient)


def data_v2(
    name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0
) -> Variable:
    """Declare a variable to be fed, of this very shape (`fluid.data`); None or -1: any size."""
    dims = _dims("fluid.data", name, shape)
    return _feed_variable(name, dims, dtype, lod_level, VarType.LOD_TENSOR, True)


def _dims(layer: str, name: str, shape: Sequence[int | None]) -> tuple[int, ...]:
    if not isinstance(name, str):
        raise GraphTypeError(f"{layer}: the name must be a string, got {name!r}")
    if not isinstance(shape, (list, tuple)):
        raise GraphTypeError(
            f"{layer} {name!r}: the shape must be a list or a tuple, got {shape!r}"
        )
    return tuple(-1 if d is None or d < 0 else int(d) for d in shape)


def _feed_variable(
    name: str, shape: tuple[int, ...], dtype: Any, lod_level: int, type: str, stop_gradient: bool
) -> Variable:
    block = default_main_program().global_block()
    known = block.vars.get(name)
    if known is not None and (known.shape, known.dtype) != (shape, canonical(dtype)):
        raise GraphError(
            f"data {name!r} is there already as {known.dtype}{list(known.shape)}, "
            f"cannot be declared again as {canonical(dtype)}{list(shape)}"
        )
    return block.create_var(
        name,
        shape=shape,
        dtype=dtype,
        type=type,
        stop_gradient=stop_gradient,
        lod_level=lod_level,
        is_data=True,
    )

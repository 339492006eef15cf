"""Variables that are fed, or read from a started reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.checks import extents
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.data_loader import PyReader
from hpcdist.graph import names as unique_name
from hpcdist.graph.dtypes import DTypeLike, VarType, canonical
from hpcdist.graph.program import default_main_program
from hpcdist.graph.variable import Variable

__all__ = ["create_py_reader_by_data", "data", "double_buffer", "py_reader", "read_file"]


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: DTypeLike = "float32",
    lod_level: int = 0,
    type: str = VarType.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """Declare a variable to be fed; a batch dimension -1 is put first unless one is there.

    Examples:
        >>> fluid.layers.data("image", [3, 32, 32]).shape
        (-1, 3, 32, 32)
    """
    dims = _dims("layers.data", name, shape)
    if append_batch_size and -1 not in dims:
        dims = (-1, *dims)
    return _feed_variable(name, dims, dtype, lod_level, type, stop_gradient)


def data_v2(
    name: str, shape: Sequence[int | None], dtype: DTypeLike = "float32", lod_level: int = 0
) -> Variable:
    """Declare a variable to be fed, of this very shape (`fluid.data`); None or -1: any size."""
    dims = _dims("fluid.data", name, shape)
    var = _feed_variable(name, dims, dtype, lod_level, VarType.LOD_TENSOR, True)
    var.checks_feed = True
    return var


def _dims(layer: str, name: str, shape: Sequence[int | None]) -> tuple[int, ...]:
    if not isinstance(name, str):
        raise GraphTypeError(f"{layer}: the name must be a string, got {name!r}")
    if not isinstance(shape, (list, tuple)):
        raise GraphTypeError(
            f"{layer} {name!r}: the shape must be a list or a tuple, got {shape!r}"
        )
    return tuple(max(d, -1) for d in extents(-1 if d is None else d for d in shape))


def _feed_variable(
    name: str,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    lod_level: int,
    type: str,
    stop_gradient: bool,
) -> Variable:
    block = default_main_program().global_block()
    existing = block.vars.get(name)
    if existing is not None and (existing.shape, existing.dtype) != (shape, canonical(dtype)):
        raise GraphError(
            f"data {name!r} already exists as {existing.dtype}{list(existing.shape)}, "
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


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> PyReader:
    """Make data variables of these shapes ([-1, ...]) and a reader that they are read from.

    `read_file` returns the variables. Give the reader a generator (``decorate_...``), ``start`` it
    for each pass, and run the Program without a feed until EOFException; then ``reset`` it.
    """
    levels = [0] * len(shapes) if lod_levels is None else lod_levels
    if not len(shapes) == len(dtypes) == len(levels):
        raise GraphError(
            f"layers.py_reader: expected equally many shapes, dtypes and lod_levels, got "
            f"{len(shapes)}, {len(dtypes)} and {len(levels)}"
        )
    key = unique_name.generate("read_file")
    variables = [
        _feed_variable(f"{key}.tmp_{k}", tuple(shape), dtype, level, VarType.LOD_TENSOR, True)
        for k, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels))
    ]
    return create_py_reader_by_data(capacity, variables, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int,
    feed_list: Sequence[Variable],
    name: str | None = None,
    use_double_buffer: bool = True,
) -> PyReader:
    """Make a reader, as `py_reader` does, for data variables that are there."""
    return PyReader(feed_list, capacity, use_double_buffer, iterable=False, name=name)


def double_buffer(reader: PyReader, place: Any = None, name: str | None = None) -> PyReader:
    """Return the reader itself: it reads ahead anyway."""
    return _py_reader("double_buffer", reader)


def read_file(reader: PyReader) -> Variable | list[Variable]:
    """Return the data variables of a reader; the variable itself if there is only one.

    Shapes and types are those that the reader was made with.
    """
    variables = _py_reader("read_file", reader).variables
    return variables if len(variables) > 1 else variables[0]


def _py_reader(layer: str, reader: Any) -> PyReader:
    if not isinstance(reader, PyReader):
        raise GraphTypeError(
            f"layers.{layer}: reader must be one of layers.py_reader or "
            f"create_py_reader_by_data, got {reader!r}"
        )
    return reader

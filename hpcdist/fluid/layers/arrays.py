"""Tensor arrays, sequences by step, and rows selected by a mask: building blocks of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.values import ARRAY, RANK_TABLE
from hpcdist.graph.variable import Variable

__all__ = [
    "array_length",
    "array_read",
    "array_to_lod_tensor",
    "array_write",
    "create_array",
    "is_empty",
    "lod_rank_table",
    "lod_tensor_to_array",
    "max_sequence_len",
    "merge_lod_tensor",
    "reorder_lod_tensor_by_rank",
    "select_input",
    "shrink_memory",
    "split_lod_tensor",
    "tensor_array_to_tensor",
]


def create_array(dtype: DTypeLike) -> Variable:
    """Create an array of values, empty; `array_write` fills it.

    Examples:
        >>> array = fluid.layers.create_array("float32")
        >>> fluid.Executor().run(fetch_list=[fluid.layers.array_length(array)])
        [array([0])]
    """
    helper = LayerHelper("array")
    block = helper.main_program.current_block()
    return block.create_var(f"{helper.name}.out", dtype=dtype, type=ARRAY)


def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Write ``x`` at place ``i`` (int64, shape (1,)) of an array, a new one by default.

    Examples:
        >>> i = fluid.layers.fill_constant([1], "int64", 2)
        >>> array = fluid.layers.array_write(fluid.layers.assign(np.array([1.0], "float32")), i)
        >>> fluid.Executor().run(fetch_list=[fluid.layers.array_length(array)])
        [array([3])]
    """
    helper = LayerHelper("array_write")
    if array is None:
        block = helper.main_program.current_block()
        array = block.create_var(f"{helper.name}.out", dtype=x.dtype, type=ARRAY)
    _expect_array(array, "array_write")
    helper.append_op("write_to_array", {"X": x, "I": i}, {"Out": array})
    return array


def array_read(array: Variable, i: Variable) -> Variable:
    """Return the element at place ``i`` of an array.

    Examples:
        >>> i = fluid.layers.fill_constant([1], "int64", 0)
        >>> array = fluid.layers.array_write(fluid.layers.assign(np.array([1.0], "float32")), i)
        >>> fluid.Executor().run(fetch_list=[fluid.layers.array_read(array, i)])
        [array([1.], dtype=float32)]
    """
    _expect_array(array, "array_read")
    helper = LayerHelper("array_read")
    return helper.apply("read_from_array", {"X": array, "I": i}, dtype=array.dtype)


def array_length(array: Variable) -> Variable:
    """Return the number of places of an array, int64, shape (1,).

    Examples:
        >>> i = fluid.layers.fill_constant([1], "int64", 0)
        >>> array = fluid.layers.array_write(fluid.layers.assign(np.array([1.0], "float32")), i)
        >>> fluid.Executor().run(fetch_list=[fluid.layers.array_length(array)])
        [array([1])]
    """
    _expect_array(array, "array_length")
    helper = LayerHelper("array_length")
    facts: dict[str, Any] = {"dtype": "int64", "stop_gradient": True}
    return helper.apply("lod_array_length", {"X": array}, **facts)


def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, ...]:
    """Join, or stack, the values of an array along ``axis``; also return their extents there.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0], [2.0]], "float32"))
        >>> i = fluid.layers.fill_constant([1], "int64", 0)
        >>> array = fluid.layers.array_write(x, i)
        >>> out = fluid.layers.tensor_array_to_tensor(array, axis=1)[0]
        >>> fluid.Executor().run(fetch_list=[out])
        [array([[1.],
               [2.]], dtype=float32)]
    """
    _expect_array(input, "tensor_array_to_tensor")
    attrs = {"axis": axis, "use_stack": use_stack}
    outputs, constant = {"Out": input.dtype, "OutIndex": "int32"}, ("OutIndex",)
    return append_all("tensor_array_to_tensor", {"X": input}, attrs, outputs, name, constant)


def _expect_array(array: Variable, layer: str) -> None:
    if not isinstance(array, Variable) or array.type != ARRAY:
        raise GraphTypeError(f"{layer}: expected an array such as create_array gives, got {array}")


# -- sequences step by step ------------------------------------------------------------------------
def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """Sort the sequences of ``x``, the longest first.

    x: [rows, ...] with ``lod_level`` above ``level``. Returns a rank table, an object for the other
    layers of this module.
    """
    helper = LayerHelper("lod_rank_table")
    block = helper.main_program.current_block()
    table = block.create_var(f"{helper.name}.out", type=RANK_TABLE, stop_gradient=True)
    helper.append_op("lod_rank_table", {"X": x}, {"Out": table}, {"level": level})
    return table


def max_sequence_len(rank_table: Variable) -> Variable:
    """Return the length of the longest sequence, int64, shape (1,)."""
    helper = LayerHelper("max_seqence_len")  # as Fluid spells it
    return helper.apply("max_sequence_len", {"RankTable": rank_table}, dtype="int64")


def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """Return an array with the rows of each step: those of sequences that are long enough."""
    helper = LayerHelper("lod_tensor_to_array")
    block = helper.main_program.current_block()
    array = block.create_var(f"{helper.name}.tmp_0", dtype=x.dtype, type=ARRAY)
    helper.append_op("lod_tensor_to_array", {"X": x, "RankTable": table}, {"Out": array})
    return array


def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """Put the rows of steps together to sequences again."""
    return append("array_to_lod_tensor", {"X": x, "RankTable": table})


def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """Keep the rows of ``x`` whose sequences have a step ``i``."""
    helper = LayerHelper("shrink_memory")
    slots = {"X": x, "I": i, "RankTable": table}
    return helper.apply("shrink_rnn_memory", slots, dtype=x.dtype)


def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """Return the rows, or sequences, of ``x`` in the order of a rank table."""
    if rank_table.type != RANK_TABLE:
        raise GraphTypeError(f"reorder_lod_tensor_by_rank: {rank_table.name!r} is not a rank table")
    return append("reorder_lod_tensor_by_rank", {"X": x, "RankTable": rank_table})


# -- rows by a mask --------------------------------------------------------------------------------
def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, ...]:
    """Return the rows where ``mask`` (bool [rows, 1]) holds, and the others."""
    inputs, outputs = {"X": input, "Mask": mask}, {"OutTrue": input.dtype, "OutFalse": input.dtype}
    return append_all("split_lod_tensor", inputs, {"level": level}, outputs, constant=())


def merge_lod_tensor(
    in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0
) -> Variable:
    """Put rows together that `split_lod_tensor` has divided."""
    slots = {"X": x, "Mask": mask, "InTrue": in_true, "InFalse": in_false}
    return append("merge_lod_tensor", slots, dtype=in_true.dtype, level=level)


def select_input(inputs: Sequence[Variable], mask: Variable) -> Variable:
    """Return the one of ``inputs`` whose number ``mask`` (int32, shape (1,)) is."""
    if not inputs:
        raise GraphError("select_input: no inputs")
    return append("select_input", {"X": list(inputs), "Mask": mask}, dtype=inputs[0].dtype)


def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Return whether ``x`` has no elements, bool, shape (1,).

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.is_empty(x)])
        [array([False])]
    """
    facts: dict[str, Any] = {"dtype": "bool", "stop_gradient": True}
    return LayerHelper("is_empty").apply("is_empty", {"X": x}, out=cond, **facts)

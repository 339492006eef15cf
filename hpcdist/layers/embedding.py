"""Embedding tables and one-hot vectors, in Fluid's two forms.

`fluid.layers.embedding` and `fluid.layers.one_hot` take ids whose last dimension is 1 and drop it;
`fluid.embedding` and `fluid.one_hot` (here with suffix ``_v2``) take ids of any shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.layers.helper import LayerHelper
from hpcdist.ops.lookup import NO_PADDING


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Look up rows of a table ``size`` = [rows, width]: ids [..., 1] give values [..., width].

    is_sparse: the table's gradient is a SelectedRows of the looked-up rows. padding_idx: this id
    (negative: counted from the end) gives zeros and gets no gradient.
    """
    facts = (size, is_sparse, is_distributed, padding_idx, param_attr, dtype)
    return _embedding("lookup_table", input, *facts)


def embedding_v2(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Look up rows of a table (`fluid.embedding`): ids [...] give values [..., width]."""
    facts = (size, is_sparse, is_distributed, padding_idx, param_attr, dtype)
    return _embedding("lookup_table_v2", input, *facts)


def _embedding(
    op_type: str,
    ids: Variable,
    size: Sequence[int],
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int | None,
    param_attr: Any,
    dtype: Any,
) -> Variable:
    helper = LayerHelper("embedding")
    if len(size) != 2:
        raise GraphError(f"embedding {helper.name!r}: size must be [rows, width], got {size!r}")
    rows = int(size[0])
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise GraphError(
            f"embedding {helper.name!r}: padding_idx {padding_idx} is outside a table "
            f"of {rows} rows"
        )
    table = helper.create_parameter(param_attr, size, dtype)
    if table is None:
        raise GraphError(f"embedding {helper.name!r} needs a table: param_attr must not be False")
    attrs = {
        "is_sparse": is_sparse,
        "is_distributed": is_distributed,
        "remote_prefetch": is_sparse and not is_distributed,
        "padding_idx": NO_PADDING if padding_idx is None else padding_idx % rows,
    }
    return helper.apply(op_type, {"Ids": ids, "W": table}, attrs, dtype=dtype)


def one_hot(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """Return [..., depth] with 1 at each id of ``input`` [..., 1]; an id out of range gives zeros
    where that is allowed, else an error at run time."""
    attrs = {"depth": depth, "allow_out_of_range": allow_out_of_range}
    return LayerHelper("one_hot").apply("one_hot", {"X": input}, attrs, stop_gradient=True)


def one_hot_v2(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """Return [..., depth] with 1 at each id of ``input`` [...] (`fluid.one_hot`)."""
    attrs = {"depth": depth, "allow_out_of_range": allow_out_of_range}
    return LayerHelper("one_hot_v2").apply("one_hot_v2", {"X": input}, attrs, stop_gradient=True)

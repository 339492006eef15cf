"""``paddle.static.nn.sparse_embedding``: a look-up in a table whose rows are on the servers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2.entry_attr import EntryAttr
from hpcdist.fluid.initializer import Xavier
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.graph.variable import Variable

_IN_MEMORY = ("MemorySparseTable", "CommonSparseTable")
_CLASSES = (*_IN_MEMORY, "SSDSparseTable")


def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: EntryAttr | None = None,
    table_class: str = "MemorySparseTable",
    param_attr: ParamLike = None,
    dtype: str = "float32",
    slot: int | None = None,
) -> Variable:
    """Look up rows of a table that grows: ids [..., 1] of any int64 give values [..., width].

    ``size`` = [rows, width]: ``rows`` is a hint for initializers, and no limit. A row begins with
    its initial value when a training step first looks it up, unless ``entry`` or the ``row_policy``
    of ``param_attr`` (`RowPolicy`) says otherwise; ``slot`` changes nothing. GraphError for both of
    these together, for ``is_test`` and for tables on disk.
    """
    if len(size) != 2:
        raise GraphError(f"sparse_embedding: size must be [rows, width], got {size!r}")
    _refuse(is_test, entry, table_class)
    rows, width = int(size[0]), int(size[1])
    attr = copy.copy(ParamAttr.of(param_attr))
    if attr is None:
        raise GraphError("sparse_embedding needs a table: param_attr must not be False")
    if attr.initializer is None and rows > 0:
        attr.initializer = Xavier(fan_in=rows, fan_out=width)  # Paddle's default counts the rows
    if entry is not None:
        if attr.row_policy is not None:
            raise GraphError(
                f"sparse_embedding: entry {entry._to_attr()} beside param_attr's "
                f"{attr.row_policy}: leave one of them out"
            )
        attr.row_policy = entry.policy
    return layers.embedding(input, [-1, width], True, True, _id(padding_idx, rows), attr, dtype)


def _id(padding_idx: int | None, rows: int) -> int | None:
    if padding_idx is None or padding_idx >= 0:
        return padding_idx
    if rows + padding_idx < 0:
        raise GraphError(
            f"sparse_embedding: padding_idx {padding_idx} counts from the end of {rows} rows: give "
            "the id itself, 0 or more"
        )
    return rows + padding_idx


def _refuse(is_test: Any, entry: Any, table_class: Any) -> None:
    if table_class not in _CLASSES:
        raise GraphError(
            f"sparse_embedding: table_class: expected one of {_CLASSES}, got {table_class!r}"
        )
    if table_class not in _IN_MEMORY:
        raise GraphError(
            f"sparse_embedding: table_class {table_class}: tables lie in the servers' memory: "
            f"{_IN_MEMORY[0]}; docs/planning.md says how many servers they need"
        )
    if is_test:
        raise GraphError(
            "sparse_embedding: is_test: a Program that does not train creates no rows; "
            "clone(for_test=True) makes one"
        )
    if entry is not None and not isinstance(entry, EntryAttr):
        raise GraphError(
            "sparse_embedding: entry: expected paddle.distributed.CountFilterEntry(...) or another "
            f"entry, got {entry!r}"
        )

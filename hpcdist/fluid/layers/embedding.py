"""Embedding tables and one-hot vectors, in Fluid's two forms.

`fluid.layers.embedding` and `fluid.layers.one_hot` take ids whose last dimension is 1 and drop it;
`fluid.embedding` and `fluid.one_hot` (here with suffix ``_v2``) take ids of any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import LayerHelper, named
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.variable import Variable
from hpcdist.ops.embedding.lookup import NO_PADDING

__all__ = ["embedding", "one_hot"]


def _layer(name: str, op_type: str, doc: str) -> Callable[..., Variable]:
    def layer(
        input: Variable,
        size: Sequence[int],
        is_sparse: bool = False,
        is_distributed: bool = False,
        padding_idx: int | None = None,
        param_attr: ParamLike = None,
        dtype: DTypeLike = "float32",
    ) -> Variable:
        helper = LayerHelper("embedding")
        if len(size) != 2:
            raise GraphError(f"embedding {helper.name!r}: size must be [rows, width], got {size!r}")
        rows, any_id = int(size[0]), is_sparse and is_distributed
        padding = _padding(helper.name, padding_idx, rows, any_id=any_id)
        table = helper.create_parameter(param_attr, size, dtype, is_distributed=any_id)
        if table is None:
            raise GraphError(
                f"embedding {helper.name!r} needs a table: param_attr must not be False"
            )
        return looked_up(helper, op_type, table, input, is_sparse, is_distributed, padding)

    return named(name, layer, doc)


embedding = _layer(
    "embedding",
    "lookup_table",
    """Look up rows of a table ``size`` = [rows, width]: ids [..., 1] give values [..., width].

    is_sparse: the table's gradient is a SelectedRows of the looked-up rows. padding_idx: this id
    (negative: counted from the end) gives zeros and gets no gradient. With is_distributed as well,
    rows live on the servers only, ids are any int64, and ``rows`` is how many of them there may be:
    -1 for any number.

    Examples:
        >>> ids = fluid.data("ids", [None, 1], "int64")
        >>> fluid.layers.embedding(ids, size=[1000, 16]).shape
        (-1, 16)
    """,
)
embedding_v2 = _layer(
    "embedding_v2",
    "lookup_table_v2",
    """Look up rows of a table: ids [...] give values [..., width]; else as `layers.embedding`.

    Examples:
        >>> ids = fluid.data("ids", [None, 7], "int64")
        >>> fluid.embedding(ids, size=[1000, 16]).shape
        (-1, 7, 16)
    """,
)


def looked_up(
    helper: LayerHelper,
    op_type: str,
    table: Variable,
    ids: Variable,
    is_sparse: bool,
    is_distributed: bool,
    padding: int = NO_PADDING,
) -> Variable:
    """Append a look-up of the rows ``ids`` of a table."""
    attrs = {
        "is_sparse": is_sparse,
        "is_distributed": is_distributed,
        "remote_prefetch": is_sparse and not is_distributed,
        "padding_idx": padding,
    }
    return helper.apply(op_type, {"Ids": ids, "W": table}, attrs, dtype=table.dtype)


def _padding(name: str, padding_idx: int | None, rows: int, *, any_id: bool) -> int:
    """Return the id that stands for nothing: any that is not negative where ids are any int64."""
    if padding_idx is None:
        return NO_PADDING
    if any_id and 0 <= padding_idx < 2**63:
        return padding_idx
    if rows < 0:
        raise GraphError(
            f"embedding {name!r}: padding_idx {padding_idx} would count from the end of a table "
            "that has none; give the id itself, 0 or more"
        )
    if not -rows <= padding_idx < rows:
        raise GraphError(
            f"embedding {name!r}: padding_idx {padding_idx} is outside a table of {rows} rows"
        )
    return padding_idx % rows


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Return [..., depth] with 1 at each id of ``input`` [..., 1]; an id out of range gives zeros
    where that is allowed, else an error at run time.

    Examples:
        >>> ids = fluid.layers.assign(np.array([[1], [0]], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.one_hot(ids, depth=3)])
        [array([[0., 1., 0.],
               [1., 0., 0.]], dtype=float32)]
    """
    attrs = {"depth": depth, "allow_out_of_range": allow_out_of_range}
    return LayerHelper("one_hot").apply("one_hot", {"X": input}, attrs, stop_gradient=True)


def one_hot_v2(
    input: Variable, depth: int | Variable, allow_out_of_range: bool = False
) -> Variable:
    """Return [..., depth] with 1 at each id of ``input`` [...] (`fluid.one_hot`)."""
    attrs = {"depth": depth, "allow_out_of_range": allow_out_of_range}
    return LayerHelper("one_hot_v2").apply("one_hot_v2", {"X": input}, attrs, stop_gradient=True)

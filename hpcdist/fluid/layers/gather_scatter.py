"""Reading and writing at indices given as data, and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import append, append_all
from hpcdist.fluid.layers.tensor import zeros
from hpcdist.graph.variable import Variable

__all__ = [
    "argsort",
    "gather_nd",
    "hash",
    "index_sample",
    "index_select",
    "multiplex",
    "scatter",
    "scatter_nd",
    "scatter_nd_add",
    "shard_index",
]


def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Read places: ``index[..., i]`` says where along dimension i.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 2.0], [3.0, 4.0]], "float32"))
        >>> at = fluid.layers.assign(np.array([[1, 0]], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.gather_nd(x, at)])
        [array([3.], dtype=float32)]
    """
    return append("gather_nd", {"X": input, "Index": index}, name)


def scatter(
    input: Variable,
    index: Variable,
    updates: Variable,
    name: str | None = None,
    overwrite: bool = True,
) -> Variable:
    """Return ``input`` with rows of ``updates`` at ``index``, overwritten or added up from 0.

    Examples:
        >>> x = fluid.layers.assign(np.zeros((3, 1), "float32"))
        >>> rows = fluid.layers.assign(np.array([2], "int64"))
        >>> new = fluid.layers.assign(np.array([[5.0]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.scatter(x, rows, new)])
        [array([[0.],
               [0.],
               [5.]], dtype=float32)]
    """
    return append(
        "scatter", {"X": input, "Ids": index, "Updates": updates}, name, overwrite=overwrite
    )


def scatter_nd_add(
    ref: Variable, index: Variable, updates: Variable, name: str | None = None
) -> Variable:
    """Add ``updates`` to ``ref`` at places, several times where a place is named several times.

    index: int32 or int64 [..., k], k at most the rank of ref; updates: [..., *ref.shape[k:]].
    Returns a value of ref's shape.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, 1.0]))
        >>> index = fluid.layers.assign(np.array([[1]]))
        >>> updates = fluid.layers.assign(np.array([5.0]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.scatter_nd_add(x, index, updates)])
        [array([1., 6.], dtype=float32)]
    """
    return append("scatter_nd_add", {"X": ref, "Index": index, "Updates": updates}, name)


def scatter_nd(
    index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None
) -> Variable:
    """Add ``updates`` to zeros of a shape, at places.

    Examples:
        >>> index = fluid.layers.assign(np.array([[1], [1]]))
        >>> updates = fluid.layers.assign(np.array([2.0, 3.0]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.scatter_nd(index, updates, shape=[3])])
        [array([0., 5., 0.], dtype=float32)]
    """
    return scatter_nd_add(zeros(shape, updates.dtype), index, updates, name)


def index_select(input: Variable, index: Variable, dim: int = 0) -> Variable:
    """Return the parts of ``input`` that ``index`` names along dimension ``dim``.

    index: int32 or int64 [n]. Returns the shape of input with n in dimension ``dim``.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 2.0, 3.0]]))
        >>> index = fluid.layers.assign(np.array([2, 0]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.index_select(x, index, dim=1)])
        [array([[3., 1.]], dtype=float32)]
    """
    return append("index_select", {"X": input, "Index": index}, dim=dim)


def index_sample(x: Variable, index: Variable) -> Variable:
    """Return for every row of x the columns that the same row of ``index`` names.

    x: [rows, columns]; index: int32 or int64 [rows, n]. Returns [rows, n].

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> index = fluid.layers.assign(np.array([[1], [0]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.index_sample(x, index)])
        [array([[2.],
               [3.]], dtype=float32)]
    """
    return append("index_sample", {"X": x, "Index": index})


def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Take row i from the value that row i of ``index`` names.

    inputs: two values or more of one shape [rows, ...]; index: int32 [rows, 1]. Returns [rows,
    ...].

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0], [2.0]]))
        >>> y = fluid.layers.assign(np.array([[3.0], [4.0]]))
        >>> index = fluid.layers.assign(np.array([[1], [0]], "int32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.multiplex([x, y], index)])
        [array([[3.],
               [2.]], dtype=float32)]
    """
    if len(inputs) < 2:
        raise GraphError(f"layers.multiplex: expected 2 values or more, got {len(inputs)}")
    return append("multiplex", {"X": list(inputs), "Ids": index}, dtype=inputs[0].dtype)


def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, ...]:
    """Sort along ``axis``; return the values and where they were. Equal ones keep their order.

    Returns two values of the shape of input, the second int64.

    Examples:
        >>> x = fluid.layers.assign(np.array([0.5, 0.1], "float32"))
        >>> values, places = fluid.layers.argsort(x)
        >>> fluid.Executor().run(fetch_list=[values, places])
        [array([0.1, 0.5], dtype=float32), array([1, 0])]
    """
    attrs: dict[str, Any] = {"axis": axis, "descending": descending}
    outputs = {"Out": input.dtype, "Indices": "int64"}
    return append_all("argsort", {"X": input}, attrs, outputs, name, ("Indices",))


def shard_index(
    input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Variable:
    """Number ids within their shard of ``index_num / nshards``; others become ``ignore_value``.

    Examples:
        >>> ids = fluid.layers.assign(np.array([[1], [11]]))
        >>> out = fluid.layers.shard_index(ids, index_num=20, nshards=2, shard_id=0)
        >>> fluid.Executor().run(fetch_list=[out])
        [array([[ 1],
               [-1]])]
    """
    if not 0 <= shard_id < nshards:
        raise GraphError(f"layers.shard_index: shard_id {shard_id} is outside 0..{nshards - 1}")
    return append(
        "shard_index",
        {"X": input},
        stop_gradient=True,
        index_num=index_num,
        nshards=nshards,
        shard_id=shard_id,
        ignore_value=ignore_value,
    )


def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """Hash each row of ids to ``num_hash`` numbers below ``hash_size`` (XXH64).

    Examples:
        >>> ids = fluid.data("ids", [None, 1], "int64")
        >>> fluid.layers.hash(ids, hash_size=1000).shape
        (-1, 1, 1)
    """
    return append(
        "hash", {"X": input}, name, stop_gradient=True, num_hash=num_hash, mod_by=hash_size
    )

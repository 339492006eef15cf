"""``paddle.geometric``: messages along the edges of a graph, and reductions by segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.tensor import unsqueeze
from hpcdist.fluid.layers.helper import append, append_all
from hpcdist.graph.variable import Variable

# As in Paddle, subtraction and division are done by what is added or multiplied instead.
_COMBINATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x * (1.0 / (y + 1e-12)),
}


def send_u_recv(
    x: Variable,
    src_index: Variable,
    dst_index: Variable,
    reduce_op: str = "sum",
    out_size: Any = None,
    name: str | None = None,
) -> Variable:
    """Return for each node the sum of rows of ``x`` that reach it: edge i from src[i] to dst[i].

    ``reduce_op``: sum, mean, min or max of the messages; zeros where there is none. ``out_size``,
    an integer or a Variable: how many nodes (default, and if it is 0: the rows of ``x``).
    """
    return _reduced(x, src_index, dst_index, reduce_op, out_size, name, "send_u_recv")


def send_ue_recv(
    x: Variable,
    y: Variable,
    src_index: Variable,
    dst_index: Variable,
    message_op: str = "add",
    reduce_op: str = "sum",
    out_size: Any = None,
    name: str | None = None,
) -> Variable:
    """Combine rows of ``x`` with those of ``y``, one for each edge, and reduce as `send_u_recv`.

    ``message_op``: add, sub, mul or div.
    """
    nodes, edges = _aligned(x, y)
    messages = _combined("send_ue_recv", message_op, layers.gather(nodes, src_index), edges)
    given = isinstance(out_size, Variable) or out_size
    size = out_size if given else _nodes(x)
    return _reduced(messages, None, dst_index, reduce_op, size, name, "send_ue_recv")


def send_uv(
    x: Variable,
    y: Variable,
    src_index: Variable,
    dst_index: Variable,
    message_op: str = "add",
    name: str | None = None,
) -> Variable:
    """Return for each edge the row of ``x`` at its source combined with that of ``y`` at its end.

    ``message_op``: add, sub, mul or div.
    """
    sources, ends = _aligned(x, y)
    read = layers.gather(sources, src_index), layers.gather(ends, dst_index)
    return _combined("send_uv", message_op, *read)


def _segments(reduction: str) -> Callable[..., Variable]:
    def reduce(data: Variable, segment_ids: Variable, name: str | None = None) -> Variable:
        last = append("reduce_max", {"X": segment_ids}, reduce_all=True)
        size = layers.increment(layers.reshape(last, [1]), 1, in_place=False)
        return _reduced(data, None, segment_ids, reduction, size, name, reduce.__name__)

    reduce.__name__ = reduce.__qualname__ = f"segment_{reduction}"
    reduce.__doc__ = f"""Return the {reduction} of the rows of ``data`` [n, ...] in each segment.

    ``segment_ids`` [n]: of which segment a row is; a segment without rows gets zeros.
    """
    return reduce


segment_sum, segment_mean = _segments("sum"), _segments("mean")
segment_min, segment_max = _segments("min"), _segments("max")


def _reduced(
    messages: Variable,
    src: Variable | None,
    dst: Variable,
    reduce_op: str,
    out_size: Any,
    name: str | None,
    where: str,
) -> Variable:
    if reduce_op not in ("sum", "mean", "min", "max"):
        raise GraphError(
            f"paddle.geometric.{where}: reduce_op: expected 'sum', 'mean', 'min' or 'max', "
            f"got {reduce_op!r}"
        )
    inputs = {"X": messages, "Dst_index": dst}
    if src is not None:
        inputs["Src_index"] = src
    attrs: dict[str, Any] = {"reduce_op": reduce_op.upper()}
    if isinstance(out_size, Variable):
        inputs["Out_size"] = out_size
    elif out_size is not None:
        attrs["out_size"] = declare.KINDS["int"](f"paddle.geometric.{where}: out_size", out_size)
    outputs = {"Out": messages.dtype, "Dst_count": "int32"}
    return append_all("graph_send_recv", inputs, attrs, outputs, name, ("Dst_count",))[0]


def _combined(where: str, message_op: str, x: Variable, y: Variable) -> Variable:
    if message_op not in _COMBINATIONS:
        raise GraphError(
            f"paddle.geometric.{where}: message_op: expected 'add', 'sub', 'mul' or 'div', "
            f"got {message_op!r}"
        )
    return _COMBINATIONS[message_op](x, y)


def _nodes(x: Variable) -> Any:
    """Return how many rows ``x`` has: an integer, or a Variable that the step computes."""
    return x.shape[0] if x.shape[0] > 0 else layers.slice(layers.shape(x), [0], [0], [1])


def _aligned(x: Variable, y: Variable) -> list[Variable]:
    """Return both with the same number of dimensions, at least two: new ones follow the first."""
    rank = max(2, len(x.shape), len(y.shape))
    return [
        unsqueeze(v, list(range(1, 1 + rank - len(v.shape)))) if len(v.shape) < rank else v
        for v in (x, y)
    ]


__all__ = declare.offered("paddle.geometric", globals())

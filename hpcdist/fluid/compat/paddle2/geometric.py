"""``paddle.geometric``: messages along the edges of a graph."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.layers.helper import append
from hpcdist.graph.variable import Variable

_function = declare.composed("paddle.geometric")
_MESSAGES = {
    "add": layers.elementwise_add,
    "sub": layers.elementwise_sub,
    "mul": layers.elementwise_mul,
    "div": layers.elementwise_div,
}


@_function
def send_u_recv(
    x: Variable,
    src_index: Variable,
    dst_index: Variable,
    reduce_op: str = "sum",
    out_size: int | None = None,
    name: str | None = None,
) -> Variable:
    """Return, for each node, the sum (mean, max, min) of the rows of ``x`` that edges bring it.

    Edge e leads from node src_index[e] to dst_index[e]. A node without edges has zeros. There are
    ``out_size`` nodes, by default as many as rows.
    """
    attrs: dict[str, Any] = {
        "reduce_op": _reduction("send_u_recv", reduce_op),
        "out_size": int(out_size or 0),
    }
    inputs = {"X": x, "Src_index": src_index, "Dst_index": dst_index}
    return append("graph_send_recv", inputs, name, **attrs)


@_function
def send_ue_recv(
    x: Variable,
    y: Variable,
    src_index: Variable,
    dst_index: Variable,
    message_op: str = "add",
    reduce_op: str = "sum",
    out_size: int | None = None,
    name: str | None = None,
) -> Variable:
    """Return the same of messages: of x at the edge's beginning, and of ``y`` of the edge."""
    _check_message("send_ue_recv", message_op)
    y = layers.unsqueeze(y, [1]) if len(y.shape) == 1 < len(x.shape) else y
    y = {"sub": lambda: y * -1.0, "div": lambda: 1.0 / y}.get(message_op, lambda: y)()
    inputs = {"X": x, "Y": y, "Src_index": src_index, "Dst_index": dst_index}
    attrs: dict[str, Any] = {
        "message_op": "ADD" if message_op in ("add", "sub") else "MUL",
        "reduce_op": _reduction("send_ue_recv", reduce_op),
        "out_size": int(out_size or 0),
    }
    return append("graph_send_ue_recv", inputs, name, **attrs)


@_function
def send_uv(
    x: Variable,
    y: Variable,
    src_index: Variable,
    dst_index: Variable,
    message_op: str = "add",
    name: str | None = None,
) -> Variable:
    """Return a message for each edge: of ``x`` at its beginning, and of ``y`` at its end."""
    _check_message("send_uv", message_op)
    begin, end = layers.gather(x, src_index), layers.gather(y, dst_index)
    return _MESSAGES[message_op](begin, end)


def _check_message(where: str, how: str) -> None:
    if how not in _MESSAGES:
        raise GraphError(
            f"paddle.geometric.{where}: message_op: one of {sorted(_MESSAGES)}, got {how!r}"
        )


def _reduction(where: str, how: str) -> str:
    if how not in ("sum", "mean", "max", "min"):
        raise GraphError(
            f"paddle.geometric.{where}: reduce_op: expected 'sum', 'mean', 'max' or 'min', got "
            f"{how!r}"
        )
    return how.upper()


__all__ = ["send_u_recv", "send_ue_recv", "send_uv"]

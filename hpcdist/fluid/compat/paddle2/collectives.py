"""What trainers exchange in a step, in Paddle 2's words: ``paddle.distributed.all_reduce``, ....

In static programs these append an operator, as in 2.6.2; Variables are changed in place. All
trainers call them in the same order. For numbers and arrays between steps there is ``fleet.util``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.declare import Variables, operand, operands
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.program import default_main_program
from hpcdist.graph.variable import Variable


class ReduceOp:
    """How values of trainers are combined, element by element."""

    SUM = 0
    MAX = 1
    MIN = 2
    PROD = 3
    AVG = 4


_WORDS = {ReduceOp.SUM: "sum", ReduceOp.MAX: "max", ReduceOp.MIN: "min", ReduceOp.PROD: "prod"}
_WHERE = "paddle.distributed"


def all_reduce(
    tensor: Variable, op: Any = ReduceOp.SUM, group: Any = None, sync_op: bool = True
) -> None:
    """Replace ``tensor`` by its sum over trainers, or by what else ``op`` says."""
    _no_group(group)
    _exchange("all_reduce", tensor, tensor, op=_word(op))


def reduce(
    tensor: Variable, dst: int, op: Any = ReduceOp.SUM, group: Any = None, sync_op: bool = True
) -> None:
    """Replace ``tensor`` of trainer ``dst`` by its sum over trainers, or by what ``op`` says."""
    _no_group(group)
    _exchange("reduce", tensor, tensor, root=_rank("dst", dst), op=_word(op))


def broadcast(tensor: Variable, src: int, group: Any = None, sync_op: bool = True) -> None:
    """Replace ``tensor`` by that of trainer ``src``."""
    _no_group(group)
    _exchange("broadcast", tensor, tensor, root=_rank("src", src))


def all_gather(
    tensor_list: list, tensor: Variable, group: Any = None, sync_op: bool = True
) -> None:
    """Replace what is in ``tensor_list`` by the tensors of all trainers, in their order."""
    _no_group(group)
    _list("tensor_list", tensor_list)
    gathered = _exchange("all_gather", tensor)
    tensor_list[:] = _parts(gathered, like=tensor)


def scatter(
    tensor: Variable,
    tensor_list: Any = None,
    src: int = 0,
    group: Any = None,
    sync_op: bool = True,
) -> None:
    """Replace ``tensor`` by what trainer ``src`` has for this one in its ``tensor_list``.

    Other trainers may leave the list out; where a Program trains give it on all of them, since they
    must build the same one.
    """
    _no_group(group)
    root = _rank("src", src)
    if tensor_list is None and settings.TRAINER_ID.read() != root:
        tensor_list = [tensor] * _trainers()
    _exchange("scatter", _joined("tensor_list", tensor_list), tensor, root=root)


def reduce_scatter(
    tensor: Variable,
    tensor_list: Any,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    sync_op: bool = True,
) -> None:
    """Replace ``tensor`` by the sum over trainers of what they have for this one in their lists."""
    _no_group(group)
    _exchange("reduce_scatter", _joined("tensor_list", tensor_list), tensor, op=_word(op))


def alltoall(
    in_tensor_list: Any, out_tensor_list: list, group: Any = None, sync_op: bool = True
) -> None:
    """Give each trainer its own of ``in_tensor_list``; put what comes into ``out_tensor_list``."""
    _no_group(group)
    if _list("out_tensor_list", out_tensor_list):
        raise GraphError(f"out_tensor_list: expected an empty list, got {out_tensor_list!r:.80}")
    sent = _joined("in_tensor_list", in_tensor_list)
    out_tensor_list.extend(_parts(_exchange("alltoall", sent), like=in_tensor_list[0]))


def barrier(group: Any = None) -> None:
    """Wait here in every step until all trainers have come."""
    _no_group(group)
    default_main_program().current_block().append_op("barrier", {}, {})


def wait(tensor: Variable, group: Any = None, use_calc_stream: bool = True) -> None:
    """Append nothing: the next operator finds what was exchanged."""
    _no_group(group)


__all__ = declare.offered(_WHERE, globals())


# -- arguments ---------------------------------------------------------------------------------
def _exchange(kind: str, x: Variable, out: Variable | None = None, **attrs: Any) -> Variable:
    trainers = _trainers()
    helper = LayerHelper(kind)
    made = helper.new_var(x.dtype) if out is None else out
    shape, dtype = made.shape, made.dtype
    attrs |= {"kind": kind, "trainers": trainers}
    helper.append_op("exchange", {"X": x}, {"Out": made}, attrs)
    if out is not None and (made.shape, made.dtype) != (shape, dtype):
        raise GraphError(
            f"tensor: expected {made.dtype}{list(made.shape)}, which comes of {x.name!r}, got "
            f"{dtype}{list(shape)}"
        )
    return made


def _joined(label: str, given: Any) -> Variable:
    """Return a list with one tensor for each trainer as one Variable."""
    many: Variables = operands(label, given)
    if isinstance(given, Variable):
        return given
    if len(many) != _trainers():
        raise GraphError(
            f"{label}: expected {_trainers()} tensors, one for each trainer, got {len(many)}"
        )
    one: Callable[..., Variable] = layers.concat if many[0].shape else layers.stack
    return one(many, 0)


def _parts(joined: Variable, like: Variable) -> list[Variable]:
    trainers = _trainers()
    if not operand("tensor", like).shape:
        return layers.unstack(joined, 0, trainers)
    return [joined] if trainers == 1 else layers.split(joined, trainers, 0)


def _trainers() -> int:
    return settings.TRAINERS_NUM.read()


def _list(label: str, value: Any) -> list:
    if not isinstance(value, list):
        raise GraphTypeError(f"{label}: expected a list, which gets the tensors, got {value!r:.80}")
    return value


def _word(op: Any) -> str:
    if type(op) is int and op in _WORDS:
        return _WORDS[op]
    raise GraphError(f"op: expected ReduceOp.SUM, MAX, MIN or PROD, got {op!r}")


def _rank(label: str, rank: int) -> int:
    if 0 <= rank < _trainers():
        return rank
    raise GraphError(f"{label}: expected a trainer below {_trainers()}, got {rank}")


def _no_group(group: Any) -> None:
    if group is not None:
        raise GraphError(
            f"group: expected None, got {group!r:.80}: in static graphs all trainers take part, in "
            "Paddle 2.6.2, too"
        )

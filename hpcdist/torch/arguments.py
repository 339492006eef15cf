"""Arguments of collectives: torch passes tensors and options in several forms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from hpcdist.base.errors import CommError
from hpcdist.torch.memory import described

OneOrList: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def options(opts: Any, /, *positional: Any, **named: Any) -> Any:
    """Return a collective's options: ``opts``, with what its call has given, or the call's own.

    torch lets callers give a root, a ReduceOp, a time-out in place of options, by order or name.
    """
    for value in (*positional, *named.values()):
        if isinstance(value, timedelta):
            opts.timeout = value
        elif isinstance(value, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            opts.reduceOp = value
        elif isinstance(value, int):
            opts.rootRank = value
        elif value is not None:
            opts = value
    if number := getattr(opts, "rootTensor", 0):
        raise CommError(f"root tensor {number}: each rank gives one tensor, number 0")
    return opts


def one(tensors: OneOrList) -> list[torch.Tensor]:
    """Return the tensor that a collective is called with, alone or in a list, as a list."""
    single = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(single) != 1:
        raise CommError(f"expected one tensor, got {len(single)}; coalesced forms take several")
    return single


def pairs(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return each output with its input."""
    if len(outputs) != len(inputs) or not inputs:
        raise CommError(
            f"expected as many outputs as inputs, and at least one, got {len(outputs)} outputs "
            f"and {len(inputs)} inputs"
        )
    return list(zip(outputs, inputs))


def of_root(
    kind: str, lists: Sequence[Sequence[torch.Tensor]], rank: int, root: int
) -> list[torch.Tensor]:
    """Return the tensors of all ranks, which the root alone gives: one list; nothing elsewhere."""
    if len(lists) != (rank == root):
        expected = "one list of" if rank == root else "no"
        raise CommError(
            f"{kind} with root {root}: expected {expected} tensors for all ranks on rank {rank}, "
            f"got {len(lists)} lists"
        )
    return list(lists[0]) if lists else []


def one_for_each(
    kind: str, tensors: Sequence[torch.Tensor], local: torch.Tensor | None, rank: int, size: int
) -> None:
    """Refuse a list that has not a tensor for each of ``size`` ranks, this one's like ``local``."""
    if local is None or len(tensors) != size:
        raise CommError(f"{kind} over {size} ranks: expected {size} tensors, got {len(tensors)}")
    for k, tensor in enumerate(tensors):
        if tensor.dtype != local.dtype or (k == rank and tensor.numel() != local.numel()):
            raise CommError(
                f"{kind}: rank {rank} gives {described(local)}: every tensor of the list needs its "
                f"dtype, and number {rank} its number of elements, but number {k} is "
                f"{described(tensor)}"
            )


def check_parts(kind: str, part: torch.Tensor, whole: torch.Tensor, size: int) -> None:
    """Raise CommError unless ``whole`` has ``size`` times the elements of ``part``, of one type."""
    if whole.numel() != part.numel() * size or whole.dtype != part.dtype:
        raise CommError(
            f"{kind} over {size} ranks: {described(part)} needs {size} times as "
            f"many elements of its dtype on the other side, got {described(whole)}"
        )

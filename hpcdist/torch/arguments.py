"""Arguments of collectives: torch passes tensors and options in several forms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from hpcdist.errors import CommError
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
    return opts


def one(tensors: OneOrList) -> list[torch.Tensor]:
    """Return the tensor that a collective is called with, alone or in a list, as a list."""
    single = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(single) != 1:
        raise CommError(f"expected one tensor, got {len(single)}; coalesced forms take several")
    return single


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

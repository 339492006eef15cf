"""Trees of ranks, along which a vector goes from one of them to all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpcdist.comm.lanes import Steps
from hpcdist.torch.channel import Channel


def binomial(ranks: Sequence[int], rank: int) -> tuple[int | None, list[int]]:
    """Return from whom ``rank`` gets it, and to whom it sends it: the farthest first.

    The first of ``ranks`` has it. Each doubles the number of those that have it.
    """
    place, bit = ranks.index(rank), 1
    while bit < len(ranks) and not place & bit:
        bit <<= 1
    parent = ranks[place - bit] if place else None
    children = []
    while bit := bit >> 1:
        if place + bit < len(ranks):
            children.append(ranks[place + bit])
    return parent, children


def chain(ranks: Sequence[int], rank: int) -> tuple[int | None, list[int]]:
    """Return the same where each sends it to the next one only: for vectors in many pieces."""
    place = ranks.index(rank)
    return ranks[place - 1] if place else None, list(ranks[place + 1 : place + 2])


def relay(
    channel: Channel, vector: torch.Tensor, parent: int | None, children: Sequence[int]
) -> Steps:
    """Get ``vector`` from a parent, if there is one, and send it to the children."""
    if parent is not None:
        yield channel.exchange(receives=[(parent, vector)])
    if children:
        yield channel.exchange([(child, vector) for child in children])

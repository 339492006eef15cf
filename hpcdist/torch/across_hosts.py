"""Collectives of long vectors among several hosts that have as many consecutive ranks each.

The ranks of a host share its link: each carries a part. Sums go from host to host in rank order and
back, so they have the same bits as on one host, and every link carries each vector once in each
direction, however many ranks a host has.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from hpcdist.comm.hierarchy import Nodes
from hpcdist.comm.lanes import Steps
from hpcdist.comm.staggered import Staggered
from hpcdist.torch.channel import MOST_BYTES, RESULTS_TAG, Channel, Vectors
from hpcdist.torch.reductions import TensorReduction

LEAST_BYTES, PIECE_BYTES = 2**16, 2**20  # of a piece; each needs as much to be received in
PIECES = 16  # at least, of vectors long enough
UNDER_WAY = 8  # pieces for each host: so many are on the way there and back, and in queues


def equal_nodes(nodes: Nodes) -> Nodes | None:
    """Return hosts if there are several, with as many consecutive ranks each; else None."""
    count, width = len(nodes.members), len(nodes.members[0])
    expected = tuple(tuple(range(k * width, (k + 1) * width)) for k in range(count))
    return nodes if count > 1 and nodes.members == expected else None


def reduces(channel: Channel, vector: torch.Tensor) -> bool:
    """Return whether `all_reduce` is for such a vector: long enough for the way there and back.

    Two ranks send no less so than if each adds up a half, and one link is idle in the beginning.
    """
    if channel.nodes is None or channel.size == 2:
        return False
    return _count(vector.nbytes, channel) >= 4 * len(channel.nodes.members)


def gathers(channel: Channel, outputs: Vectors) -> bool:
    """Return whether `all_gather` is for such outputs."""
    if channel.nodes is None or len(channel.nodes.members[0]) == 1:
        return False
    nbytes: int = sum(out.nbytes for out in outputs)
    return nbytes >= LEAST_BYTES * channel.size


def all_gather(channel: Channel, vector: torch.Tensor, outputs: Vectors) -> Steps:
    """Bring every rank's ``vector`` to all, as ``outputs[r]``, once over each link."""
    count = _count(max(out.nbytes for out in outputs) * len(_members(channel)[0]), channel)
    targets = zip(*(out.tensor_split(count) for out in outputs), strict=True)
    parts = zip(vector.tensor_split(count), targets, strict=True)
    pieces = (_gather_piece(channel, part, into) for part, into in parts)
    yield Staggered(pieces, UNDER_WAY * len(_members(channel)))


def _gather_piece(channel: Channel, part: torch.Tensor, outputs: Vectors) -> Steps:
    """Gather a piece of all vectors: among the ranks of one place, then within the hosts."""
    node, place = _position(channel)
    within, members = _peers(channel), _members(channel)
    others = [ranks for k, ranks in enumerate(members) if k != node]
    across = [ranks[place] for ranks in others]
    direct = [*across, *within]
    arriving = channel.exchange(
        [(peer, part) for peer in direct], [(peer, outputs[peer]) for peer in direct]
    )
    outputs[channel.rank].copy_(part)
    yield arriving
    theirs = [(peer, ranks[members[node].index(peer)]) for peer in within for ranks in others]
    # Under another tag: one rank may pass this piece on before it sends a later one, another after.
    yield replace(channel, tag=RESULTS_TAG).exchange(
        [(peer, outputs[rank]) for peer in within for rank in across],
        [(peer, outputs[rank]) for peer, rank in theirs],
    )


def all_reduce(channel: Channel, vector: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Overwrite every rank's ``vector`` with the reduction of all, in rank order."""
    parts = vector.tensor_split(_count(vector.nbytes, channel))
    pieces = (_reduce_piece(channel, part, reduction) for part in parts)
    yield Staggered(pieces, UNDER_WAY * len(_members(channel)))


def _reduce_piece(channel: Channel, part: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Reduce a piece, of which each rank of a host does a share, after the hosts before."""
    node, place = _position(channel)
    members, within = _members(channel), _peers(channel)
    width, is_last = len(members[0]), node == len(members) - 1
    local = replace(channel, tag=RESULTS_TAG)
    shares = part.tensor_split(width)
    own = shares[place]
    prepared = reduction.prepare(part).tensor_split(width)
    given = [*zip(members[node], prepared, strict=True)]
    rows = [own.new_empty(own.numel()) if k != place else prepared[place] for k in range(width)]
    taken = [pair for pair in zip(members[node], rows, strict=True) if pair[0] != channel.rank]
    terms = rows
    if node:
        before = own.new_empty(own.numel())
        taken.append((members[node - 1][place], before))
        terms = [before, *rows]
    yield channel.exchange([pair for pair in given if pair[0] != channel.rank], taken)
    if is_last:
        reduction.fold(terms, own)
    else:
        so_far = own.new_empty(own.numel())
        replace(reduction, mean=False).fold(terms, so_far)
        following = members[node + 1][place]
        yield channel.exchange([(following, so_far)], [(following, own)])
    results = [(members[node].index(peer), peer) for peer in within]
    near = local.exchange(
        [(peer, own) for peer in within], [(peer, shares[k]) for k, peer in results]
    )
    if node:
        yield channel.exchange([(members[node - 1][place], own)])
    yield near


def _count(nbytes: int, channel: Channel) -> int:
    """Return of how many pieces a sum of so many bytes is; the ranks of a host share a piece."""
    most = min(MOST_BYTES * len(_members(channel)[0]), PIECE_BYTES)
    return max(1, min(nbytes // LEAST_BYTES, max(PIECES, -(-nbytes // most))))


def _members(channel: Channel) -> tuple[tuple[int, ...], ...]:
    if channel.nodes is None:
        raise ValueError("these collectives are for groups of several hosts")
    return channel.nodes.members


def _position(channel: Channel) -> tuple[int, int]:
    """Return the number of this rank's host, and the rank's place among those of the host."""
    return divmod(channel.rank, len(_members(channel)[0]))


def _peers(channel: Channel) -> list[int]:
    """Return the other ranks of this host."""
    return [r for r in _members(channel)[_position(channel)[0]] if r != channel.rank]

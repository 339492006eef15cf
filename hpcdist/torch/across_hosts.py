"""Collectives of long vectors among several hosts.

The ranks of a host share its link: each carries a part. Gathers bring every vector to each host
once. Sums go from host to host in rank order, and from the last one to those that want them, so
they have the same bits as on one host, and every link carries each vector once in each direction,
however many ranks a host has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import torch

from hpcdist.comm.lanes import Steps
from hpcdist.comm.reduction_phases import cuts
from hpcdist.comm.staggered import Staggered
from hpcdist.torch.channel import MOST_BYTES, RESULTS_TAG, Channel, Vectors
from hpcdist.torch.reductions import TensorReduction
from hpcdist.torch.trees import binomial, chain, relay

LEAST_BYTES, PIECE_BYTES = 2**16, 2**20  # of a piece; each needs as much to be received in
PIECES = 16  # at least, of vectors long enough
UNDER_WAY = 8  # pieces for each host: so many are on the way there and back, and in queues

Shares: TypeAlias = dict[int, tuple[int, int]]  # of each rank of a host: begin and end in a piece


def reduces(channel: Channel, vector: torch.Tensor) -> bool:
    """Return whether `all_reduce` is for such a vector.

    Two ranks send no less so than if each adds up a half, and one link is idle in the beginning.
    """
    return channel.size > 2 and _goes_along(channel, vector.nbytes)


def scatters(channel: Channel, nbytes: int) -> bool:
    """Return whether `reduce_scatter` is for vectors that have so many bytes together.

    If each rank sends its terms to whom they are for, a link carries more where hosts have many.
    """
    hosts = channel.nodes.members if channel.nodes is not None else ()
    sent = max((len(ranks) * (channel.size - len(ranks)) for ranks in hosts), default=0)
    return sent > channel.size and _goes_along(channel, nbytes)


def reduces_for(channel: Channel, vector: torch.Tensor, root: int) -> bool:
    """Return whether `reduce` is for such a vector: else all others' come over the root's link.

    From host to host, one comes from the host before, and one from the last.
    """
    if channel.nodes is None:
        return False
    hosts, host = channel.nodes.members, channel.nodes.of(root)
    others = channel.size - len(hosts[host])
    return others > (host > 0) + (host < len(hosts) - 1) and _goes_along(channel, vector.nbytes)


def _goes_along(channel: Channel, nbytes: int) -> bool:
    """Return whether a sum can go from host to host, and is long enough for that way.

    Where ranks of one host are not consecutive, it would cross links more often in rank order.
    """
    if channel.nodes is None or not channel.nodes.are_consecutive:
        return False
    return _count(nbytes, channel) >= 4 * len(channel.nodes.members)


def gathers(channel: Channel, outputs: Vectors) -> bool:
    """Return whether `all_gather` is for such outputs."""
    if channel.nodes is None or not channel.nodes.have_two_levels:
        return False
    nbytes: int = sum(out.nbytes for out in outputs)
    return nbytes >= LEAST_BYTES * channel.size


def all_gather(channel: Channel, vector: torch.Tensor, outputs: Vectors) -> Steps:
    """Bring every rank's ``vector`` to all, as ``outputs[r]``, once over each link."""
    hosts, _ = _hosts(channel)
    count = _count(max(out.nbytes for out in outputs) * min(map(len, hosts)), channel)
    targets = zip(*(out.tensor_split(count) for out in outputs), strict=True)
    parts = zip(vector.tensor_split(count), targets, strict=True)
    pieces = (_gather_piece(channel, part, into) for part, into in parts)
    yield Staggered(pieces, UNDER_WAY * len(hosts))


def _gather_piece(channel: Channel, part: torch.Tensor, outputs: Vectors) -> Steps:
    """Gather a piece of all vectors: each host has one rank take another's, and pass it on."""
    hosts, host = _hosts(channel)
    rank, within = channel.rank, _peers(channel)
    others = [ranks for k, ranks in enumerate(hosts) if k != host]
    takers = [_taker(rank, hosts[host], ranks) for ranks in others]
    taken: dict[int, list[int]] = {peer: [] for peer in hosts[host]}  # from other hosts
    for ranks in others:
        for other in ranks:
            taken[_taker(other, ranks, hosts[host])].append(other)
    arriving = channel.exchange(
        [(peer, part) for peer in (*takers, *within)],
        [(peer, outputs[peer]) for peer in (*taken[rank], *within)],
    )
    outputs[rank].copy_(part)
    yield arriving
    # Under another tag: one rank may pass this piece on before it sends a later one, another after.
    yield replace(channel, tag=RESULTS_TAG).exchange(
        [(peer, outputs[other]) for peer in within for other in taken[rank]],
        [(peer, outputs[other]) for peer in within for other in taken[peer]],
    )


def _taker(rank: int, near: Sequence[int], far: Sequence[int]) -> int:
    """Return which rank of a ``far`` host takes from ``rank``, one of a ``near`` host's."""
    return far[near.index(rank) % len(far)]


def all_reduce(channel: Channel, vector: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Overwrite every rank's ``vector`` with the reduction of all, in rank order."""
    parts = vector.tensor_split(_count(vector.nbytes, channel))
    pieces = (_reduce_piece(channel, part, reduction) for part in parts)
    yield Staggered(pieces, UNDER_WAY * len(_hosts(channel)[0]))


def _reduce_piece(channel: Channel, part: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Reduce a piece, of which each rank of a host does a share, after the hosts before."""
    hosts, host = _hosts(channel)
    shares = [_shares(part, ranks) for ranks in hosts]
    near, within = shares[host], _peers(channel)
    begin, end = near[channel.rank]
    own, prepared = part[begin:end], reduction.prepare(part)
    room = {peer: own.new_empty(own.numel()) for peer in within}
    rows = [room.get(peer, prepared[begin:end]) for peer in hosts[host]]
    terms, arriving = rows, list(room.items())
    if host:
        before = own.new_empty(own.numel())
        terms = [before, *rows]
        arriving += _overlaps(before, begin, shares[host - 1])
    yield channel.exchange(_overlaps(prepared, 0, near, within), arriving)
    if host == len(hosts) - 1:
        reduction.fold(terms, own)
    else:
        so_far = own.new_empty(own.numel())
        replace(reduction, mean=False).fold(terms, so_far)
        after = shares[host + 1]
        yield channel.exchange(_overlaps(so_far, begin, after), _overlaps(own, begin, after))
    results = replace(channel, tag=RESULTS_TAG).exchange(
        [(peer, own) for peer in within], _overlaps(part, 0, near, within)
    )
    if host:
        yield channel.exchange(_overlaps(own, begin, shares[host - 1]))
    yield results


def reduce_scatter(
    channel: Channel, inputs: Vectors, out: torch.Tensor, reduction: TensorReduction
) -> Steps:
    """Write the reduction of all ranks' ``inputs[r]`` into rank r's ``out``, in rank order."""
    count = _count(sum(vector.nbytes for vector in inputs), channel)
    terms = zip(*(vector.tensor_split(count) for vector in inputs), strict=True)
    pieces = (
        _piece_for_owners(channel, parts, range(channel.size), {channel.rank: target}, reduction)
        for parts, target in zip(terms, out.tensor_split(count), strict=True)
    )
    yield Staggered(pieces, UNDER_WAY * len(_hosts(channel)[0]))


def reduce(channel: Channel, vector: torch.Tensor, reduction: TensorReduction, root: int) -> Steps:
    """Overwrite the root's ``vector`` with the reduction of all, in rank order."""
    owners = [root] * channel.size
    cut = (
        p.tensor_split(channel.size) for p in vector.tensor_split(_count(vector.nbytes, channel))
    )
    pieces = (
        _piece_for_owners(channel, parts, owners, dict(enumerate(parts)), reduction)
        for parts in cut
    )
    yield Staggered(pieces, UNDER_WAY * len(_hosts(channel)[0]))


def _piece_for_owners(
    channel: Channel,
    parts: Vectors,
    owners: Sequence[int],
    targets: Mapping[int, torch.Tensor],
    reduction: TensorReduction,
) -> Steps:
    """Reduce each of a piece's parts, on one rank of each host after another, for its owner.

    ``targets``: where this rank keeps the results of the parts that it owns.
    """
    hosts, host = _hosts(channel)
    rank, is_last = channel.rank, host == len(hosts) - 1
    adders = [[_adder(k, owner, ranks) for k, owner in enumerate(owners)] for ranks in hosts]
    added = [k for k, adder in enumerate(adders[host]) if adder == rank]
    given = [(adder, reduction.prepare(parts[k])) for k, adder in enumerate(adders[host])]
    rows = {
        k: [given[k][1] if peer == rank else torch.empty_like(parts[k]) for peer in hosts[host]]
        for k in added
    }
    arriving = [
        pair for k in added for pair in zip(hosts[host], rows[k], strict=True) if pair[0] != rank
    ]
    before = {k: torch.empty_like(parts[k]) for k in added if host}
    arriving += [(adders[host - 1][k], row) for k, row in before.items()]
    yield channel.exchange([pair for pair in given if pair[0] != rank], arriving)
    fold = reduction if is_last else replace(reduction, mean=False)
    leaving = []
    for k in added:
        stays = is_last and owners[k] == rank
        total = targets[k] if stays else torch.empty_like(parts[k])
        fold.fold([*([before[k]] if host else []), *rows[k]], total)
        if not stays:
            leaving.append((owners[k] if is_last else adders[host + 1][k], total))
    results = [
        (adders[-1][k], targets[k])
        for k, owner in enumerate(owners)
        if owner == rank != adders[-1][k]
    ]
    yield channel.exchange(leaving, results)


def _adder(part: int, owner: int, ranks: Sequence[int]) -> int:
    """Return which of a host's ranks adds up what its ranks give to a part of a piece."""
    return owner if owner in ranks else ranks[part % len(ranks)]


def broadcast(channel: Channel, vector: torch.Tensor, root: int) -> Steps:
    """Overwrite ``vector`` with the root's: from host to host, and by one rank within each."""
    hosts, host = _hosts(channel)
    count = _count(vector.nbytes, channel)
    leaders = [root if root in ranks else ranks[0] for ranks in hosts]
    first = leaders.index(root)
    order = [*leaders[first:], *leaders[:first]]
    leader = leaders[host]
    within = [leader, *(rank for rank in hosts[host] if rank != leader)]
    parent, children = binomial(within, channel.rank)
    if channel.rank == leader:
        among = chain if count >= 4 * len(hosts) else binomial
        parent, far = among(order, leader)
        children = [*far, *children]
    parts = vector.tensor_split(count)
    pieces = (relay(channel, part, parent, children) for part in parts)
    yield Staggered(pieces, UNDER_WAY * len(hosts))


def _shares(part: torch.Tensor, ranks: Sequence[int]) -> Shares:
    bounds = cuts(part.numel(), len(ranks), len(ranks))
    return dict(zip(ranks, pairwise(bounds), strict=True))


def _overlaps(
    vector: torch.Tensor, first: int, shares: Shares, ranks: Iterable[int] | None = None
) -> list[tuple[int, torch.Tensor]]:
    """Return the parts of ``vector``, elements ``first`` ... of a piece, in ranks' shares."""
    ours = range(first, first + vector.numel())
    found = []
    for rank in shares if ranks is None else ranks:
        begin, end = (min(max(at, ours.start), ours.stop) - first for at in shares[rank])
        if begin < end:
            found.append((rank, vector[begin:end]))
    return found


def _count(nbytes: int, channel: Channel) -> int:
    """Return of how many pieces a sum of so many bytes is; the ranks of a host share a piece."""
    most = min(MOST_BYTES * min(map(len, _hosts(channel)[0])), PIECE_BYTES)
    return max(1, min(nbytes // LEAST_BYTES, max(PIECES, -(-nbytes // most))))


def _hosts(channel: Channel) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the ranks of all hosts, and the number of this rank's host."""
    if channel.nodes is None:
        raise ValueError("these collectives are for groups of several hosts")
    return channel.nodes.members, channel.nodes.of(channel.rank)


def _peers(channel: Channel) -> list[int]:
    """Return the other ranks of this host."""
    hosts, host = _hosts(channel)
    return [rank for rank in hosts[host] if rank != channel.rank]

"""c10d's collectives by messages between ranks, anywhere. Each is a generator of `comm.lanes`.

Tensors are contiguous vectors. Reductions run in rank order, whatever the number of elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from hpcdist.comm.lanes import Steps
from hpcdist.comm.reduction_phases import cuts, shares
from hpcdist.comm.staggered import Staggered
from hpcdist.torch import across_hosts
from hpcdist.torch.channel import MOST_BYTES, RESULTS_TAG, Channel, Vectors
from hpcdist.torch.reductions import TensorReduction
from hpcdist.torch.trees import binomial, relay

ROUND_BYTES = 2**26  # of a vector at once: what the ranks send needs memory to be received in
EXCHANGE_ALL_TO = 16384  # bytes up to which every rank sends all it has to all
UNDER_WAY = 16  # blocks of a sum: what a link and its queues hold


def barrier(channel: Channel) -> Steps:
    """Wait for all ranks."""
    nothing = torch.empty(0)
    pairs = [(peer, nothing) for peer in channel.others]
    yield channel.exchange(pairs, pairs)


def all_to_all(channel: Channel, inputs: Vectors, outputs: Vectors) -> Steps:
    """Send ``inputs[r]`` to rank r, receive ``outputs[r]`` from it; lengths may differ."""
    peers = channel.others
    receives = [(peer, outputs[peer]) for peer in peers]
    wait = channel.exchange([(peer, inputs[peer]) for peer in peers], receives)
    outputs[channel.rank].copy_(inputs[channel.rank])
    yield wait


def all_gather(channel: Channel, vector: torch.Tensor, outputs: Vectors) -> Steps:
    """Bring every rank's ``vector`` to all, as ``outputs[r]``."""
    if across_hosts.gathers(channel, outputs):
        return across_hosts.all_gather(channel, vector, outputs)
    return all_to_all(channel, [vector] * channel.size, outputs)


def gather(channel: Channel, vector: torch.Tensor, outputs: Vectors, root: int) -> Steps:
    """Bring every rank's ``vector`` to the root, as ``outputs[r]`` there."""
    if channel.rank != root:
        yield channel.exchange(sends=[(root, vector)])
        return
    wait = channel.exchange(receives=[(peer, outputs[peer]) for peer in channel.others])
    outputs[root].copy_(vector)
    yield wait


def scatter(channel: Channel, inputs: Vectors, out: torch.Tensor, root: int) -> Steps:
    """Bring the root's ``inputs[r]`` to rank r, as ``out``."""
    if channel.rank != root:
        yield channel.exchange(receives=[(root, out)])
        return
    wait = channel.exchange([(peer, inputs[peer]) for peer in channel.others])
    out.copy_(inputs[root])
    yield wait


def broadcast(channel: Channel, vector: torch.Tensor, root: int) -> Steps:
    """Overwrite ``vector`` with the root's."""
    if channel.nodes is not None:
        yield from across_hosts.broadcast(channel, vector, root)
        return
    ranks = [(root + k) % channel.size for k in range(channel.size)]
    yield from relay(channel, vector, *binomial(ranks, channel.rank))


def reduce(channel: Channel, vector: torch.Tensor, reduction: TensorReduction, root: int) -> Steps:
    """Overwrite the root's ``vector`` with the reduction of all."""
    if across_hosts.reduces_for(channel, vector, root):
        yield from across_hosts.reduce(channel, vector, reduction, root)
        return
    for block in rounds(vector, channel.size):
        prepared = reduction.prepare(block)
        if channel.rank != root:
            yield channel.exchange(sends=[(root, prepared)])
            continue
        rows = _rows(channel, prepared)
        yield channel.exchange(receives=[(peer, rows[peer]) for peer in channel.others])
        reduction.fold(rows, block)


def reduce_scatter(
    channel: Channel, inputs: Vectors, out: torch.Tensor, reduction: TensorReduction
) -> Steps:
    """Write the reduction of all ranks' ``inputs[r]`` into rank r's ``out``."""
    if across_hosts.scatters(channel, sum(vector.nbytes for vector in inputs)):
        yield from across_hosts.reduce_scatter(channel, inputs, out, reduction)
        return
    prepared = [reduction.prepare(vector) for vector in inputs]
    cut = [list(rounds(vector, 1)) for vector in prepared]
    targets = list(rounds(out, 1))
    nothing = out[:0]
    for k in range(max(map(len, cut))):
        blocks = [each[k] if k < len(each) else nothing for each in cut]
        rows = _rows(channel, blocks[channel.rank])
        yield channel.swap(blocks, rows)
        reduction.fold(rows, targets[k] if k < len(targets) else nothing)


def all_reduce(channel: Channel, vector: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Overwrite every rank's ``vector`` with the reduction of all."""
    if across_hosts.reduces(channel, vector):
        yield from across_hosts.all_reduce(channel, vector, reduction)
        return
    if vector.nbytes <= EXCHANGE_ALL_TO:
        prepared = reduction.prepare(vector)
        rows = _rows(channel, prepared)
        yield channel.swap([prepared] * channel.size, rows)
        reduction.fold(rows, vector)
        return
    nbytes = MOST_BYTES * channel.size
    blocks = vector.split(nbytes // vector.element_size())
    under_way = max(1, min(UNDER_WAY, ROUND_BYTES // nbytes))
    yield Staggered((_by_shares(channel, block, reduction) for block in blocks), under_way)


def _by_shares(channel: Channel, block: torch.Tensor, reduction: TensorReduction) -> Steps:
    """Reduce a block, of which each rank does a share."""
    bounds = cuts(block.numel(), channel.size, channel.size)
    parts = shares(reduction.prepare(block), bounds)
    rows = _rows(channel, parts[channel.rank])
    yield channel.swap(parts, rows)
    results = shares(block, bounds)
    own = results[channel.rank]
    reduction.fold(rows, own)
    yield replace(channel, tag=RESULTS_TAG).swap([own] * channel.size, results)


def rounds(vector: torch.Tensor, ranks: int) -> Iterator[torch.Tensor]:
    """Return a vector in pieces, for which ``ranks`` pieces of scratch are not too much; one if
    it is empty."""
    step = max(1, ROUND_BYTES // ranks // vector.element_size())
    for begin in range(0, max(vector.numel(), 1), step):
        yield vector[begin : begin + step]


def _rows(channel: Channel, local: torch.Tensor) -> list[torch.Tensor]:
    """Return room for what each rank gives, like this one's ``local``, which is among them."""
    scratch = local.new_empty((channel.size - 1, local.numel())).unbind(0)
    return [*scratch[: channel.rank], local, *scratch[channel.rank :]]

"""The sum of the sparse tensors of all ranks, by messages."""

from __future__ import annotations

from itertools import accumulate

import torch

from hpcdist.comm.lanes import Steps
from hpcdist.torch import by_messages
from hpcdist.torch.channel import Channel


def all_reduce(channel: Channel, tensor: torch.Tensor, local: torch.Tensor) -> Steps:
    """Overwrite ``tensor`` with the sum of all ranks' ``local``, coalesced, in rank order."""
    indices, values = local.indices(), local.values()
    counts = torch.empty(channel.size, dtype=torch.int64)
    row_count = torch.tensor([values.shape[0]])
    yield from by_messages.all_gather(channel, row_count, counts.split(1))
    all_indices = [indices.new_empty((len(indices), n)) for n in counts.tolist()]
    all_values = [values.new_empty((n, *values.shape[1:])) for n in counts.tolist()]
    for part, outs in ((indices, all_indices), (values, all_values)):
        into = [out.reshape(-1) for out in outs]
        yield from by_messages.all_gather(channel, part.reshape(-1), into)
    parts = [
        torch.sparse_coo_tensor(i, v, tensor.shape, is_coalesced=True)
        for i, v in zip(all_indices, all_values, strict=True)
    ]
    *_, total = accumulate(parts)
    # A detached tensor would get the elements alone. What inference mode made, only it may write.
    with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
        tensor.copy_(total.coalesce())

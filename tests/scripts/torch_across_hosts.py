"""Sums and gathers on hosts with a link between them: what a host sends, and what comes out."""

import json

import torch
import torch.distributed as dist

import hpcdist.torch  # noqa: F401
from tests.support.hosts import link_bytes

dist.init_process_group("hpcdist")
rank, size = dist.get_rank(), dist.get_world_size()
given = [torch.rand(2**20, generator=torch.Generator().manual_seed(k)) for k in range(size)]
expected = given[0].clone()
for other in given[1:]:
    expected += other

vector, rows = given[rank].clone(), torch.empty(size, 2**20)
before = link_bytes()
dist.all_reduce(vector)
dist.barrier()
summed = link_bytes()
dist.all_gather_into_tensor(rows, given[rank])
dist.barrier()
gathered = link_bytes()
if rank == 0:
    found = {
        "hosts": len(dist.group.WORLD.queue.channel.nodes.members),
        "sum": (summed - before) / vector.nbytes,
        "gather": (gathered - summed) / vector.nbytes,
        "same": torch.equal(vector, expected) and torch.equal(rows, torch.stack(given)),
    }
    print(json.dumps(found))
dist.destroy_process_group()

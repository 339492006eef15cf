"""Rows that ids get in the second step that looks them up; prints all rows. Its sums are exact."""

import torch
import torch.distributed as dist
from torch import nn

import hpcdist.torch as ours

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
policy = ours.RowPolicy(admit_after=2, until_admitted="zeros")
rows = ours.Embedding(None, 1, name="rows", initial=ours.Initial("constant", 0.0), policy=policy)
model = nn.parallel.DistributedDataParallel(nn.Sequential(rows, nn.Linear(1, 1, bias=False)))
with torch.no_grad():
    model.module[1].weight.fill_(1.0)
optimizer = ours.TableOptimizer(model, "SGD", lr=1.0)
for step in range(4):
    # Ids that one trainer has several times, that both have, and that only one of them has.
    ids = torch.tensor([step, 10, 10, 20 + step, 10, step // 2, 20 + step, 21])
    optimizer.zero_grad()
    model(ids.chunk(size)[rank][:, None]).mean().backward()
    optimizer.step()
with torch.no_grad():
    every = [*range(4), 10, *range(20, 24)]
    print(
        "rows", *(f"{id_}:{row:g}" for id_, row in zip(every, rows(torch.tensor(every)).flatten()))
    )
dist.destroy_process_group()

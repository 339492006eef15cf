"""Rows that ids get in the second step that looks them up, and lose two days after the last one.

Prints them after four steps, how many a shrink forgets, and those that are published. Sums are
exact.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

import hpcdist.torch as ours
from hpcdist.serving import Lookup

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
policy = ours.RowPolicy(admit_after=2, until_admitted="zeros", expire_days=1, rows="float16")
rows = ours.Embedding(None, 1, name="rows", initial=ours.Initial("constant", 0.0), policy=policy)
model = nn.parallel.DistributedDataParallel(nn.Sequential(rows, nn.Linear(1, 1, bias=False)))
with torch.no_grad():
    model.module[1].weight.fill_(1.0)
optimizer = ours.TableOptimizer(model, "SGD", lr=1.0)


def train(ids):
    optimizer.zero_grad()
    model(torch.tensor(ids).chunk(size)[rank][:, None]).mean().backward()
    optimizer.step()


for step in range(4):
    # Ids that one trainer has several times, that both have, and that only one of them has.
    train([step, 10, 10, 20 + step, 10, step // 2, 20 + step, 21])
every = [*range(4), 10, *range(20, 24)]
with torch.no_grad():
    print("rows", *(f"{i}:{row:g}" for i, row in zip(every, rows(torch.tensor(every)).flatten())))
forgotten = [ours.shrink_tables(model)["rows"]]
train([10] * 8)
forgotten += [ours.shrink_tables(optimizer)["rows"] for _ in range(2)]
print("forgotten", *forgotten)
publisher = ours.Publisher(sys.argv[1], model, every=1)
publisher.after_step()
publisher.close()
if rank == 0:
    with Lookup(sys.argv[1], watch=False) as lookup:
        print("published", *lookup.pull("rows", every).ravel().tolist())
dist.destroy_process_group()

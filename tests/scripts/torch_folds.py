"""A model for each fold, with a table and a layer: all begin alike and end with one loss."""

import os
import sys

import torch
import torch.distributed as dist

import hpcdist.torch

dist.init_process_group("hpcdist")
served, how = os.environ.get("SERVED") == "1", sys.argv[1]
ends, kept = [], []
for fold in range(3):
    torch.manual_seed(0)
    words = hpcdist.torch.EmbeddingBag(None, 4, mode="sum")
    top = torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(words, top)
    rows = hpcdist.torch.TableOptimizer(model, "Adam", lr=0.1)
    if served:
        dense = hpcdist.torch.ServedOptimizer(top, "Momentum", momentum=0.5, lr=0.1)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
        dense = torch.optim.SGD(top.parameters(), 0.1, momentum=0.5)
    random = torch.Generator().manual_seed(dist.get_rank())
    for step in range(4):
        ids = torch.randint(0, 20, (8, 3), generator=random)
        loss = (model(ids) - 1).square().mean()
        rows.zero_grad()
        dense.zero_grad()
        loss.backward()
        rows.step()
        dense.step()
    ends.append(loss.item())
    if how == "drop":
        hpcdist.torch.drop_tables(model)
    if how == "keep":
        kept.append(model)
assert ends == [ends[0]] * 3, ends
print("folds agree")

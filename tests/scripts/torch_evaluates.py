import time
import torch, torch.distributed as dist
import hpcdist.torch

dist.init_process_group("gloo")
rank = dist.get_rank()
table = hpcdist.torch.Embedding(None, 4, name="words")
optimizer = hpcdist.torch.TableOptimizer(table, "Adagrad", lr=0.1)
batches = [torch.arange(4) + 3 * step + rank for step in range(6)]
losses = []
for ids in hpcdist.torch.rows_ahead(batches, lambda ids: {table: ids}):
    loss = table(ids).square().sum()
    optimizer.zero_grad()
    loss.backward()
    if rank:
        time.sleep(0.1)  # the servers cannot answer trainer 0's requests yet
    optimizer.step()
    with torch.no_grad():
        losses += [loss.item(), table(torch.arange(20)).sum().item()]
table(torch.arange(5)).square().sum().backward()
for _ in range(3):  # steps without look-ups
    if rank:
        time.sleep(0.1)
    optimizer.step()
with torch.no_grad():
    losses.append(table(torch.arange(20)).sum().item())
if rank == 0:
    print("losses", losses)

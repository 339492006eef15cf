"""A PyTorch script that goes on where its latest checkpoint says; dropout makes each step count.

Start N of a job for which there is a file stop.N does not come to its end: it makes some steps,
and waits to be warned or killed.
"""

import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import hpcdist.torch as ours
from hpcdist.checkpoint import preemption

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
words = ours.EmbeddingBag(None, 4, name="words")
top = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
model = nn.parallel.DistributedDataParallel(nn.Sequential(words, top))
tables = ours.TableOptimizer(model, "Adagrad", lr=0.1)
dense = torch.optim.Adam(top.parameters())
rates = torch.optim.lr_scheduler.ExponentialLR(dense, 0.99)
objects = {"model": model, "tables": tables, "dense": dense, "rates": rates}
saver = ours.Saver("checkpoints", objects, every=10)
torch.manual_seed(rank)  # each rank drops others
saver.restore()
stops = os.path.exists(f"stop.{os.environ.get('SLURM_RESTART_COUNT', '0')}")
last = saver.step + 12
while saver.step < int(os.environ["STEPS"]):
    drawn = torch.Generator().manual_seed(100 * saver.step + rank)
    ids, target = torch.randint(-50, 50, (8, 3), generator=drawn), torch.rand(8, 1, generator=drawn)
    loss = (model(ids) - target).square().mean()
    for optimizer in (tables, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (tables, dense, rates):
        optimizer.step()
    with open(f"step.{rank}", "w") as file:
        file.write(str(saver.step))
    time.sleep(0.02)
    while stops and saver.step == last and not preemption.warned():
        time.sleep(0.02)
    saver.after_step()
saver.close()
bits = b"".join(p.detach().numpy().tobytes() for p in top.parameters())
with torch.no_grad():
    bits += words(torch.arange(-50, 50)[:, None]).numpy().tobytes()
if rank == 0:
    print("bits", hashlib.sha256(bits).hexdigest())

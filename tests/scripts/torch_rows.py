import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
import hpcdist as fluid
import hpcdist.torch

victim, last = map(int, sys.argv[1:])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
rows = fluid.data.read(
    "f.parquet", ["id", "x"], batch=12, shuffle=4, window=50, drop_last=True, certificate="log"
).shard(ranks, rank)
data = rows.torch()
saver = hpcdist.torch.Saver("saved", {"model": model, "rows": data}, every=3)
saver.restore()
step = 0
while rows.epoch < 2:
    for batch in DataLoader(data, batch_size=None):
        optimizer.zero_grad()
        model(batch["x"][:, None]).square().mean().backward()
        if rank == victim and step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        saver.after_step()
        step += 1
saver.close()
dist.destroy_process_group()

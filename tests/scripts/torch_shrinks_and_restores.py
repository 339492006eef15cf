"""Saves, and after a death goes on from the checkpoint: rank 1 dies in step 7, after one of 5."""

import os, signal
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch

ME = int(os.environ["RANK"])
dist.init_process_group("gloo")
body = nn.Linear(4, 1)
optimizer = torch.optim.Adam(body.parameters(), 0.1)
while True:
    try:
        model = nn.parallel.DistributedDataParallel(body)
        with hpcdist.torch.Saver("saved", {"body": body, "optimizer": optimizer}) as saver:
            saver.restore()
            print(f"rank {dist.get_rank()} of {dist.get_world_size()} begins at {saver.step}")
            while saver.step < 10:
                if (ME, saver.step) == (1, 7):
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                model(torch.ones(2, 4) * (ME + 1)).square().mean().backward()
                optimizer.step()
                saver.after_step()
                if saver.step == 5:
                    saver.save()
            saver.save()
        break
    except hpcdist.torch.RankFailure:
        hpcdist.torch.shrink()
print(f"rank {ME} ended", flush=True)

import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def note(what, value):
    with open(f"new.{what}.{os.environ['RANK']}", "w") as f:
        f.write(str(value))
    os.replace(f.name, f"{what}.{os.environ['RANK']}")


note("pid", os.getpid())
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def train(steps, every_s=0.0):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 8) + dist.get_rank()).square().mean().backward()
        optimizer.step()
        note("step", step)
        time.sleep(every_s)

"""Trains, and goes on without ranks that die: argument "RANK:STEP" kills one, by its first number.

"RANK:make" kills it while it goes on without another one. "messages": without shared memory.
"early": rank 0 ends its script when the first has died. Prints where each attempt began, and what
memory it shared.
"""

import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch

steps, *words = sys.argv[1:]
ME = int(os.environ["RANK"])
with open(f"new.pid.{ME}", "w") as f:
    f.write(str(os.getpid()))
os.replace(f.name, f"pid.{ME}")
if "messages" in words:
    import hpcdist.torch.group_queue

    hpcdist.torch.group_queue.host_memory = lambda *_: None
make = dist.init_process_group


def die(when):
    if f"{ME}:{when}" in words:
        os.kill(os.getpid(), signal.SIGKILL)


def make_or_die(*args, **named):
    die("make")
    make(*args, **named)


dist.init_process_group("gloo")
dist.init_process_group = make_or_die
body = nn.Linear(4, 1)
with torch.no_grad():
    for parameter in body.parameters():
        parameter.zero_()
optimizer = torch.optim.SGD(body.parameters(), 0.1, momentum=0.9)
step = 0
while True:
    try:
        me, size = dist.get_rank(), dist.get_world_size()
        state = [step, body.state_dict(), optimizer.state_dict()]
        dist.broadcast_object_list(state)
        step = state[0]
        body.load_state_dict(state[1])
        optimizer.load_state_dict(state[2])
        model = nn.parallel.DistributedDataParallel(body)
        everyone = [dist.new_group([k, (k + 1) % size]) for k in range(size if size > 2 else 0)]
        print(f"rank {me} of {size} begins at {step}", flush=True)
        while step < int(steps):
            die(step)
            optimizer.zero_grad()
            rows = torch.arange(4.0).add(me + 1).div(4).unsqueeze(0)
            model(rows).sub(step % 3).square().mean().backward()
            optimizer.step()
            step += 1
            pending = dist.all_reduce(torch.ones(3), async_op=True)
            for k, group in enumerate(everyone):
                if me in (k, (k + 1) % size):
                    dist.all_reduce(torch.ones(3), group=group)
            right, left = (me + 1) % size, (me - 1) % size
            if size > 1:
                came = torch.empty(100_000)
                waits = dist.irecv(came, left), dist.isend(torch.full((100_000,), me * 1.0), right)
                for wait in waits:
                    wait.wait()
                assert came.eq(left).all()
            pending.wait()
        break
    except hpcdist.torch.RankFailure:
        if "early" in words and ME == 0:
            sys.exit()
        gone = hpcdist.torch.shrink()
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PADDLE_TRAINER_ID"
        place = [int(os.environ[name]) for name in names]
        me, size = dist.get_rank(), dist.get_world_size()
        assert place == [me, size, me, size, me], place
        assert dist.get_backend() == "gloo"
        print(f"rank {ME} goes on without {gone}", flush=True)
values = torch.cat([parameter.detach().flatten() for parameter in body.parameters()])
of_all = [torch.empty_like(values) for _ in range(dist.get_world_size())]
dist.all_gather(of_all, values)
assert all(torch.equal(values, other) for other in of_all)
shared = [line.split()[5] for line in open("/proc/self/maps") if "/dev/shm/" in line]
print("shared", *set(shared), flush=True)
print(f"rank {ME} ended with {values.tolist()}", flush=True)

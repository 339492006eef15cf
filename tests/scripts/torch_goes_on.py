import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch

dist.init_process_group("gloo")
body = nn.Linear(8, 1)
optimizer = torch.optim.Adam(body.parameters(), 0.01)
step = 0
while True:
    try:
        state = [step, body.state_dict(), optimizer.state_dict()]
        dist.broadcast_object_list(
            state
        )  # rank 0's: ranks may have made different numbers of steps
        step = state[0]
        body.load_state_dict(state[1])
        optimizer.load_state_dict(state[2])
        model = nn.parallel.DistributedDataParallel(body)
        while step < 1000:
            optimizer.zero_grad()
            model(torch.rand(32, 8)).square().mean().backward()
            optimizer.step()
            step += 1
        break
    except hpcdist.torch.RankFailure:
        gone = hpcdist.torch.shrink()
        print(f"rank {dist.get_rank()} of {dist.get_world_size()} goes on without {gone}")

import copy, sys
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.errors import TableError
from hpcdist.torch.tables import open_tables

first = int(sys.argv[1])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(9, 1000), nn.Tanh(), nn.Linear(1000, 1))
own = torch.optim.Adam(model.parameters(), 0.01)
optimizer = ours.ServedOptimizer(model, own, mode="geo", push_every=2)
tables = open_tables()  # those of this model
rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
saver = ours.Saver("saved", {"model": model, "optimizer": optimizer, "own": own})
tables.settle()
if first:
    assert saver.restore().step == first
    torch.testing.assert_close([p.detach() for p in model.parameters()], torch.load("kept.pt"))
try:
    own.step()
    raise SystemExit("the step of torch's optimizer alone was not refused")
except TableError as error:
    assert "already calls this optimizer's step(): call only that" in str(error)
like = [copy.deepcopy(model) for _ in range(size)]
owns = [torch.optim.Adam(one.parameters(), 0.01) for one in like]
for one in owns:
    one.load_state_dict(copy.deepcopy(own.state_dict()))  # else they share their tensors
known = [[p.detach().clone() for p in one.parameters()] for one in like]
served = [p.clone() for p in known[0]]


def loss_of(model, step, k):
    generator = torch.Generator().manual_seed(10 * step + k)
    x, y = torch.rand(8, 9, generator=generator), torch.rand(8, 1, generator=generator)
    return (model(x) - y).square().mean()


for step in range(first, first + 4):
    for k in range(size):
        owns[k].param_groups[0]["lr"] = own.param_groups[0]["lr"]
        owns[k].zero_grad()
        loss_of(like[k], step, k).backward()
        owns[k].step()
        for i, p in enumerate(like[k].parameters() if step % 2 else ()):
            with torch.no_grad():
                sent = (p - known[k][i]) / size
                known[k][i] += sent
                served[i] += sent
                p += served[i] - known[k][i]
                known[k][i].copy_(served[i])
    optimizer.zero_grad()
    loss_of(model, step, rank).backward()
    for k in range(size):
        if k == rank:
            optimizer.step()
        dist.barrier()
    rates.step()
    exact = {"rtol": 0, "atol": 0} if size == 1 else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close([*model.parameters()], [*like[rank].parameters()], **exact)
saver.step = first + 4
saver.save()
saver.restore()  # all go on from what servers have
torch.testing.assert_close([p.detach() for p in model.parameters()], served)
torch.save(served, "kept.pt")
saver.close()
model[0].bias.data = model[0].bias.data.clone()
try:
    optimizer.step()
except TableError as error:
    assert "has moved in memory since the first step" in str(error), error
else:
    raise AssertionError("the servers would have kept what nobody trains")

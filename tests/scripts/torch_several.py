import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.errors import TableError

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
words = ours.Embedding(None, 2, initial=ours.Initial("constant", 1.0))
layer, head = nn.Linear(2, 2), nn.Linear(2, 1)
like = nn.Embedding(4, 2), nn.Linear(2, 2), nn.Linear(2, 1)
with torch.no_grad():
    like[0].weight.fill_(1)
    for one, other in ((like[1], layer), (like[2], head)):
        one.load_state_dict(other.state_dict())
given = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
rates = torch.optim.lr_scheduler.StepLR(given, 1, 0.5)
optimizers = [
    ours.ServedOptimizer(layer, given),
    ours.TableOptimizer(words, lr=0.1),
    ours.ServedOptimizer(head, lr=0.1, name="head"),
]
beside = [
    torch.optim.SGD(like[1].parameters(), 0.1, momentum=0.9),
    torch.optim.SGD([*like[0].parameters(), *like[2].parameters()], 0.1),
]
likely = torch.optim.lr_scheduler.StepLR(beside[0], 1, 0.5)


def loss_of(words, layer, head, ids):
    return head(layer(words(ids)).tanh()).square().mean()


for step in range(3):
    own = torch.tensor([rank, rank + 1])
    loss_of(words, layer, head, own).backward()
    if rank and step == 2:
        optimizers[2].param_groups[0]["lr"] = 9.0  # trainer 0's counts
    for one in optimizers:
        one.step()
        one.zero_grad(set_to_none=False)
    rates.step()
    for k in range(size):
        (loss_of(*like, torch.tensor([k, k + 1])) / size).backward()
    for one in beside:
        one.step()
        one.zero_grad()
    likely.step()
with torch.no_grad():
    found = [words(torch.arange(3)), *layer.parameters(), *head.parameters()]
    wanted = [like[0].weight[:3], *like[1].parameters(), *like[2].parameters()]
torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def refused(optimizer, text):
    try:
        optimizer.step()
    except TableError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)


served, _, of_head = optimizers
layer.zero_grad()
refused(served, "has no gradient: servers would take zeros")
layer.weight.grad = torch.zeros(2, 2).to_sparse()
layer.bias.grad = torch.zeros(2)
refused(served, "has a sparse gradient")
head.zero_grad()
before = {name: value.clone() for name, value in head.state_dict().items()}
head.load_state_dict({name: value + 1 for name, value in before.items()})
refused(of_head, "was changed on this rank, but the servers keep")
head.load_state_dict(before)
of_head.step()  # by SGD no gradient moves nothing, as in torch

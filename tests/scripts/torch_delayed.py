import sys
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.torch.tables import open_tables

mode, first = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = ours.ServedOptimizer(model, lr=0.1, mode=mode)
tables = open_tables()  # those of this model
saver = ours.Saver("saved", {"model": model, "optimizer": optimizer})
if first:
    assert saver.restore().step == first
tables.settle()  # all together: trainers take turns to step


def here():
    return [p.detach().clone() for p in model.parameters()]


def gradients(values, x, y):
    leaves = [v.clone().requires_grad_() for v in values]
    a, b, c, d = leaves
    return torch.autograd.grad(((x @ a.T + b).tanh() @ c.T + d - y).square().mean(), leaves)


def train(steps, kept):
    read = [kept] * size  # what each trainer has read last
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        data = [
            (torch.rand(8, 9, generator=generator), torch.rand(8, 1, generator=generator))
            for _ in range(size)
        ]
        found = [gradients(values, *own) for values, own in zip(read, data)]
        optimizer.zero_grad()
        x, y = data[rank]
        (model(x) - y).square().mean().backward()
        for k in range(size)[:: 1 if step % 2 else -1]:
            given = found[k]
            if mode == "dc_asgd":
                given = [g + g * g * (w - r) for g, w, r in zip(given, kept, read[k])]
            kept = read[k] = [w - 0.1 * g for w, g in zip(kept, given)]
            if k == rank:
                optimizer.step()
            dist.barrier()
        torch.testing.assert_close(here(), read[rank], rtol=1e-5, atol=1e-6)
    return kept


kept = here()
if first:
    torch.testing.assert_close(kept, torch.load("kept.pt"), rtol=1e-5, atol=1e-6)
kept = train(5, kept)
saver.step = first + 5
saver.save()
saver.restore()  # what servers keep, which is another thing than what trainer 0 has read
torch.testing.assert_close(here(), kept, rtol=1e-5, atol=1e-6)
kept = train(1, here())
saver.step += 1
saver.save()
torch.save(kept, "kept.pt")
saver.close()

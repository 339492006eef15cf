"""Jobs whose parameters are on servers."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.jobs import Job, needs_mpirun

pytestmark = [
    needs_mpirun,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed: pip install .[torch]",
    ),
]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


# A table, and dense parameters on servers; ``ddp``: these by DistributedDataParallel and torch's
# optimizer.
SERVED = """
import hashlib, sys
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0 if sys.argv[1] == "ddp" else size - 1 - rank)
words = ours.Embedding(None, 90, initial=ours.Initial("uniform", -0.1, 0.1))
rows = ours.TableOptimizer(words, "Adagrad", lr=0.1)
model = nn.Sequential(nn.Linear(90, 300), nn.Tanh(), nn.Linear(300, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=0.01)
if sys.argv[1] == "ddp":
    torch.manual_seed(1)  # trainer 0's in the jobs with servers
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    model = nn.parallel.DistributedDataParallel(model)
else:
    optimizer = ours.ServedOptimizer(model, optimizer)
generator = torch.Generator().manual_seed(5)
for step in range(8):
    if step == 4:
        optimizer.param_groups[0]["lr"] /= 2
    x = torch.rand(8, 90, generator=generator)
    y = torch.rand(8, 1, generator=generator)
    ids = torch.randint(0, 9, (8,), generator=generator)
    own = slice(rank * 8 // size, (rank + 1) * 8 // size)
    loss = (model(x[own] + words(ids[own])) - y[own]).square().mean()
    for one in (optimizer, rows):
        one.zero_grad()
    loss.backward()
    for one in (optimizer, rows):
        one.step()
total = loss.detach().clone()
dist.all_reduce(total)
with torch.no_grad():
    seen = words(torch.arange(9))
if rank == 0:
    found = b"".join(p.detach().numpy().tobytes() for p in (seen, *model.parameters()))
    print("bits", hashlib.sha256(found).hexdigest(), "loss", total.item() / size)
"""


def served(tmp_path, mode, servers):
    options = ("--as-torchrun", *(("--pservers", str(servers)) if servers else ()))
    ended = Job(tmp_path, SERVED, *options, ranks=2 + servers, args=(mode,), env=ONE_THREAD).end()
    assert ended.code == 0, ended
    ((bits, loss),) = re.findall(r"bits (\w+) loss ([\d.e-]+)", ended.out)
    return bits, float(loss)


def test_parameters_and_rows_have_the_same_bits_on_any_servers_and_train_as_by_torch(tmp_path):
    one = served(tmp_path, "sync", 1)
    assert served(tmp_path, "sync", 2) == one
    assert served(tmp_path, "sync", 3) == one
    assert one[1] == pytest.approx(served(tmp_path, "ddp", 0)[1], rel=1e-3)


# Trainers take turns, so that what servers have is known: compared with the formula, and saved.
DELAYED = """
import sys
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.torch.tables import tables

mode, first = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = ours.ServedOptimizer(model, lr=0.1, mode=mode)
saver = ours.Saver("saved", {"model": model, "optimizer": optimizer})
if first:
    assert saver.restore().step == first
tables().settle()  # all together: trainers take turns to step

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
"""


@pytest.mark.parametrize("mode", ["half_async", "dc_asgd"])
def test_parameters_on_servers_train_by_the_formula_and_go_on_on_others(tmp_path, mode):
    for first, servers in ((0, 2), (6, 1)) if mode == "dc_asgd" else ((0, 1),):
        options, args = ("--as-torchrun", "--pservers", str(servers)), (mode, str(first))
        job = Job(tmp_path, DELAYED, *options, ranks=2 + servers, args=args, env=ONE_THREAD)
        ended = job.end()
        assert ended.code == 0, ended


# Each trainer by itself, with torch's Adam; exchanges in turns, so that servers' sums are known.
GEO = """
import copy, sys
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.errors import TableError
from hpcdist.torch.tables import tables

first = int(sys.argv[1])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(9, 1000), nn.Tanh(), nn.Linear(1000, 1))
own = torch.optim.Adam(model.parameters(), 0.01)
optimizer = ours.ServedOptimizer(model, own, mode="geo", push_every=2)
rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
saver = ours.Saver("saved", {"model": model, "optimizer": optimizer, "own": own})
tables().settle()
if first:
    assert saver.restore().step == first
    torch.testing.assert_close([p.detach() for p in model.parameters()], torch.load("kept.pt"))
try:
    own.step()
    raise SystemExit("the step of torch's optimizer alone was not refused")
except TableError as error:
    assert "a second one" in str(error)
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
"""


def test_trainers_that_exchange_differences_train_by_the_formula_and_go_on(tmp_path):
    for first, trainers, servers in ((0, 2, 2), (4, 1, 1)):
        options, args = ("--as-torchrun", "--pservers", str(servers)), (str(first),)
        job = Job(tmp_path, GEO, *options, ranks=trainers + servers, args=args, env=ONE_THREAD)
        ended = job.end()
        assert ended.code == 0, ended


# A table, a layer and a head, each with an optimizer; then what servers would do otherwise.
SEVERAL = """
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
refused(served, "has no gradient, for which servers take zeros")
layer.weight.grad = torch.zeros(2, 2).to_sparse()
layer.bias.grad = torch.zeros(2)
refused(served, "has a sparse gradient")
head.zero_grad()
before = {name: value.clone() for name, value in head.state_dict().items()}
head.load_state_dict({name: value + 1 for name, value in before.items()})
refused(of_head, "has other values here than servers have answered")
head.load_state_dict(before)
of_head.step()  # by SGD no gradient moves nothing, as in torch
"""


def test_several_optimizers_train_as_torchs_and_refuse_what_these_would_do(tmp_path):
    options = ("--as-torchrun", "--pservers", "1")
    ended = Job(tmp_path, SEVERAL, *options, ranks=3, env=ONE_THREAD).end()
    assert ended.code == 0, ended

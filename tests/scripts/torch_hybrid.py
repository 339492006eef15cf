import hashlib, sys
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.ps.sharded_tables import ShardedTables
from hpcdist.ps.table_rpc import TableClient

exchanges = []  # of rows to train


def count(owner, name):
    ask = getattr(owner, name)

    def noted(self, batch, *, create=True):
        exchanges.extend([owner] * create)
        ask(self, batch, create=create)

    setattr(owner, name, noted)


count(TableClient, "start_pull")
count(ShardedTables, "pull")
first, last, mode, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("hpcdist")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = ours.EmbeddingBag(None, 4, mode="mean", padding_idx=3, name="words")
        self.users = ours.Embedding(-1, 3, name="users", initial=ours.Initial("uniform", -0.5, 0.5))
        self.out = nn.Linear(7, 1)

    def forward(self, words, users):
        return self.out(torch.cat([self.words(words), self.users(users)], 1))


model = Model()
tables = ours.TableOptimizer(model, "Adam", lr=0.1, mode=mode)
rates = torch.optim.lr_scheduler.StepLR(tables, 2, 0.5)
shared = nn.parallel.DistributedDataParallel(model)
dense = torch.optim.Adam(model.out.parameters(), 0.1)
saver = ours.Saver(directory, {"model": model, "tables": tables, "rates": rates, "dense": dense})
if first:
    assert saver.restore().step == first
    assert saver.step == first
own = slice(rank * 8 // size, (rank + 1) * 8 // size)


def batches():
    generator = torch.Generator().manual_seed(5)
    for step in range(last):
        words = torch.randint(-(2**62), 2**62, (8, 3), generator=generator)
        words[::2] = torch.randint(0, 9, (4, 3), generator=generator)
        users = torch.randint(0, 5, (8,), generator=generator)
        target = torch.rand(8, 1, generator=generator)
        if step >= first:
            yield step, words[own], users[own], target[own]


def ids_of(batch):
    step, words, users, _ = batch
    return {model.words: words + (step == 3), model.users: users}  # wrong once


for step, words, users, target in ours.rows_ahead(batches(), ids_of):
    loss = (shared(words, users) - target).square().mean()
    tables.zero_grad()
    dense.zero_grad()
    loss.backward()
    tables.step()
    dense.step()
    rates.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    saver.after_step()
    if step == 1:
        with torch.no_grad():
            model.users(torch.arange(3))
if (first, last) == (0, 4):
    assert len(exchanges) == 4 + 1, exchanges  # one of both tables a step, and the wrong one
if directory != "-":
    saver.close()
with torch.no_grad():
    ids = torch.arange(9)
    seen = torch.cat([model.words(ids[:, None]), model.users(ids)], 1)
found = b"".join(t.detach().numpy().tobytes() for t in (seen, *model.out.parameters()))
if rank == 0:
    print("bits", hashlib.sha256(found).hexdigest(), "loss", total.item() / size)

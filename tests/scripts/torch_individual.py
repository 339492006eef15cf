import sys
import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.errors import CheckpointError

directory, saves = sys.argv[1], sys.argv[2] == "save"
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class Sampler:  # such as torchdata's: a tensor, and plain data
    def __init__(self):
        self.state = {"order": torch.zeros(4), "at": 0}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


torch.manual_seed(0)
norm, sampler = nn.BatchNorm1d(3), Sampler()
model = nn.parallel.DistributedDataParallel(norm, forward_sync_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
objects = {"model": model, "optimizer": optimizer, "sampler": sampler}
if len(sys.argv) > 3:
    words = ours.Embedding(None, 4, name="words")
    objects |= {"words": words, "rows": ours.TableOptimizer(words, "SGD", lr=0.1)}
saver = ours.Saver(directory, objects)
if saves:
    model(torch.arange(12.0).reshape(4, 3) * (rank + 1)).square().sum().backward()
    optimizer.step()
    # What one trainer cannot save is an error of all, which a script may catch.
    for of_rank, state, says in (
        (1, {"seen": {1}}, "a checkpoint keeps tensors"),
        (0, {"order": torch.zeros(4)}, "'sampler/order' is float32[4] on trainer 0, nothing on"),
        (1, {"order": torch.zeros(4)}, "'sampler/order' is nothing on trainer 0, float32[4] on"),
    ):
        sampler.state = state if rank == of_rank else {}
        try:
            saver.save()
            raise SystemExit("saved")
        except CheckpointError as error:
            assert says in str(error), error
    sampler.state = {"order": torch.full((4,), float(rank)), "at": 10 + rank}
    optimizer.state[norm.weight]["momentum_buffer"][0] = torch.nan if rank == 1 else 1.0
    saver.save()  # it is not
    assert saver.restore() is None
    optimizer.state[norm.weight]["momentum_buffer"][0] = 1.0
    saver.save()
else:
    assert saver.restore() is not None
print(
    "rank", rank, sampler.state["at"], sampler.state["order"].tolist(), norm.running_mean.tolist()
)

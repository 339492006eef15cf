# Torch's group that does nothing stands in for NCCL, so that a script without a GPU gets this far.
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from hpcdist.torch.group_with_gpus import GroupWithGpus

asked = []


def instead_of_nccl(options, of_script):
    asked.append((options.group_rank, options.group_size, list(options.global_ranks_in_group)))
    return FakeProcessGroup._create_internal(options.group_rank, options.group_size)


dist.Backend._ensure_backend_registered("nccl")
plugins = dist.Backend._plugins
plugins["NCCL"] = plugins["NCCL"]._replace(creator_fn=instead_of_nccl)
torch.cuda.is_available = lambda: True

dist.init_process_group("cpu:gloo,cuda:nccl")
rank, everyone = dist.get_rank(), dist.group.WORLD
assert isinstance(everyone, GroupWithGpus)
assert dist.get_backend() == "cpu:gloo,cuda:nccl"
assert isinstance(everyone._get_backend(torch.device("cuda")), FakeProcessGroup)
total = torch.ones(4)
dist.all_reduce(total)
assert total.tolist() == [2] * 4
pair = dist.new_group([1, 0])
assert isinstance(pair, GroupWithGpus)
dist.broadcast(total, 1, group=pair)
dist.barrier()
dist.set_timeout(timedelta(seconds=50))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.full((3, 4), float(rank))).sum().backward()
assert model.module.weight.grad.tolist() == [[1.5] * 4] * 2
dist.destroy_process_group()
assert asked == [(rank, 2, []), (rank, 2, [0, 1])]
print("as expected")

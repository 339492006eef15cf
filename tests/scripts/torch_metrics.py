import torch, torch.distributed as dist, hpcdist

dist.init_process_group("gloo")
for step in range(1, 4):
    total = torch.full((2,), float(step))
    dist.all_reduce(total)
    hpcdist.log_metrics(step, loss=total.mean(), mine=dist.get_rank())
dist.destroy_process_group()

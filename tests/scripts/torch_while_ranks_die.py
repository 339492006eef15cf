import torch, torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import hpcdist.torch as ours

mode, steps = sys.argv[1], int(sys.argv[2])
at("connect")
os.close(os.open(f"waits.{RANK}", os.O_CREAT))  # from now on it misses others
dist.init_process_group("hpcdist")
me, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
model, optimizers = body, []
if mode == "fsdp2":
    mesh = init_device_mesh("cpu", (size,))
    for module in (body[0], body[2], body):
        fully_shard(module, mesh=mesh)
if mode == "hybrid":
    model = nn.Sequential(ours.EmbeddingBag(None, 8), body)
    optimizers.append(ours.TableOptimizer(model, "Adagrad", lr=0.1))
if mode in ("ddp", "hybrid"):
    model = nn.parallel.DistributedDataParallel(model)
if mode == "served":
    optimizers.append(ours.ServedOptimizer(body, "Adam", lr=0.01))
else:
    optimizers.append(torch.optim.Adam(body.parameters(), 0.01))
noted = os.open(f"step.{me}", os.O_CREAT | os.O_WRONLY)
endless = any(death.split(":")[1] not in ("close", "end") for death in deaths)
step = 0
while endless or step < steps:
    at("step", step)
    os.pwrite(noted, b"%8d" % step, 0)
    rows = torch.randint(-(2**62), 2**62, (4, 3)) if mode == "hybrid" else torch.rand(4, 8)
    at("forward", step)
    loss = model(rows).square().mean()
    loss.register_hook(lambda given: at("backward", step))
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    at("update", step)
    for optimizer in optimizers:
        optimizer.step()
    if step == steps and saves:
        if me == 0:
            os.close(os.open("saving", os.O_CREAT))
        at("save")
        if mode == "fsdp2":
            checkpoint.save({"model": body.state_dict()}, checkpoint_id="saved")
        else:
            kept = {str(k): one for k, one in enumerate([model, *optimizers])}
            with ours.Saver("saved", kept) as saver:
                saver.step = step
                saver.save()
    time.sleep(0.001)
    step += 1
at("close")
dist.destroy_process_group()
at("end")

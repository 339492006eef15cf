import torch, torch.distributed as dist
from torch import nn
import hpcdist.torch as ours
from hpcdist.torch import group_queue

steps = int(sys.argv[1])
if "messages" in sys.argv:
    group_queue.host_memory = lambda *_: None
dist.init_process_group("gloo")
body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(body.parameters(), 0.01)
waited_for = [
    death.split(":")[0] for death in deaths if death.split(":")[1] not in ("close", "end")
]
step, over = 0, False


def all_have_died():
    # A rank that SIGTERM has come to waits a moment for that of others.
    died = [f"died.{rank}" for rank in waited_for]
    return all(os.path.exists(d) and time.time() - os.stat(d).st_mtime > 3 for d in died)


while True:
    try:
        me, size = dist.get_rank(), dist.get_world_size()
        state = [step, body.state_dict(), optimizer.state_dict()]
        dist.broadcast_object_list(state)
        step = state[0]
        body.load_state_dict(state[1])
        optimizer.load_state_dict(state[2])
        model = nn.parallel.DistributedDataParallel(body)
        pairs = [dist.new_group([k, (k + 1) % size]) for k in range(size if size > 2 else 0)]
        while not over:
            at("step", step)
            at("forward", step)
            loss = model(torch.rand(4, 8)).square().mean()
            loss.register_hook(lambda given: at("backward", step))
            optimizer.zero_grad()
            loss.backward()
            at("update", step)
            optimizer.step()
            step += 1
            for k, pair in enumerate(pairs):
                if me in (k, (k + 1) % size):
                    dist.all_reduce(torch.ones(3), group=pair)
            flag = torch.tensor([step >= steps and all_have_died()])
            dist.all_reduce(flag, dist.ReduceOp.MIN)
            over = bool(flag)
            time.sleep(0.001)
        values = torch.cat([parameter.detach().flatten() for parameter in body.parameters()])
        of_all = [torch.empty_like(values) for _ in range(size)]
        dist.all_gather(of_all, values)
        assert all(torch.equal(values, other) for other in of_all)
        break
    except ours.RankFailure:
        noticed = time.time()
        at("shrink")
        ours.shrink()
        at("shrunk")
        with open(f"shrunk.{RANK}.{dist.get_world_size()}", "w") as f:
            f.write(f"{noticed} {time.time()}")
at("close")
dist.destroy_process_group()
with open(f"ended.{RANK}", "w") as f:
    f.write(f"{size} {step}")
at("end")

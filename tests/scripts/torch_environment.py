# What a rank of torchrun's finds. torch opens no port that MPI has not opened before.
import os
from datetime import timedelta
import torch, torch.distributed as dist


def listening():
    links = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
    own = {os.readlink(link) for link in links if os.path.islink(link)}
    rows = [r.split() for f in ("tcp", "tcp6") for r in list(open("/proc/net/" + f))[1:]]
    return sorted(r[1] for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in own)


before = listening()
rank = int(os.environ["RANK"])
dist.init_process_group(BACKEND)
assert dist.get_rank() == rank and dist.get_world_size() == int(os.environ["WORLD_SIZE"])
assert dist.get_backend() == NAME, dist.get_backend()
of_cpu = "mpi" if NAME == "mpi" else "gloo"
assert dist.group.WORLD.name() == of_cpu, "what torch calls the CPU's part of it"
assert os.environ["LOCAL_RANK"] == str(rank)
assert os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]
assert os.environ["GROUP_RANK"] == "0" and dist.is_torchelastic_launched()
assert os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"])
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))  # reads the name in C++
own = dist.TCPStore("localhost", 0, is_master=True)
own.set("a", "b")
assert own.get("a") == b"b"
del own
try:
    dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    raise AssertionError("somebody listens at MASTER_PORT")
except RuntimeError as error:
    assert "nobody listens there, the job's store goes over MPI" in str(error), error
total = torch.ones(3)
dist.all_reduce(total)
assert (total == dist.get_world_size()).all()
if dist.get_backend() == "gloo":
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    late = dist.new_group(backend="gloo")
    if rank == 0:
        try:
            dist.monitored_barrier(late, timeout=timedelta(0))
            assert dist.get_world_size() == 1
        except RuntimeError as error:
            assert "nothing came within 0 s" in str(error), error
dist.barrier()
part = dist.new_group([0], backend="gloo")
own = dist.split_group(split_ranks=[[r] for r in range(dist.get_world_size())])
assert dist.get_process_group_ranks(own) == [rank] and dist.get_backend(own) == NAME
assert listening() == before
if rank == 0:
    print("as expected")
dist.destroy_process_group()

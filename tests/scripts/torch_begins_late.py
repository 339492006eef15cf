import os, time
from datetime import timedelta
import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(3)
else:
    os.environ["FLAGS_rpc_deadline"] = "1000"
dist.init_process_group("gloo", timeout=timedelta(seconds=120))
dist.barrier()

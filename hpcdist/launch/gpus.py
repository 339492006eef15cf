"""Which GPU each rank uses; the same NCCL_ variables on all ranks."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from hpcdist.base import settings
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster

NCCL = "NCCL_"


def variables(transport: Transport, cluster: Cluster, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables about GPUs for this rank's environment. Collective.

    The trainers of a host take its GPUs in turn; what is set already is left alone. What rank 0
    has for NCCL, all ranks have: a launcher may forward no variables to other hosts.
    """
    nccl = json.dumps({name: value for name, value in env.items() if name.startswith(NCCL)})
    of_rank_0 = json.loads(
        transport.broadcast_bytes(nccl.encode() if transport.rank == 0 else None, 0)
    )
    variables = {name: env.get(name, of_rank_0[name]) for name in sorted(of_rank_0)}
    names = transport.on_host().allgather_bytes(str(transport.rank).encode())
    local = local_index(cluster, transport.rank, [int(name) for name in names])
    count = visible(env)
    if count and local is not None:
        name = settings.SELECTED_GPUS.name
        variables[name] = env.get(name) or str(local % count)
    return variables


def local_index(cluster: Cluster, rank: int, on_host: list[int]) -> int | None:
    """Return this rank's number among the trainers of its host; None for a server. Pure."""
    trainers = [r for r in sorted(on_host) if cluster.role_of(r).kind != PSERVER]
    return trainers.index(rank) if rank in trainers else None


def visible(env: Mapping[str, str], usable: Callable[[], int] | None = None) -> int:
    """Return how many GPUs this process may use; ``usable`` counts where no variable names them."""
    named = env.get(settings.VISIBLE_GPUS.name)  # empty: none
    if named is None:
        return (usable or count_usable)()
    count = 0
    for name in named.split(","):
        # CUDA sees those before the first name that is no device.
        if not name.strip() or name.strip().startswith("-") or name.strip() == "NoDevFiles":
            break
        count += 1
    return count


def count_usable(library: str = "libnvidia-ml.so.1", devices: Path = Path("/dev")) -> int:
    """Return how many GPUs the driver lets this process use, without making contexts on them.

    NVML counts all of the machine and gives no handle of those that a cgroup, such as Slurm's,
    keeps from this process. Without NVML: how many device files can be opened.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return sum(map(_opens, devices.glob("nvidia[0-9]*")))
    if nvml.nvmlInit_v2() != 0:
        return 0
    try:
        count, handle = ctypes.c_uint(0), ctypes.c_void_p()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return 0
        ask = nvml.nvmlDeviceGetHandleByIndex_v2
        return sum(ask(ctypes.c_uint(i), ctypes.byref(handle)) == 0 for i in range(count.value))
    finally:
        nvml.nvmlShutdown()


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True

"""A process group whose GPU tensors go over torch's own NCCL, and whose CPU tensors over MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist

from hpcdist.torch.process_group import MpiProcessGroup

POSSIBLE = hasattr(dist.Backend, "_ensure_backend_registered")  # from torch 2.14 on
CPU, GPU = torch.device("cpu"), torch.device("cuda")
COLLECTIVES = (
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "_allgather_base",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "gather_single",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
    "scatter",
    "send",
)
CALLS = ("_start_coalescing", "_end_coalescing")  # which name their device


class GroupWithGpus(MpiProcessGroup):
    """A group that calls ``gpus`` with GPU tensors: torch's own of the same ranks (`by_nccl`).

    A barrier goes over MPI unless its options name a GPU.
    """

    def __init__(self, gpus: dist.ProcessGroup, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gpus: Any = gpus

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU, GPU]

    def _get_backend(self, device: torch.device) -> Any:
        return self if torch.device(device) == CPU else self.gpus._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._get_backend(GPU).set_timeout(timeout)

    def shutdown(self) -> None:
        self._get_backend(GPU).shutdown()

    def abort(self) -> None:
        self._get_backend(GPU).abort()


def by_nccl(options: Any, of_script: object) -> dist.ProcessGroup:
    """Return torch's own group of GPU tensors, for a backend's ``options``. Collective.

    ``of_script``: the ProcessGroupNCCL.Options that the script gives, None if it gives none.
    """
    dist.Backend._ensure_backend_registered("nccl")
    plugin: Any = dist.Backend._plugins["NCCL"]
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    gpus: Any = group
    gpus._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    backend = plugin.creator_fn(options, of_script)
    gpus._register_backend(GPU, dist.ProcessGroup.BackendType.NCCL, backend)
    gpus._set_group_name(options.group_id)
    return group


def _on_device(name: str) -> Callable[..., Any]:
    on_cpu = getattr(MpiProcessGroup, name)

    @wraps(on_cpu)
    def call(self: GroupWithGpus, *arguments: Any, **named: Any) -> Any:
        device = next(_devices((*arguments, *named.values())), CPU)
        method = partial(on_cpu, self) if device.type == "cpu" else getattr(self.gpus, name)
        return method(*arguments, **named)

    return call


def _devices(arguments: Iterable[Any]) -> Iterator[torch.device]:
    """Yield the devices that arguments name: of tensors, also in lists, and of options."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _devices(argument)
        elif isinstance(argument, torch.device):
            yield argument
        elif isinstance(device := getattr(argument, "device", None), torch.device):
            yield device


for _name in (*COLLECTIVES, *CALLS):
    setattr(GroupWithGpus, _name, _on_device(_name))

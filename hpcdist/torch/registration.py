"""Registers hpcdist with torch: the backend ``hpcdist``, and rendezvous over MPI."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout

from hpcdist.base import settings
from hpcdist.base.errors import LaunchError
from hpcdist.torch import patches
from hpcdist.torch.group_with_gpus import POSSIBLE, GroupWithGpus, by_nccl
from hpcdist.torch.job import TorchJob, job, used
from hpcdist.torch.process_group import MpiProcessGroup

NAME, WITH_GPUS = "hpcdist", "hpcdist_nccl"
_rank_process = os.getpid()  # others have been forked by it
rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # hidden by a function


def register() -> None:
    """Make torch know the backend, and let env:// find ranks by MPI. Once in a process."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    dist.Backend.register_backend(WITH_GPUS, _create_with_gpus, True, devices=["cpu", "cuda"])
    handler = rendezvous._rendezvous_handlers["env"]
    rendezvous._rendezvous_handlers["env"] = _by_mpi_unless(_is_other_job, handler)
    _replace_groups(set() if dist.is_mpi_available() else {"mpi"}, set())  # torch: built without
    patches.apply()


def stand_in() -> None:
    """Replace groups of gloo, mpi, or nccl without a GPU by ours, and torch's rendezvous.

    For scripts that are written for torchrun. torch continues calling them what the script does.
    With a GPU, nccl is torch's own, over our store, also beside our part for CPU tensors. The job
    begins here, so that some of its ranks, or one, may make a world without the others. Collective.
    """
    job()
    for scheme in ("env", "tcp"):
        rendezvous._rendezvous_handlers[scheme] = _by_mpi
    _refuse_clients_of_torchruns_store()
    _replace_groups({"gloo", "mpi"}, {"nccl", "undefined"})


def instead_of(
    backend: str, ours: set[str], without_gpu: set[str], has_gpu: Callable[[], bool]
) -> str:
    """Return the backend that a group has whose script names ``backend``, or one for each device.

    ``ours`` are the names for which we stand in always, ``without_gpu`` those where there is none.
    """
    names = {part.rpartition(":")[2] for part in backend.lower().split(",")}
    others = names - {*ours, NAME}
    if not others:
        return NAME
    with_nccl = others == {"nccl"} and len(names) > 1
    if (with_nccl or others <= without_gpu) and not has_gpu():
        return NAME
    return WITH_GPUS if with_nccl and POSSIBLE else backend


def _refuse_clients_of_torchruns_store() -> None:
    """Refuse a TCPStore that would be a client of torchrun's own: nobody listens at its port.

    It would wait for five minutes. torch.distributed.debug makes such a one.
    """
    store: Any = dist.TCPStore
    make = store.__init__

    @wraps(make)
    def make_other(
        self: Any,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        *more: Any,
        **named: Any,
    ) -> None:
        launched = settings.TORCH_MASTER.read(), settings.TORCH_PORT.read()
        if not is_master and (host_name, str(port)) == launched:
            raise LaunchError(
                f"rank {settings.TORCH_RANK.read()} makes a TCPStore that connects to MASTER_PORT: "
                "nobody listens there, the job's store goes over MPI. Use "
                "torch.distributed.distributed_c10d._get_default_store(), or another port and one "
                "rank with is_master=True; torch.distributed.debug's server is not supported"
            )
        make(self, host_name, port, world_size, is_master, *more, **named)

    store.__init__ = make_other


def _replace_groups(ours: set[str], without_gpu: set[str]) -> None:
    """Replace groups of the named backends by ours; torch still reports the script's names."""
    make = distributed_c10d._new_process_group_helper

    def make_ours(
        size: int,
        rank: int,
        ranks: object,
        backend: object,
        store: dist.Store,
        *more: Any,
        **named: Any,
    ) -> Any:
        used.groups += 1
        instead = instead_of(str(backend), ours, without_gpu, torch.cuda.is_available)
        if instead == str(backend):
            return make(size, rank, ranks, backend, store, *more, **named)
        if size == -1:  # of the default group of mpi: for torch, MPI knows them
            store, rank, size = next(_by_mpi("env://", timeout=named["timeout"]))
            store.set_timeout(named["timeout"])
        made_group = make(size, rank, ranks, dist.Backend(instead), store, *more, **named)
        group = made_group[0]
        if isinstance(group, MpiProcessGroup):
            _, store = distributed_c10d._world.pg_map[group]
            distributed_c10d._world.pg_map[group] = (backend, store)
            # torch asks groups for this name: a sharded tensor of gloo's is one of the CPU.
            of_devices = dist.BackendConfig(dist.Backend(backend)).get_device_backend_map()
            group.backend_name = str(of_devices.get("cpu", backend))
        return made_group

    distributed_c10d._new_process_group_helper = make_ours


def _is_other_job() -> bool:
    """Return whether the environment describes a job of torchrun's."""
    return settings.TORCH_MASTER.is_set() and settings.TORCH_RANK.is_set()


def _by_mpi_unless(
    leave_it: Callable[[], bool], handler: Callable[..., Iterator[Any]]
) -> Callable[..., Iterator[Any]]:
    """Return a handler of rendezvous that finds the ranks of this job by MPI."""

    def handle(url: str, **named: Any) -> Iterator[Any]:
        return (handler if leave_it() else _by_mpi)(url, **named)

    return handle


def _by_mpi(
    url: str, timeout: timedelta = default_pg_timeout, **_: Any
) -> Iterator[tuple[dist.Store, int, int]]:
    """Do what a handler of rendezvous does: find the ranks of this job, by MPI."""
    if os.getpid() != _rank_process:
        raise LaunchError(
            f"process {os.getpid()}, which process {_rank_process} has forked, calls "
            "init_process_group: ranks are the processes that mpirun starts; a script that starts "
            "its ranks itself (torch.multiprocessing) needs no launcher"
        )
    ours = job(None if timeout == default_pg_timeout else timeout.total_seconds())
    parsed = rendezvous.urlparse(url)
    query = rendezvous._query_to_dict(parsed.query)
    rank, size = _numbers(query, ours.transport.rank, ours.transport.size)
    yield dist.PrefixStore(_claimed(ours, parsed.netloc, rank, size), ours.store), rank, size


def _numbers(query: Mapping[str, str], rank: int, size: int) -> tuple[int, int]:
    """Return a rank's number in the script's world, and the world's size; by default MPI's.

    ``rank`` and ``size`` are MPI's. LaunchError for numbers that no ranks of this job can have.
    """
    asked = int(query.get("rank", -1)), int(query.get("world_size", -1))
    number, numbered = (own if given == -1 else given for given, own in zip(asked, (rank, size)))
    if (number, numbered) == (rank, size) or (-1 not in asked and 0 <= number < numbered <= size):
        return number, numbered
    raise LaunchError(
        f"rank {rank} of {size} under MPI asks torch to be rank {number} of {numbered}: "
        "leave rank and world_size out, take them from RANK and WORLD_SIZE, or number ranks of "
        "this job from 0 by giving both; a script that starts its ranks itself "
        "(torch.multiprocessing) needs no launcher"
    )


def _claimed(ours: TorchJob, address: str, rank: int, size: int) -> str:
    """Return the prefix of the store of those that name an address, and take a number there.

    LaunchError if another rank has taken it: it would wait for one that never comes.
    """
    me, everyone = str(ours.transport.rank), ours.transport.size
    if size == 1 < everyone:
        address = f"{me} alone"
    elif size == everyone:
        address = "all"  # whatever each of them calls it
    prefix = f"met/{address}/{ours.meetings[address]}/{size}"
    ours.meetings[address] += 1
    other = ours.store.compare_set(f"{prefix}/is/{rank}", "", me).decode()
    if other != me:
        raise LaunchError(
            f"rank {me} under MPI asks torch to be rank {rank} of {size}, which rank {other} is: "
            "give each rank another number, or leave rank and world_size out"
        )
    return prefix


def _create(options: Any, _: object) -> MpiProcessGroup:
    return MpiProcessGroup(*_arguments(options))


def _create_with_gpus(options: Any, of_script: object) -> GroupWithGpus:
    if not POSSIBLE:
        raise LaunchError(f"backend {WITH_GPUS} needs torch 2.14, this is {torch.__version__}")
    made = GroupWithGpus(by_nccl(options, of_script), *_arguments(options))
    made.bound_device_id = options.process_group.bound_device_id
    return made


def _arguments(options: Any) -> tuple[Any, ...]:
    ours = job()
    ours.note_threads()
    return (
        ours,
        options.store,
        options.group_rank,
        list(options.global_ranks_in_group) or list(range(options.group_size)),  # the script's
        options.group_id,
        options.timeout if isinstance(options.timeout, timedelta) else default_pg_timeout,
    )

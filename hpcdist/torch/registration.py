"""Registers hpcdist with torch: the backend ``hpcdist``, and rendezvous over MPI."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache, partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_work
from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout

from hpcdist import settings
from hpcdist.comm.lanes import Lane, origin
from hpcdist.errors import LaunchError
from hpcdist.torch.group_queue import hook_lanes
from hpcdist.torch.group_with_gpus import POSSIBLE, GroupWithGpus, by_nccl
from hpcdist.torch.job import job
from hpcdist.torch.process_group import MpiProcessGroup
from hpcdist.torch.servers import serve
from hpcdist.torch.split import split_group

NAME, WITH_GPUS = "hpcdist", "hpcdist_nccl"
HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
# Torch's hooks of DistributedDataParallel whose callbacks begin nothing.
PLAIN_HOOKS = tuple(
    (HOOKS, name) for name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
)
__all__ = ["register", "serve", "stand_in"]
_operators = torch.library.Library("_c10d_functional", "IMPL")  # what it adds goes with it
_rank_process = os.getpid()  # others have been forked by it
rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # hidden by a function


def register() -> None:
    """Make torch know the backend, and let env:// find ranks by MPI. Once in a process."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    dist.Backend.register_backend(WITH_GPUS, _create_with_gpus, True, devices=["cpu", "cuda"])
    handler = rendezvous._rendezvous_handlers["env"]
    rendezvous._rendezvous_handlers["env"] = _by_mpi_unless(_is_other_job, handler)
    _replace_groups(set() if dist.is_mpi_available() else {"mpi"}, set())  # torch: built without
    _keep_handles_of_join()
    _end_hooks_in_order()
    _take_builtin_hooks()
    _split_groups_of_ours()
    _set_timeouts_of_ours()
    _operators.impl("all_gather_into_tensor_out", _gather_into, "CPU")
    _operators.impl("batch_p2p_ops", _send_and_receive, "CPU")
    _leave_out_of_compiled_functions()
    _raise_own_errors_in_backward()
    _find_tensors_without_pickling()


def _gather_into(
    input: torch.Tensor, group_size: int, group_name: str, *, out: torch.Tensor
) -> torch.Tensor:
    """Do what an operator of compiled functions does, for groups written in Python, too.

    Its own kernel in C++ calls a method that torch looks for in C++ only.
    """
    group = distributed_c10d._resolve_process_group(distributed_c10d.GroupName(group_name))
    _register_work(out, group._allgather_base(out, input))
    return out


def _send_and_receive(
    op_list: list[str],
    peer_list: list[int],
    tag_list: list[int],
    tensors: list[torch.Tensor],
    group_name: str,
) -> list[torch.Tensor]:
    """Do what batch_isend_irecv becomes in compiled functions; peers are ranks of the group.

    Returns what to wait for: tensors that are received, and an empty one for each that is sent.
    """
    group = distributed_c10d._resolve_process_group(distributed_c10d.GroupName(group_name))
    results = []
    for kind, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        sends = kind == "isend"
        work = (group.send if sends else group.recv)([tensor], peer, tag)
        results.append(tensor.new_empty(0) if sends else tensor)
        _register_work(results[-1], work)
    return results


def _leave_out_of_compiled_functions() -> None:
    """Let compiled functions call hpcdist's, as they call groups of torch's own, which are in C++.

    Torch is told when a script compiles: until then nobody waits for what this imports.
    """
    by_torch = torch.compile

    @cache
    def leave_out() -> None:
        importlib.import_module("torch._dynamo.trace_rules").add("hpcdist")

    @wraps(by_torch)
    def compile_without_ours(*args: Any, **named: Any) -> Any:
        leave_out()
        return by_torch(*args, **named)

    torch.compile = compile_without_ours
    if "torch._dynamo" in sys.modules:  # a script may have compiled something already
        leave_out()


def _split_groups_of_ours() -> None:
    """Let split_group split groups of ours, under all names by which it has been imported.

    So what torch's decorator calls is replaced, not the decorated function. The groups' method of
    that name is not enough: the function refuses before it calls it, unless there is a GPU.
    """
    decorated: Any = dist.split_group
    called = decorated.__closure__[decorated.__code__.co_freevars.index("func")]
    by_torch = called.cell_contents
    called.cell_contents = wraps(by_torch)(partial(split_group, by_torch))


def _set_timeouts_of_ours() -> None:
    """Let torch's `_set_pg_timeout` set ours: it knows backends in C++ only, and would warn."""
    by_torch = distributed_c10d._set_pg_timeout

    @wraps(by_torch)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        if isinstance(named := group or distributed_c10d._get_default_group(), MpiProcessGroup):
            named.set_timeout(timeout)
        else:
            by_torch(timeout, group)

    distributed_c10d._set_pg_timeout = set_pg_timeout


def _raise_own_errors_in_backward() -> None:
    """Let a backward pass raise what made a sum of it fail: of futures C++ keeps the text only."""
    run = torch.autograd._engine_run_backward

    @wraps(run)
    def run_backward(*args: Any, **named: Any) -> Any:
        try:
            return run(*args, **named)
        except RuntimeError as error:
            if (cause := origin(error)) is error:
                raise
            raise cause from None

    torch.autograd._engine_run_backward = run_backward


def _find_tensors_without_pickling() -> None:
    """Let C++ find the tensors in a list of tensors at once: it asks for each bucket's result.

    By torch's pickler that was 0.4 ms of a step of 65, when a step has swept it from the caches.
    """
    by_pickler = torch._jit_internal._extract_tensors

    @wraps(by_pickler)
    def extract(value: Any) -> list[torch.Tensor]:
        if type(value) is list and all(type(each) is torch.Tensor for each in value):
            return value
        found: list[torch.Tensor] = by_pickler(value)
        return found

    torch._jit_internal._extract_tensors = extract


def _end_hooks_in_order() -> None:
    """Let hooks of DistributedDataParallel end what they begin for a bucket before the next one.

    Callbacks of futures run when a sum has ended, sooner on one rank than on another: the sums that
    they begin would come before those of the next bucket here and after them there.
    """
    register = dist._register_comm_hook

    def register_in_order(reducer: Any, state: object, hook: Callable[..., Any]) -> None:
        name = getattr(hook, "__module__", ""), getattr(hook, "__qualname__", "")
        register(reducer, state, hook if name in PLAIN_HOOKS else _in_order(hook))

    dist._register_comm_hook = register_in_order


def _in_order(hook: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(hook)
    def hook_in_order(state: Any, bucket: dist.GradBucket) -> Any:
        begun: list[Lane] = []
        before = hook_lanes.set(begun)
        try:
            future = hook(state, bucket)
        finally:
            hook_lanes.reset(before)
        if begun:
            job().mover.settle(begun, future.done)
        return future

    return hook_in_order


def _take_builtin_hooks() -> None:
    """Let hooks of DistributedDataParallel that torch has in C++ be those of the same in Python.

    The former take futures of groups in C++ only.
    """
    model: Any = torch.nn.parallel.DistributedDataParallel
    by_torch = model._register_builtin_comm_hook

    @wraps(by_torch)
    def register_builtin(self: Any, comm_hook_type: Any) -> None:
        if not isinstance(self.process_group, MpiProcessGroup):
            by_torch(self, comm_hook_type)
            return
        hooks = importlib.import_module(HOOKS)
        half = comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS
        hook = hooks.fp16_compress_hook if half else hooks.allreduce_hook
        self.register_comm_hook(self.process_group, hook)

    model._register_builtin_comm_hook = register_builtin


def _keep_handles_of_join() -> None:
    """Let reducers of DistributedDataParallel keep the handles that Python gives them, in join().

    Their C++ keeps the C++ half only, whose wait has no end once Python has freed the other half.
    """
    reducer: Any = dist.Reducer
    give = reducer._set_forward_pass_work_handle
    handles: WeakKeyDictionary[Any, dist.Work] = WeakKeyDictionary()

    def give_and_keep(self: Any, work: dist.Work, *static_size: Any, **named: Any) -> None:
        handles[self] = work
        give(self, work, *static_size, **named)

    reducer._set_forward_pass_work_handle = give_and_keep


def stand_in() -> None:
    """Let groups of gloo, mpi, or nccl without a GPU be ours, and every rendezvous of torch's.

    For scripts that are written for torchrun. torch continues calling them what the script does.
    With a GPU, nccl is torch's own, over our store.
    """
    for scheme in ("env", "tcp"):
        rendezvous._rendezvous_handlers[scheme] = _by_mpi
    _refuse_clients_of_torchruns_store()
    _replace_groups({"gloo", "mpi"}, {"nccl", "undefined"})


def instead_of(
    backend: str, ours: set[str], without_gpu: set[str], has_gpu: Callable[[], bool]
) -> str:
    """Return the backend that a group has where a script names ``backend``, or one for each device.

    ``ours`` are the names that ours has, too, ``without_gpu`` those that it has then.
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
        launched = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
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
    """Let groups be ours where a script names such backends; torch goes on saying these names."""
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
    rank, size = ours.transport.rank, ours.transport.size
    query = rendezvous._query_to_dict(rendezvous.urlparse(url).query)
    requested = int(query.get("rank", rank)), int(query.get("world_size", size))
    if requested not in ((rank, size), (-1, -1), (rank, -1), (-1, size)):
        raise LaunchError(
            f"rank {rank} of {size} under MPI asks torch to be rank {requested[0]} of "
            f"{requested[1]}: "
            "leave rank and world_size out, or take them from RANK and WORLD_SIZE; a script that "
            "starts its ranks itself (torch.multiprocessing) needs no launcher"
        )
    yield dist.PrefixStore(f"init{next(ours.rendezvous)}", ours.store), rank, size


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
    return (
        ours,
        options.store,
        options.group_rank,
        list(options.global_ranks_in_group) or list(range(options.group_size)),
        options.group_id,
        options.timeout if isinstance(options.timeout, timedelta) else default_pg_timeout,
    )

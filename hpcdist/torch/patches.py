"""What is replaced in torch, so that it takes groups that are written in Python as its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_work
from torch.distributed import distributed_c10d

from hpcdist.comm.lanes import Lane, origin
from hpcdist.torch.group_queue import hook_lanes
from hpcdist.torch.job import job
from hpcdist.torch.process_group import MpiProcessGroup
from hpcdist.torch.split import split_group

HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
# Torch's hooks of DistributedDataParallel whose callbacks begin nothing.
PLAIN_HOOKS = tuple(
    (HOOKS, name) for name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
)
_operators = torch.library.Library("_c10d_functional", "IMPL")  # what it adds goes with it


def apply() -> None:
    """Replace all of it. Once in a process."""
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
    """Keep torch.compile out of hpcdist's collectives, as out of torch's own in C++.

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
    """Make split_group split groups of ours, under all names by which it has been imported.

    So what torch's decorator calls is replaced, not the decorated function. The groups' method of
    that name is not enough: the function refuses before it calls it, unless there is a GPU.
    """
    decorated: Any = dist.split_group
    called = decorated.__closure__[decorated.__code__.co_freevars.index("func")]
    by_torch = called.cell_contents
    called.cell_contents = wraps(by_torch)(partial(split_group, by_torch))


def _set_timeouts_of_ours() -> None:
    """Make torch's `_set_pg_timeout` set ours: it knows backends in C++ only, and would warn."""
    by_torch = distributed_c10d._set_pg_timeout

    @wraps(by_torch)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        if isinstance(named := group or distributed_c10d._get_default_group(), MpiProcessGroup):
            named.set_timeout(timeout)
        else:
            by_torch(timeout, group)

    distributed_c10d._set_pg_timeout = set_pg_timeout


def _raise_own_errors_in_backward() -> None:
    """Raise in a backward pass the error of its sum: futures of C++ keep the text only."""
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
    """Hand C++ the tensors of a list of tensors at once: it asks for each bucket's result.

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
    """Order DistributedDataParallel's hooks: a bucket's ends before the next one begins.

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
    """Replace DistributedDataParallel's hooks in C++ by those of the same effect in Python.

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
    """Keep alive the handles that Python gives reducers of DistributedDataParallel in join().

    Their C++ keeps the C++ half only, whose wait has no end once Python has freed the other half.
    """
    reducer: Any = dist.Reducer
    give = reducer._set_forward_pass_work_handle
    handles: WeakKeyDictionary[Any, dist.Work] = WeakKeyDictionary()

    def give_and_keep(self: Any, work: dist.Work, *static_size: Any, **named: Any) -> None:
        handles[self] = work
        give(self, work, *static_size, **named)

    reducer._set_forward_pass_work_handle = give_and_keep

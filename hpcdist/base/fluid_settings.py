"""Fluid's environment variables: those that hpcdist obeys, and those that it only accepts."""

from __future__ import annotations

from typing import Any, TypeVar

from hpcdist.base.setting import Integer, Integers, Number, OnOff, Section, Setting, Text, ValueKind

T = TypeVar("T")


def _fluid(name: str, kind: ValueKind[T], default: Any, meaning: str, unit: str = "") -> Setting[T]:
    return Setting(name, kind, default, meaning, unit, Section.FLUID)


CPU_NUM = _fluid(
    "CPU_NUM",
    Integer(1),
    1,
    "number of devices of a ParallelExecutor or CompiledProgram on the CPU; also the default of "
    "three settings of the communicator",
)
RPC_DEADLINE = _fluid(
    "FLAGS_rpc_deadline",
    Integer(1),
    180_000,
    "longest wait for a message from another rank; `--deadline` sets it",
    "ms",
)
WORKER_UPDATE_INTERVAL = _fluid(
    "FLAGS_worker_update_interval_secs",
    Number(0),
    900.0,
    "a trainer that sends nothing for this long (in asynchronous modes for the deadline, if that "
    "is shorter) is reported; the job goes on",
    "s",
)
SELECTED_GPUS = _fluid(
    "FLAGS_selected_gpus",
    Integers(),
    (),
    "GPUs of this rank, numbered within CUDA_VISIBLE_DEVICES; the launcher sets it on trainers",
)
CPU_DETERMINISTIC = _fluid(
    "FLAGS_cpu_deterministic",
    OnOff(),
    False,
    "gradients are summed in rank order, so that runs are reproducible",
)
CHECK_NAN_INF = _fluid(
    "FLAGS_check_nan_inf",
    OnOff(),
    False,
    "the first operator that writes NaN or infinity ends the job, with an error that names rank, "
    "step, operator and variable; read when a program is first run",
)
CUDNN_DETERMINISTIC = _fluid(
    "FLAGS_cudnn_deterministic",
    OnOff(),
    False,
    "same as FLAGS_cpu_deterministic",
)
FUSE_MEMORY = _fluid(
    "FLAGS_fuse_parameter_memory_size",
    Number(),
    -1.0,
    "size of a bucket of gradients that are summed together; 0: all in one, below 0: one per layer",
    "MiB",
)
FUSE_GROUPS = _fluid(
    "FLAGS_fuse_parameter_groups_size",
    Integer(1),
    1,
    "if above 1, a bucket with more gradients than this is full, too; only with "
    "FLAGS_fuse_parameter_memory_size above 0",
)
COMMUNICATOR_MERGE = _fluid(
    "FLAGS_communicator_max_merge_var_num",
    Integer(1),
    CPU_NUM,
    "how many gradients of a variable are merged into one before it is sent",
)
COMMUNICATOR_QUEUE = _fluid(
    "FLAGS_communicator_send_queue_size",
    Integer(1),
    CPU_NUM,
    "how many gradients of a variable may be queued or without a reply before a step waits",
)
COMMUNICATOR_RECV_AFTER = _fluid(
    "FLAGS_communicator_min_send_grad_num_before_recv",
    Integer(0),
    CPU_NUM,
    "how many gradients are sent before parameters are received again",
)
COMMUNICATOR_THREADS = _fluid(
    "FLAGS_communicator_thread_pool_size",
    Integer(1),
    5,
    "checked, but without effect: a rank sends from one thread",
)
COMMUNICATOR_EAGER = _fluid(
    "FLAGS_communicator_independent_recv_thread",
    OnOff(),
    True,
    "parameters are updated as soon as they arrive; false: only when the queue is full",
)
COMMUNICATOR_WAIT = _fluid(
    "FLAGS_communicator_send_wait_times",
    Integer(0),
    5,
    "longest wait for more gradients to merge",
    "10 ms",
)
COMMUNICATOR_SUM = _fluid(
    "FLAGS_communicator_is_sgd_optimizer",
    OnOff(),
    True,
    "merged gradients are summed; false: averaged",
)

OBEYED = tuple(value for value in list(globals().values()) if isinstance(value, Setting))

# -- Fluid's, without effect -----------------------------------------------------------------------
_KIND_OF: dict[type, ValueKind[Any]] = {
    bool: OnOff(),
    int: Integer(0),
    float: Number(),
    str: Text(),
}
_IGNORED = {
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_conv_workspace_size_limit": 512,
    "FLAGS_cudnn_batchnorm_spatial_persistent": False,
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_enable_parallel_graph": False,
    "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0,
    "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_init_allocated_mem": False,
    "FLAGS_initial_cpu_memory_in_mb": 500,
    "FLAGS_inner_op_parallelism": 0,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_paddle_num_threads": 1,
    "FLAGS_rpc_get_thread_num": 12,
    "FLAGS_rpc_prefetch_thread_num": 12,
    "FLAGS_rpc_retry_times": 3,
    "FLAGS_rpc_send_thread_num": 12,
    "FLAGS_sync_nccl_allreduce": True,
    "FLAGS_use_mkldnn": False,
    "FLAGS_use_ngraph": False,
    "FLAGS_use_pinned_memory": True,
    "FLAGS_use_system_allocator": False,
}
ACCEPTED = tuple(
    Setting(name, _KIND_OF[type(default)], default, "", group=Section.IGNORED)
    for name, default in _IGNORED.items()
)

__all__ = [
    "CHECK_NAN_INF",
    "COMMUNICATOR_EAGER",
    "COMMUNICATOR_MERGE",
    "COMMUNICATOR_QUEUE",
    "COMMUNICATOR_RECV_AFTER",
    "COMMUNICATOR_SUM",
    "COMMUNICATOR_THREADS",
    "COMMUNICATOR_WAIT",
    "CPU_DETERMINISTIC",
    "CPU_NUM",
    "CUDNN_DETERMINISTIC",
    "FUSE_GROUPS",
    "FUSE_MEMORY",
    "RPC_DEADLINE",
    "SELECTED_GPUS",
    "WORKER_UPDATE_INTERVAL",
]

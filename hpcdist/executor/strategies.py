"""Fluid's settings of how a Program is executed on the devices of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from hpcdist.base.checks import Fields
from hpcdist.base.errors import GraphError


@dataclass
class BuildStrategy(Fields):
    """How Fluid would rewrite a Program for its devices, with its names and defaults.

    A trainer of parameter servers has one device and is compiled the same way whatever stands
    here; the values are kept for those that ask for them. ``sync_batch_norm``: trainers without
    servers take the moments of all their rows together.
    """

    class ReduceStrategy(Enum):
        """How gradients of several devices meet."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy(Enum):
        """What the loss's gradient starts from on each of several devices."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2

    async_mode: bool = False
    cache_runtime_context: bool = False
    debug_graphviz_path: str = ""
    enable_auto_fusion: bool = False
    enable_backward_optimizer_op_deps: bool = True
    enable_inplace: bool = True
    enable_sequential_execution: bool = False
    fuse_all_optimizer_ops: bool = False
    fuse_all_reduce_ops: bool = True
    fuse_bn_act_ops: bool = False
    fuse_broadcast_ops: bool = True
    fuse_elewise_add_act_ops: bool = False
    fuse_relu_depthwise_conv: bool = False
    gradient_scale_strategy: GradientScaleStrategy = GradientScaleStrategy.CoeffNumDevice
    hierarchical_allreduce_inter_nranks: int = 0
    is_distribution: bool = False
    memory_optimize: bool | None = None
    mkldnn_enabled_op_types: set[str] = field(default_factory=set)
    nccl_comm_num: int = 1
    num_trainers: int = 1
    reduce_strategy: ReduceStrategy = ReduceStrategy.AllReduce
    remove_unnecessary_lock: bool = True
    sync_batch_norm: bool = False
    trainer_id: int = 0
    trainers_endpoints: list[str] = field(default_factory=list)
    use_hierarchical_allreduce: bool = False


@dataclass
class ExecutionStrategy(Fields):
    """How Fluid would schedule operators on threads; here one thread runs a list of calls."""

    allow_op_delay: bool = False
    num_iteration_per_drop_scope: int = 100
    num_iteration_per_run: int = 1
    num_threads: int = 0
    use_cuda: bool = True
    use_experimental_executor: bool = True
    use_thread_barrier: bool = False

    def __setattr__(self, name: str, value: object) -> None:
        if name == "num_iteration_per_run" and value != 1:
            raise GraphError(
                f"num_iteration_per_run: each Executor.run is one step here, got {value!r}"
            )
        super().__setattr__(name, value)

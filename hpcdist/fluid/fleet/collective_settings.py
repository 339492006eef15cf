"""Collective settings of the strategies of both generations, and the plan made from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdist.base.errors import FleetError
from hpcdist.comm.bucket import Fusing
from hpcdist.executor import control
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.fluid.fleet.role_maker import RoleMakerBase
from hpcdist.fluid.optimizer import AnyOptimizer, RecomputeOptimizer
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.variable import Variable
from hpcdist.runtime.job.program_job import ProgramJob
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from hpcdist.transpiler.group import required_group
from hpcdist.transpiler.sync_batch_norm import synchronize_batch_norm

logger = logging.getLogger("hpcdist.fleet")


def _as_it_is(optimizer: AnyOptimizer) -> AnyOptimizer:
    return optimizer


@dataclass(frozen=True)
class CollectiveSettings:
    """How workers without servers train.

    ``mode`` is nccl2, grad_allreduce or local_sgd. ``fusing`` None: as the FLAGS_ say.
    ``k_steps`` and ``begin_step`` say in which steps local SGD averages, as in `Group`.
    With ``adaptive`` the loss decides, and ``k_steps`` is where it begins.
    ``sharded`` divides the state of the optimizer among workers.
    With ``pipelined`` the optimizer has said where the program is cut into stages.
    ``exchanged`` returns the optimizer that takes the place of the given one.
    """

    mode: str = "nccl2"
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    fused: bool = True
    fusing: Fusing | None = None
    build_strategy: BuildStrategy = field(default_factory=BuildStrategy)
    execution_strategy: ExecutionStrategy = field(default_factory=ExecutionStrategy)
    exchanged: Callable[[AnyOptimizer], AnyOptimizer] = _as_it_is
    k_steps: int = 1
    begin_step: int = 1
    adaptive: bool = False
    sharded: bool = False
    pipelined: bool = False


def plan_collective(
    loss: Variable, startup: Program, settings: CollectiveSettings, role_maker: RoleMakerBase
) -> CompiledProgram | Program:
    """Transpile in place for these workers; return what is run as main program. Collective.

    A worker alone trains alone.
    """
    main = program_of(loss)
    if settings.pipelined:
        return main  # as that of a plain script: the job gives each rank its stage
    if role_maker.worker_num() > 1:
        config = _config(_on_one_node(settings, role_maker))
        if settings.build_strategy.sync_batch_norm and settings.mode != "nccl2":
            synchronize_batch_norm(main.global_block())  # otherwise the CompiledProgram does it
        names = role_maker.get_trainer_endpoints()
        DistributeTranspiler(config).transpile(
            role_maker.worker_index(),
            program=main,
            startup_program=startup,
            trainers=",".join(names),
            current_endpoint=names[role_maker.worker_index()],
        )
        main.distribution = replace(
            required_group(main),
            fused=settings.fused,
            fusing=settings.fusing,
            k_steps=settings.k_steps,
            begin_step=settings.begin_step,
            adapts_to=loss.name if settings.adaptive else "",
            sharded=settings.sharded,
        )
        startup.distribution = main.distribution
    if settings.mode != "nccl2":
        return main
    build = replace(
        settings.build_strategy,
        num_trainers=role_maker.worker_num(),
        trainer_id=role_maker.worker_index(),
        trainers_endpoints=role_maker.get_trainer_endpoints(),
        fuse_all_reduce_ops=settings.fused,
    )
    return CompiledProgram(main).with_data_parallel(loss.name, build, settings.execution_strategy)


def _config(settings: CollectiveSettings) -> DistributeTranspilerConfig:
    nccl2 = settings.mode == "nccl2"
    return DistributeTranspilerConfig(
        mode="nccl2" if nccl2 else "collective",
        collective_mode=None if nccl2 else settings.mode,
        nccl_comm_num=settings.nccl_comm_num,
        use_hierarchical_allreduce=settings.use_hierarchical_allreduce,
        hierarchical_allreduce_inter_nranks=settings.hierarchical_allreduce_inter_nranks,
    )


def _on_one_node(settings: CollectiveSettings, role_maker: RoleMakerBase) -> CollectiveSettings:
    """Return settings that need one communicator and one level where all workers share a host."""
    more = settings.nccl_comm_num > 1 or settings.use_hierarchical_allreduce
    if not more or _node_count(role_maker) > 1:
        return settings
    if role_maker.worker_index() == 0:
        logger.warning("one node: set nccl_comm_num=1 and use_hierarchical_allreduce=False")
    return replace(settings, nccl_comm_num=1, use_hierarchical_allreduce=False)


def _node_count(role_maker: RoleMakerBase) -> int:
    """Return on how many hosts the workers are; outside a job their endpoints say it."""
    job = control.installed()
    if isinstance(job, ProgramJob):
        return job.node_count()
    return len({name.rsplit(":", 1)[0] for name in role_maker.get_trainer_endpoints()})


def recomputing(optimizer: AnyOptimizer, checkpoints: Sequence[Any]) -> AnyOptimizer:
    """Return an optimizer that computes again what lies between checkpoints."""
    if not checkpoints:
        raise FleetError(
            "recompute needs checkpoints, the outputs of some layers: set "
            'recompute_configs = {"checkpoints": [...]} (fleet 1.8: recompute_checkpoints)'
        )
    wrapped = RecomputeOptimizer(optimizer)
    wrapped._set_checkpoints(checkpoints)
    return wrapped


def refuse(field_name: str, reason: str) -> FleetError:
    """Return the error about a field that is set, but not built."""
    return FleetError(f"DistributedStrategy.{field_name} is not supported: {reason}")

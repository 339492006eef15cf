"""Checks of a script's roles, strategies and saving against the running job."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import FleetError, FleetTypeError
from hpcdist.comm.cluster import PSERVER
from hpcdist.executor import control
from hpcdist.executor.executor import Executor
from hpcdist.fluid.fleet.collective_settings import CollectiveSettings
from hpcdist.fluid.fleet.role_maker import RoleMakerBase
from hpcdist.fluid.fleet.strategy import DistributedStrategy, SyncStrategy, strategy_of
from hpcdist.fluid.fleet.strategy_v2 import DistributedStrategy as DistributedStrategyV2
from hpcdist.graph.program import Program
from hpcdist.runtime.job.program_job import ProgramJob
from hpcdist.transpiler import (
    DistributeTranspilerConfig,
)


def collective_settings(strategy: object) -> CollectiveSettings:
    """Return the settings that `distributed_optimizer` was given for training without servers."""
    chosen = DistributedStrategyV2() if strategy is None else strategy
    if not isinstance(strategy, DistributedStrategy) and hasattr(chosen, "collective"):
        settings = chosen.collective()
        if isinstance(settings, CollectiveSettings):
            return settings
    raise FleetTypeError(
        "strategy: without servers expected fleet.DistributedStrategy(), or that of "
        f"fleet.collective, got {strategy!r}"
    )


def checked_strategy(strategy: object) -> DistributedStrategy:
    """Return the strategy that `distributed_optimizer` was given in one of several forms."""
    if strategy is None:
        return SyncStrategy()
    if isinstance(strategy, DistributeTranspilerConfig):
        return strategy_of(strategy)
    if isinstance(strategy, DistributedStrategyV2):
        return strategy.parameter_server()
    if isinstance(strategy, DistributedStrategy):
        return strategy
    raise FleetTypeError(
        "strategy: expected a strategy of StrategyFactory or a DistributeTranspilerConfig, "
        f"got {strategy!r}"
    )


def endpoints_of(role_maker: RoleMakerBase) -> list[str]:
    """Return the servers' names as this job knows them."""
    job = _job()
    return list(job.cluster.endpoints) if job else role_maker.get_pserver_endpoints()


def _job() -> ProgramJob | None:
    """Return the job that this process is a rank of, if any."""
    installed = control.installed()
    return installed if isinstance(installed, ProgramJob) else None


def check_against_job(role_maker: RoleMakerBase) -> None:
    """Refuse a role maker that contradicts the launcher."""
    job = _job()
    if job is None:
        return
    serves = job.role.kind == PSERVER
    cluster = job.cluster
    actual = (serves, job.role.index, len(cluster.trainers), len(cluster.servers))
    servers = role_maker.get_pserver_endpoints()
    declared = (
        role_maker.is_server(),
        role_maker.worker_index(),
        role_maker.worker_num(),
        len(servers),
    )
    if actual != declared:
        raise FleetError(
            f"this rank is {_described(*actual)}, but the role maker says {_described(*declared)}: "
            "use PaddleCloudRoleMaker(), or start the job with other --pservers or --role-map"
        )


def _described(serves: bool, index: int, workers: int, servers: int) -> str:
    return f"{'server' if serves else 'worker'} {index} of {workers} workers and {servers} servers"


def check_saving(call: str, executor: object, program: object) -> None:
    """Refuse what fleet cannot save with, or save."""
    if not isinstance(executor, Executor):
        raise FleetTypeError(f"{call}: executor must be an Executor, got {executor!r}")
    if not isinstance(program, Program):
        raise FleetTypeError(f"{call}: main_program must be a Program, got {program!r}")


WHOLE, BATCH = 0, 3  # Paddle's numbers of what of a model is saved: all; all, at the end of a day
DELTA, BASE = 1, 2
CHOSEN = (DELTA, BASE)  # deltas and bases to be looked up: rows that are shown often


def check_mode(call: str, mode: int, known: Sequence[int] = (WHOLE, BATCH)) -> None:
    """Refuse numbers that say to save or load something else than this call does."""
    if mode not in known:
        raise FleetError(
            f"{call}: mode {mode!r}: expected one of {', '.join(map(str, known))}: everything (0, "
            "3); save_inference_model also saves the rows that are shown often (1, 2)"
        )

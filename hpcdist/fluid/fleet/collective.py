"""Fluid 1.8's fleet for collective training: ``fluid.incubate.fleet.collective``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hpcdist.base.errors import FleetError
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.fluid.fleet.collective_settings import CollectiveSettings, recomputing, refuse
from hpcdist.fluid.fleet.fleet_base import Fleet
from hpcdist.fluid.fleet.optimizer import DistributedOptimizer
from hpcdist.fluid.fleet.role_maker import PaddleCloudRoleMaker, RoleMakerBase
from hpcdist.fluid.optimizer import AnyOptimizer
from hpcdist.fluid.optimizer.mixed_precision import decorate

MODES = ("nccl2", "collective")
COLLECTIVE_MODES = (None, "local_sgd", "grad_allreduce")


class LambConfig:
    """Settings of Lamb: there are none."""


class DistFCConfig:
    """Settings of a classifier that is divided among workers, which is not built."""


@dataclass
class DistributedStrategy(BuildStrategy):
    """A BuildStrategy with the fields of collective training.

    Fields of what is not built refuse when it is used, never silently.
    """

    use_local_sgd: bool = False
    use_dist_fc: bool = False
    dist_fc_config: Any = None
    mode: str = "nccl2"
    collective_mode: str | None = None
    forward_recompute: bool = False
    recompute_checkpoints: list[Any] = field(default_factory=list)
    use_amp: bool = False
    amp_loss_scaling: float = 2.0**15
    exec_strategy: ExecutionStrategy = field(default_factory=ExecutionStrategy)

    def collective(self) -> CollectiveSettings:
        """Return the settings it asks for; FleetError for missing features or contradictions."""
        for name, why in (("use_dist_fc", "every worker keeps all parameters"),):
            if getattr(self, name):
                raise refuse(name, why)
        if self.mode not in MODES or self.collective_mode not in COLLECTIVE_MODES:
            raise FleetError(
                f"mode must be one of {MODES} and collective_mode one of {COLLECTIVE_MODES}, "
                f"got {self.mode!r} and {self.collective_mode!r}"
            )
        mode = "local_sgd" if self.use_local_sgd else self.collective_mode
        if mode is not None and self.mode != "collective" and not self.use_local_sgd:
            raise FleetError(f"collective_mode {mode!r} needs mode 'collective', got {self.mode!r}")
        if mode is None and self.mode == "collective":
            raise FleetError("mode 'collective' needs a collective_mode")
        return CollectiveSettings(
            mode or "nccl2",
            self.nccl_comm_num,
            self.use_hierarchical_allreduce,
            self.hierarchical_allreduce_inter_nranks,
            self.fuse_all_reduce_ops,
            None,
            BuildStrategy(
                gradient_scale_strategy=self.gradient_scale_strategy,
                reduce_strategy=self.reduce_strategy,
                sync_batch_norm=self.sync_batch_norm,
            ),
            self.exec_strategy,
            self.wrapped,
        )

    def wrapped(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        """Wrap the given optimizer as the strategy asks."""
        if self.forward_recompute:
            optimizer = recomputing(optimizer, self.recompute_checkpoints)
        if self.use_amp:
            optimizer = decorate(optimizer, init_loss_scaling=self.amp_loss_scaling)
        return optimizer


class Collective(Fleet):
    """Fleet without servers; its `main_program` is a CompiledProgram."""

    def init(
        self,
        role_maker: RoleMakerBase | None = None,
        is_collective: bool = True,
        strategy: Any = None,
        log_level: int | str = "INFO",
    ) -> None:
        """Say which worker this is; without a role maker the environment says it."""
        maker = role_maker or PaddleCloudRoleMaker(is_collective=True)
        super().init(maker, is_collective=True, strategy=strategy, log_level=log_level)

    def distributed_optimizer(
        self, optimizer: AnyOptimizer, strategy: Any = None
    ) -> DistributedOptimizer:
        """As `Fleet.distributed_optimizer`; without any strategy, this generation's defaults."""
        chosen = self._strategy if strategy is None else strategy
        return super().distributed_optimizer(
            optimizer, DistributedStrategy() if chosen is None else chosen
        )


fleet = Collective()


class CollectiveOptimizer(DistributedOptimizer):
    """What ``fleet.distributed_optimizer`` returns, made directly."""

    def __init__(
        self, optimizer: AnyOptimizer, strategy: DistributedStrategy | None = None
    ) -> None:
        distributed = fleet.distributed_optimizer(optimizer, strategy)
        super().__init__(distributed._optimizer, distributed._distribute)


__all__ = [
    "Collective",
    "CollectiveOptimizer",
    "DistFCConfig",
    "DistributedStrategy",
    "LambConfig",
    "fleet",
]

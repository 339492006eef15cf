"""The strategy of fleet 2.0: one object with a switch for each way to train."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from hpcdist.base.checks import FLEET, integer, no_field
from hpcdist.base.errors import FleetError, FleetTypeError
from hpcdist.base.warned import warn
from hpcdist.comm.bucket import Fusing
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.fluid.fleet.collective_settings import CollectiveSettings, recomputing, refuse
from hpcdist.fluid.fleet.strategy import DistributedStrategy as ParameterServerStrategy
from hpcdist.fluid.fleet.strategy import StrategyFactory
from hpcdist.fluid.fleet.strategy_fields import (
    A_SYNC,
    AMP,
    COLLECTIVE,
    DEFAULTS,
    FLAGS,
    REFUSED,
    checked,
)
from hpcdist.fluid.fleet.table_settings import TABLE_FIELDS, check_tables
from hpcdist.fluid.optimizer import (
    AdamOptimizer,
    AnyOptimizer,
    DGCMomentumOptimizer,
    GradientMergeOptimizer,
    LambOptimizer,
    LarsMomentumOptimizer,
    MomentumOptimizer,
    PipelineOptimizer,
)
from hpcdist.fluid.optimizer.kinds import UnbiasedLamb
from hpcdist.fluid.optimizer.mixed_precision import AutoMixedPrecisionLists, decorate, decorate_bf16

_CUSTOM = ("white_list", "black_list", "black_varnames")


class DistributedStrategy:
    """Settings for training with servers (``a_sync``) and without (all others).

    Fields of fleet 1.8's collective strategy are there too. Switching on what is not built raises
    FleetError at once. With servers: ``a_sync`` False is synchronous, True asynchronous, True with
    ``a_sync_configs["k_steps"]`` > 0 exchanges differences every ``k_steps``. As in Paddle, True
    is the default; where ``fleet.init(is_collective=True)`` was called it has no meaning.
    """

    def __init__(self) -> None:
        self._a_sync = True
        self._configs: dict[str, Any] = {}  # of a_sync_configs, those that were changed
        self._values: dict[str, Any] = copy.deepcopy(DEFAULTS)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._values:
            value = self._values[name]
            return copy.deepcopy(value) if isinstance(value, dict) else value
        raise AttributeError(f"DistributedStrategy has no field {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("a_sync", "a_sync_configs"):
            super().__setattr__(name, value)
            return
        if name not in DEFAULTS:
            fields = [*DEFAULTS, "a_sync", "a_sync_configs"]
            raise FleetTypeError(no_field("DistributedStrategy", name, fields))
        if name in REFUSED and value:
            raise refuse(name, REFUSED[name])
        if name in TABLE_FIELDS:
            check_tables(name, value)
        self._values[name] = checked(name, value, self._values[name])

    @property
    def a_sync(self) -> bool:
        """Whether servers apply gradients as they arrive; setting it resets ``k_steps``."""
        return self._a_sync

    @a_sync.setter
    def a_sync(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise FleetError(f"a_sync: expected True or False, got {value!r}")
        self._a_sync = value
        self._configs.pop("k_steps", None)

    @property
    def a_sync_configs(self) -> dict[str, Any]:
        """The settings of asynchronous training; a dict that is set changes those it names."""
        return {**A_SYNC, **self._configs}

    @a_sync_configs.setter
    def a_sync_configs(self, configs: dict[str, Any]) -> None:
        shown = self.a_sync_configs
        configs = checked("a_sync_configs", configs, shown)
        for name in ("k_steps", *FLAGS):
            if not isinstance(configs[name], int) or configs[name] < 0:
                raise FleetError(
                    f"a_sync_configs[{name!r}]: expected 0 or more, got {configs[name]!r}"
                )
        # What is shown but was never set may be set by FLAGS_communicator_*.
        self._configs.update({n: value for n, value in configs.items() if value != shown[n]})

    def parameter_server(self) -> ParameterServerStrategy:
        """Return the same way to train as fleet 1.8 describes it."""
        changed = [n for n in COLLECTIVE if self._values[n] != COLLECTIVE[n]]
        if changed:
            raise FleetError(
                f"DistributedStrategy.{changed[0]} is for training without servers: call "
                "fleet.init(is_collective=True), and start the job without --pservers"
            )
        steps = self.a_sync_configs["k_steps"]
        if not self._a_sync and steps:
            raise FleetError(f"a_sync_configs['k_steps'] is {steps}: that needs a_sync = True")
        strategy: ParameterServerStrategy
        if not self._a_sync:
            strategy = StrategyFactory.create_sync_strategy()
        elif steps:
            strategy = StrategyFactory.create_geo_strategy(steps)
        else:
            strategy = StrategyFactory.create_async_strategy()
        flags = {FLAGS[n]: int(value) for n, value in self._configs.items() if n in FLAGS}
        strategy.set_trainer_runtime_config(flags)
        return strategy

    def collective(self) -> CollectiveSettings:
        """Return the settings for training without servers."""
        adaptive = self.adaptive_localsgd
        local = self.localsgd or self.use_local_sgd or adaptive
        mode = "local_sgd" if local else self.collective_mode or "nccl2"
        configs = "adaptive_localsgd_configs" if adaptive else "localsgd_configs"
        often = getattr(self, configs) if local else {}
        for name, steps in often.items():
            integer(f"{configs}[{name!r}]", steps, 1, errors=FLEET)
        if adaptive:
            often = {"k_steps": often["init_k_steps"], "begin_step": often["begin_step"]}
        if self.lars + self.lamb + self.dgc > 1:
            raise FleetError("lars, lamb and dgc exclude each other: each replaces the optimizer")
        if mode == "local_sgd" and self.sharding:
            raise FleetError(
                "sharding and local SGD exclude each other: workers that update by themselves need "
                "all of the optimizer's state"
            )
        if self.pipeline:
            self._refuse_beside_pipeline(mode)
        build = self.build_strategy or BuildStrategy()
        build = replace(build, sync_batch_norm=self.sync_batch_norm or build.sync_batch_norm)
        return CollectiveSettings(
            mode,
            self.nccl_comm_num,
            self.use_hierarchical_allreduce,
            self.hierarchical_allreduce_inter_nranks,
            self.fuse_all_reduce_ops,
            Fusing(float(self.fuse_grad_size_in_MB), int(self.fuse_grad_size_in_TFLOPS)),
            build,
            self.execution_strategy or self.exec_strategy or ExecutionStrategy(),
            self.wrapped,
            adaptive=adaptive,
            sharded=self.sharding,
            pipelined=self.pipeline,
            **often,
        )

    def _refuse_beside_pipeline(self, mode: str) -> None:
        """Raise FleetError for what a pipeline cannot be combined with."""
        beside = {
            "local SGD": mode == "local_sgd",
            "sharding": self.sharding,
            "amp": self.amp or self.use_amp,
            "recompute": self.recompute or self.forward_recompute,
            "gradient_merge": self.gradient_merge,
            "dgc": self.dgc,
        }
        for name, is_set in beside.items():
            if is_set:
                raise FleetError(f"pipeline cannot be combined with {name}: leave one of them out")

    def wrapped(self, optimizer: AnyOptimizer, servers: bool = False) -> AnyOptimizer:
        """Replace or wrap the given optimizer as the strategy asks, in jobs with ``servers`` too.

        There ``amp`` in float16 has no effect but a warning, as in Paddle 2.6.2 without one.
        """
        given = optimizer
        if self.lars:
            optimizer = _lars(optimizer, self.lars_configs)
        elif self.lamb:
            optimizer = _lamb(optimizer, self.lamb_configs)
        elif self.dgc:
            optimizer = _dgc(optimizer, self.dgc_configs)
        if optimizer is not given and (follow := getattr(given, "let_follow", None)):
            follow(optimizer)
        if self.recompute or self.forward_recompute:
            chosen = self.recompute_configs["checkpoints"] or self.recompute_checkpoints
            optimizer = recomputing(optimizer, chosen)
        if servers and (self.use_amp or (self.amp and self.amp_configs["dtype"] == "float16")):
            warn(
                "strategy.amp: with parameter servers Paddle 2.6.2 leaves it out, and so it trains "
                "in float32 here: amp_configs = {'dtype': 'bfloat16'} computes in half precision"
            )
        elif self.amp:
            optimizer = _amp(optimizer, self.amp_configs)
        elif self.use_amp:
            optimizer = decorate(optimizer, init_loss_scaling=self.amp_loss_scaling)
        if self.gradient_merge:
            optimizer = GradientMergeOptimizer(optimizer, **self.gradient_merge_configs)
        if self.pipeline:
            optimizer = _pipeline(optimizer, self.pipeline_configs)
        return optimizer


def _pipeline(optimizer: AnyOptimizer, settings: dict[str, Any]) -> AnyOptimizer:
    numbers = {
        n: integer(f"pipeline_configs[{n!r}]", settings[n], 1, errors=FLEET) for n in settings
    }
    different = {number for number in numbers.values() if number > 1}
    if len(different) > 1:
        raise FleetError(
            f"pipeline_configs: micro_batch and accumulate_steps both say into how many parts a "
            f"worker cuts its rows: set one of them, got {numbers}"
        )
    if isinstance(optimizer, PipelineOptimizer):
        raise FleetError(
            "pipeline: the optimizer is a PipelineOptimizer already: leave strategy.pipeline out"
        )
    return PipelineOptimizer(optimizer, num_microbatches=max(numbers.values()))


def _lars(optimizer: AnyOptimizer, settings: dict[str, Any]) -> AnyOptimizer:
    if not isinstance(optimizer, MomentumOptimizer):
        raise FleetError(f"lars expects a Momentum optimizer, got {type(optimizer).__name__}")
    if settings["exclude_from_weight_decay"] or settings["epsilon"]:
        raise refuse("lars_configs", "of these only lars_coeff and lars_weight_decay are")
    return LarsMomentumOptimizer(
        optimizer.learning_rate,
        optimizer.attrs["mu"],
        settings["lars_coeff"],
        settings["lars_weight_decay"],
        optimizer.parameter_list,
        optimizer.regularization,
        optimizer.grad_clip,
        optimizer.name,
    )


def _amp(optimizer: AnyOptimizer, settings: dict[str, Any]) -> AnyOptimizer:
    lists = AutoMixedPrecisionLists(*(settings.pop(f"custom_{kind}") for kind in _CUSTOM))
    dtype = settings.pop("dtype")
    if dtype == "float16":
        return decorate(optimizer, lists, **settings)
    if dtype != "bfloat16":
        raise FleetError(f"amp_configs['dtype']: expected 'float16' or 'bfloat16', got {dtype!r}")
    scaled = [name for name, value in settings.items() if value != AMP[name]]
    if scaled:
        raise FleetError(
            f"amp_configs[{scaled[0]!r}]: with dtype 'bfloat16' the loss is not scaled, so leave "
            "it out"
        )
    return decorate_bf16(optimizer, lists)


def _dgc(optimizer: AnyOptimizer, settings: dict[str, Any]) -> AnyOptimizer:
    if not isinstance(optimizer, MomentumOptimizer) or optimizer.type != "momentum":
        raise FleetError(f"dgc expects a Momentum optimizer, got {type(optimizer).__name__}")
    if optimizer.grad_clip is not None:
        raise FleetError(
            "dgc clips on each worker, by its part of the norm: minimize with DGCMomentumOptimizer "
            "and its num_trainers instead of strategy.dgc"
        )
    return DGCMomentumOptimizer(
        optimizer.learning_rate,
        optimizer.attrs["mu"],
        **settings,
        parameter_list=optimizer.parameter_list,
        use_nesterov=optimizer.attrs["use_nesterov"],
        regularization=optimizer.regularization,
        name=optimizer.name,
    )


def _lamb(optimizer: AnyOptimizer, settings: dict[str, Any]) -> AnyOptimizer:
    if not (isinstance(optimizer, AdamOptimizer) and optimizer.type == "adam"):
        raise FleetError(f"lamb expects an Adam optimizer, got {type(optimizer).__name__}")
    parts = tuple(settings["exclude_from_weight_decay"])
    kind = UnbiasedLamb if optimizer.attrs.get("scaled_epsilon") else LambOptimizer  # Paddle 2's
    return kind(
        optimizer.learning_rate,
        settings["lamb_weight_decay"],
        optimizer.attrs["beta1"],
        optimizer.attrs["beta2"],
        optimizer.attrs["epsilon"],
        optimizer.parameter_list,
        optimizer.regularization,
        optimizer.grad_clip,
        lambda parameter: any(part in parameter.name for part in parts),
        optimizer.name,
    )

"""Ways to train with parameter servers, as Fluid 1.8's strategies describe them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from hpcdist.base import settings
from hpcdist.base.checks import FLEET, Refused, integer
from hpcdist.base.errors import FleetError, FleetNotImplementedError, FleetTypeError
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.fluid.fleet.trainer_config import TrainerRuntimeConfig
from hpcdist.transpiler import (
    DistributedMode,
    DistributeTranspilerConfig,
    ServerRuntimeConfig,
)

Config = TypeVar("Config")


_DUMPS = "nothing dumps what a step computes: fetch it, docs/observing.md says what is recorded"


class DistributedStrategy:
    """The settings of one way to train; StrategyFactory makes them.

    Setters take an object of the setting's class or a dict; a dict with an unknown key changes
    nothing. What makes a strategy what it is (``program_facts``) holds whatever was set.
    """

    mode: ClassVar[DistributedMode]
    program_facts: ClassVar[Mapping[str, bool]]
    joint: ClassVar[bool] = False  # a trainer's threads meet at a barrier

    get_debug_opt = Refused(_DUMPS)
    set_debug_opt = Refused(_DUMPS)

    def __init__(self) -> None:
        self._program_config = DistributeTranspilerConfig()
        self._trainer_runtime_config = TrainerRuntimeConfig()
        self._server_runtime_config = ServerRuntimeConfig()
        self._execute_strategy = ExecutionStrategy(num_threads=settings.CPU_NUM.read())
        self._build_strategy = BuildStrategy()
        if settings.CPU_NUM.read() > 1:
            self._build_strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
        if type(self) is not DistributedStrategy:
            self._hold()

    def transpiler_config(self) -> DistributeTranspilerConfig:
        """Return the transpiler's config for this way to train."""
        return copy.copy(self._program_config)

    def _hold(self) -> None:
        """Make the settings say which way this is."""
        if type(self) is DistributedStrategy:
            raise FleetNotImplementedError(
                "DistributedStrategy is only the base class: get a strategy from StrategyFactory"
            )
        for name, value in self.program_facts.items():
            setattr(self._program_config, name, value)
        self._trainer_runtime_config.mode = self.mode
        self._build_strategy.async_mode = True
        if self.joint:
            self._execute_strategy.use_thread_barrier = True

    def set_communicator_flags(self) -> None:
        """Make the settings of a communicator, where one runs, this process's FLAGS_."""
        flags = self._trainer_runtime_config.get_communicator_flags()
        if self.mode != DistributedMode.SYNC:
            for name, text in flags.items():
                flag = settings.flag(f"FLAGS_{name}")
                flag.write(flag.parse(text))

    # -- settings ----------------------------------------------------------------------------
    def get_program_config(self) -> DistributeTranspilerConfig:
        """Return the settings of the transpiler."""
        return self._program_config

    def set_program_config(self, config: DistributeTranspilerConfig | dict[str, Any]) -> None:
        """Set, or change, the settings of the transpiler."""
        self._program_config = _changed("program_config", self._program_config, config)
        self._hold()

    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        """Return the settings of a trainer's communicator."""
        return self._trainer_runtime_config

    def set_trainer_runtime_config(self, config: TrainerRuntimeConfig | dict[str, Any]) -> None:
        """Set, or change, the settings of a trainer's communicator."""
        if isinstance(config, dict):
            configs = self._trainer_runtime_config.runtime_configs
            _check_keys("TrainerRuntimeConfig", config, configs)
            configs.update({name: str(value) for name, value in config.items()})
        else:
            current = self._trainer_runtime_config
            self._trainer_runtime_config = _changed("trainer_runtime_config", current, config)
        self._hold()

    def get_server_runtime_config(self) -> ServerRuntimeConfig:
        """Return the settings of servers."""
        return self._server_runtime_config

    def set_server_runtime_config(self, config: ServerRuntimeConfig | dict[str, Any]) -> None:
        """Set, or change, the settings of servers."""
        current = self._server_runtime_config
        self._server_runtime_config = _changed("server_runtime_config", current, config)
        self._hold()

    def get_build_strategy(self) -> BuildStrategy:
        """Return how a trainer's program is built."""
        return self._build_strategy

    def set_build_strategy(self, config: BuildStrategy | dict[str, Any]) -> None:
        """Set, or change, how a trainer's program is built."""
        self._build_strategy = _changed("build_strategy", self._build_strategy, config)
        self._hold()

    def get_execute_strategy(self) -> ExecutionStrategy:
        """Return how a trainer's program is executed."""
        return self._execute_strategy

    def set_execute_strategy(self, config: ExecutionStrategy | dict[str, Any]) -> None:
        """Set, or change, how a trainer's program is executed."""
        self._execute_strategy = _changed("execute_strategy", self._execute_strategy, config)
        self._hold()


class SyncStrategy(DistributedStrategy):
    """All trainers' gradients of a step are averaged, then all read the same parameters."""

    mode = DistributedMode.SYNC
    joint = True
    program_facts: ClassVar[Mapping[str, bool]] = {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
        "completely_not_async": True,
    }

    def transpiler_config(self) -> DistributeTranspilerConfig:
        """Return the settings of the transpiler's own synchronous mode.

        Fluid runs this strategy in its communicator; its barriers make of that the same training,
        number for number, with more copies and threads.
        """
        config = super().transpiler_config()
        for name in self.program_facts:
            setattr(config, name, False)
        config.sync_mode = True
        return config


class AsyncStrategy(DistributedStrategy):
    """Each trainer's gradients are queued, merged, and applied as they arrive."""

    mode = DistributedMode.ASYNC
    program_facts: ClassVar[Mapping[str, bool]] = {
        "sync_mode": False,
        "runtime_split_send_recv": True,
    }


class HalfAsyncStrategy(DistributedStrategy):
    """As asynchronous, but the threads of one trainer average among themselves."""

    mode = DistributedMode.HALF_ASYNC
    joint = True
    program_facts: ClassVar[Mapping[str, bool]] = {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
    }


class GeoStrategy(DistributedStrategy):
    """Trainers update by themselves and exchange differences every ``update_frequency`` steps."""

    mode = DistributedMode.GEO
    program_facts: ClassVar[Mapping[str, bool]] = {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "geo_sgd_mode": True,
    }

    def __init__(self, update_frequency: int = 100) -> None:
        integer("update_frequency", update_frequency, 1, errors=FLEET)
        super().__init__()
        self._program_config.geo_sgd_need_push_nums = update_frequency


class StrategyFactory:
    """Makes the strategies.

    Examples:
        >>> from hpcdist.fleet import StrategyFactory
        >>> type(StrategyFactory.create_sync_strategy()).__name__
        'SyncStrategy'
    """

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        """Return synchronous training."""
        return SyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        """Return asynchronous training."""
        return AsyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        """Return half asynchronous training."""
        return HalfAsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        """Return training that exchanges differences every ``update_frequency`` steps."""
        return GeoStrategy(update_frequency)


def strategy_of(config: DistributeTranspilerConfig) -> DistributedStrategy:
    """Return the strategy that a transpiler's configuration describes, as Fluid reads it."""
    strategy: DistributedStrategy
    if config.sync_mode:
        strategy = SyncStrategy()
    elif config.geo_sgd_mode:
        strategy = GeoStrategy(config.geo_sgd_need_push_nums)
    elif config.runtime_split_send_recv and not config.half_async:
        strategy = AsyncStrategy()
    else:
        strategy = HalfAsyncStrategy()
    changed = copy.copy(config)
    changed.sync_mode = False
    strategy.set_program_config(changed)
    return strategy


def _changed(argument: str, current: Config, config: Any) -> Config:
    """Return the settings that were given, or the current ones changed by a dict."""
    if isinstance(config, type(current)):
        return config
    if not isinstance(config, dict):
        raise FleetTypeError(
            f"{argument}: expected a {type(current).__name__} or a dict, got {config!r}"
        )
    _check_keys(type(current).__name__, config, vars(current))
    for name, value in config.items():
        setattr(current, name, value)
    return current


def _check_keys(owner: str, keys: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    unknown = sorted(set(keys) - set(fields))
    if unknown:
        raise FleetError(f"{owner} has no key {', '.join(map(repr, unknown))}")

"""The strategy of fleet 2.0: one object with a switch for each way to train."""

from __future__ import annotations

from typing import Any

from hpcdist.errors import FleetError, FleetTypeError
from hpcdist.fleet.strategy import DistributedStrategy as ParameterServerStrategy
from hpcdist.fleet.strategy import StrategyFactory

# The keys of a_sync_configs that are the communicator's, with its names for them.
_FLAGS = {
    name: f"communicator_{name}"
    for name in (
        "max_merge_var_num",
        "send_queue_size",
        "independent_recv_thread",
        "min_send_grad_num_before_recv",
        "thread_pool_size",
        "send_wait_times",
    )
}
_FIELDS = ("a_sync", "a_sync_configs")


class DistributedStrategy:
    """``a_sync`` and its settings; what else fleet 2.0 has is for collective mode.

    ``a_sync`` False is synchronous, True asynchronous, True with ``a_sync_configs["k_steps"]`` > 0
    exchanges differences every so many steps. As in Paddle, True is the default.
    """

    def __init__(self) -> None:
        self._a_sync = True
        self._configs: dict[str, int] = {"k_steps": 0}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in _FIELDS:
            raise FleetTypeError(
                f"DistributedStrategy.{name} is not available in this release: "
                f"parameter servers use {' and '.join(_FIELDS)}"
            )
        super().__setattr__(name, value)

    @property
    def a_sync(self) -> bool:
        """Whether servers apply gradients as they arrive; setting it resets ``k_steps``."""
        return self._a_sync

    @a_sync.setter
    def a_sync(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise FleetError(f"a_sync: expected True or False, got {value!r}")
        self._a_sync = value
        self._configs["k_steps"] = 0

    @property
    def a_sync_configs(self) -> dict[str, int]:
        """The settings of asynchronous training; a dict that is set changes those it names."""
        return dict(self._configs)

    @a_sync_configs.setter
    def a_sync_configs(self, configs: dict[str, int]) -> None:
        if not isinstance(configs, dict):
            raise FleetTypeError(f"a_sync_configs: expected a dict, got {configs!r}")
        unknown = sorted(set(configs) - {"k_steps", *_FLAGS})
        if unknown:
            raise FleetError(
                f"a_sync_configs has no key {', '.join(map(repr, unknown))}; "
                f"its keys are {', '.join(['k_steps', *_FLAGS])}"
            )
        for name, value in configs.items():
            if not isinstance(value, int) or value < 0:
                raise FleetError(f"a_sync_configs[{name!r}]: expected 0 or more, got {value!r}")
        self._configs.update(configs)

    def parameter_server(self) -> ParameterServerStrategy:
        """Return the same way to train as fleet 1.8 describes it."""
        steps = self._configs["k_steps"]
        if not self._a_sync and steps:
            raise FleetError(f"a_sync_configs['k_steps'] is {steps}: that needs a_sync = True")
        strategy: ParameterServerStrategy
        if not self._a_sync:
            strategy = StrategyFactory.create_sync_strategy()
        elif steps:
            strategy = StrategyFactory.create_geo_strategy(steps)
        else:
            strategy = StrategyFactory.create_async_strategy()
        flags = {_FLAGS[n]: int(value) for n, value in self._configs.items() if n in _FLAGS}
        strategy.set_trainer_runtime_config(flags)
        return strategy

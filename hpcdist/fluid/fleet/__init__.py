"""Fleet, the short way to distribute: ``from hpcdist.fleet import fleet``.

The module answers like the object too (``import hpcdist.fleet as fleet``), as fleet 2.0's does.
"""

from __future__ import annotations

from typing import Any

from hpcdist.fluid.fleet import file_systems as utils
from hpcdist.fluid.fleet import metrics
from hpcdist.fluid.fleet.fleet_base import Fleet
from hpcdist.fluid.fleet.job_util import UtilBase
from hpcdist.fluid.fleet.optimizer import DistributedOptimizer
from hpcdist.fluid.fleet.role_maker import (
    PaddleCloudRoleMaker,
    Role,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from hpcdist.fluid.fleet.strategy import StrategyFactory
from hpcdist.fluid.fleet.strategy_v2 import DistributedStrategy
from hpcdist.fluid.fleet.trainer_config import TrainerRuntimeConfig
from hpcdist.fluid.multi_slot.data_generator import (
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)
from hpcdist.fluid.multi_slot.datasets import DatasetBase, InMemoryDataset, QueueDataset

fleet = Fleet()


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name in dir(Fleet):
        return getattr(fleet, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DatasetBase",
    "DistributedOptimizer",
    "DistributedStrategy",
    "Fleet",
    "InMemoryDataset",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "PaddleCloudRoleMaker",
    "QueueDataset",
    "Role",
    "StrategyFactory",
    "TrainerRuntimeConfig",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
    "UtilBase",
    "fleet",
    "metrics",
    "utils",
]

"""What only serves Fluid's spelling: its module names, its launchers' options, ``--as-paddle``."""

from __future__ import annotations

import importlib
import sys

from hpcdist import dataset, multi_slot

# Modules of Fluid's that scripts also import by name, beside the attributes of `hpcdist`.
FLUID_MODULES = (
    "average",
    "compiler",
    "core",
    "framework",
    "parallel_executor",
    "param_attr",
)


def install_fluid_modules() -> None:
    """Make the `FLUID_MODULES` importable under these names."""
    for name in FLUID_MODULES:
        sys.modules[f"hpcdist.{name}"] = importlib.import_module(f"{__name__}.{name}")
    for name in ("DatasetBase", "DatasetFactory", "InMemoryDataset", "QueueDataset"):
        setattr(dataset, name, getattr(multi_slot, name))  # beside the data sets of paddle.dataset

"""Fluid's Dataset: samples of several slots, from text files through pipe commands."""

from hpcdist.fluid.multi_slot.data_generator import (
    DataGenerator,
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)
from hpcdist.fluid.multi_slot.datasets import (
    DatasetBase,
    DatasetFactory,
    InMemoryDataset,
    QueueDataset,
)
from hpcdist.fluid.multi_slot.descriptions import DataFeedDesc

__all__ = [
    "DataFeedDesc",
    "DataGenerator",
    "DatasetBase",
    "DatasetFactory",
    "InMemoryDataset",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "QueueDataset",
]

"""Fluid's Dataset: samples of several slots, from text files through pipe commands."""

from hpcdist.multi_slot.data_generator import (
    DataGenerator,
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)
from hpcdist.multi_slot.datasets import (
    DatasetBase,
    DatasetFactory,
    InMemoryDataset,
    QueueDataset,
)
from hpcdist.multi_slot.descriptions import DataFeedDesc

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

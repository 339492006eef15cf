"""``paddle.distributed``: who this process is among the trainers, and files that they read."""

from hpcdist.base import settings
from hpcdist.fluid.compat.paddle2.entry_attr import (
    CountFilterEntry,
    ProbabilityEntry,
    ShowClickEntry,
)
from hpcdist.fluid.multi_slot.datasets import InMemoryDataset, QueueDataset

__all__ = [
    "CountFilterEntry",
    "InMemoryDataset",
    "ProbabilityEntry",
    "QueueDataset",
    "ShowClickEntry",
    "get_rank",
    "get_world_size",
]


def get_rank(group: None = None) -> int:
    """Return which trainer this process is; there are no groups."""
    return settings.TRAINER_ID.read()


def get_world_size(group: None = None) -> int:
    """Return how many trainers there are; there are no groups."""
    return settings.TRAINERS_NUM.read()

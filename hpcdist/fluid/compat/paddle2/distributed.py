"""``paddle.distributed``: who this process is among the trainers, and files that they read."""

from hpcdist.base import settings
from hpcdist.fluid.compat.paddle2 import collectives
from hpcdist.fluid.compat.paddle2.collectives import (  # noqa: F401 - names of this module
    ReduceOp,
    all_gather,
    all_reduce,
    alltoall,
    barrier,
    broadcast,
    reduce,
    reduce_scatter,
    scatter,
    wait,
)
from hpcdist.fluid.compat.paddle2.entry_attr import (
    CountFilterEntry,
    ProbabilityEntry,
    ShowClickEntry,
)
from hpcdist.fluid.multi_slot.datasets import InMemoryDataset, QueueDataset

__all__ = [
    "CountFilterEntry",
    "InMemoryDataset",
    "ParallelEnv",
    "ProbabilityEntry",
    "QueueDataset",
    "ShowClickEntry",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "is_available",
    "is_initialized",
    *collectives.__all__,
]


def get_rank(group: None = None) -> int:
    """Return which trainer this process is; there are no groups."""
    return settings.TRAINER_ID.read()


def get_world_size(group: None = None) -> int:
    """Return how many trainers there are; there are no groups."""
    return settings.TRAINERS_NUM.read()


class ParallelEnv:
    """Who this process is among the trainers, as the launcher has set it."""

    def __init__(self) -> None:
        self.rank = self.local_rank = get_rank()
        self.world_size = self.nranks = get_world_size()
        self.device_id = self.dev_id = 0  # the launcher shows each rank the device it is to use
        self.device_type = ""
        self.current_endpoint = settings.CURRENT_ENDPOINT.read()
        self.trainer_endpoints = settings.TRAINER_ENDPOINTS.read().split(",")


def init_parallel_env() -> None:
    """Do nothing: the launcher has joined the ranks of a job before the script begins."""


def is_available() -> bool:
    """Return True: that is what hpcdist is for."""
    return True


def is_initialized() -> bool:
    """Return whether there are other trainers."""
    return get_world_size() > 1

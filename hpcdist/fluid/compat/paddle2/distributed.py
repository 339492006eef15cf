"""``paddle.distributed``: who this process is among the trainers."""

from hpcdist.base import settings

__all__ = ["get_rank", "get_world_size"]


def get_rank() -> int:
    """Return which trainer this process is."""
    return settings.TRAINER_ID.read()


def get_world_size() -> int:
    """Return how many trainers there are."""
    return settings.TRAINERS_NUM.read()

"""``paddle.distributed``: who this process is among the trainers."""

import os

__all__ = ["get_rank", "get_world_size"]


def get_rank() -> int:
    """Return which trainer this process is."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def get_world_size() -> int:
    """Return how many trainers there are."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))

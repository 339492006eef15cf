"""Layers of ResNet-50, MobileNet and LeNet whose time conv.py compares."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SECONDS = 0.3  # each measurement goes on for so long


@dataclass(frozen=True)
class Layer:
    """A convolution, or a max pool or batch_norm, of square images."""

    kind: str
    images: int
    channels: int
    extent: int
    filters: int = 0
    size: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1


LAYERS = {
    "resnet stem 7x7/2": Layer("conv", 8, 3, 224, 64, 7, 2, 3),
    "resnet 3x3, 56 rows": Layer("conv", 8, 64, 56, 64, 3, 1, 1),
    "resnet 3x3, 28 rows": Layer("conv", 8, 128, 28, 128, 3, 1, 1),
    "resnet 3x3, 14 rows": Layer("conv", 8, 256, 14, 256, 3, 1, 1),
    "resnet 3x3, 7 rows": Layer("conv", 8, 512, 7, 512, 3, 1, 1),
    "resnet 3x3/2": Layer("conv", 8, 128, 56, 128, 3, 2, 1),
    "resnet 1x1, 56 rows": Layer("conv", 8, 64, 56, 256),
    "resnet 1x1, 14 rows": Layer("conv", 8, 1024, 14, 256),
    "resnet 1x1, 7 rows": Layer("conv", 8, 2048, 7, 512),
    "resnet 1x1/2": Layer("conv", 8, 256, 56, 512, 1, 2),
    "resnext 3x3, 32 groups": Layer("conv", 8, 128, 56, 128, 3, 1, 1, 32),
    "mobilenet depthwise": Layer("conv", 8, 128, 28, 128, 3, 1, 1, 128),
    "lenet 5x5, first": Layer("conv", 64, 1, 28, 20, 5),
    "lenet 5x5, second": Layer("conv", 64, 20, 12, 50, 5),
    "resnet max pool 3x3/2": Layer("pool", 8, 64, 112, 64, 3, 2, 1),
    "lenet max pool 2x2/2": Layer("pool", 64, 20, 24, 20, 2, 2),
    "resnet batch_norm": Layer("norm", 8, 256, 56, 256),
}


def least_time(call: Callable[[], object]) -> float:
    """Return the least processor time of one call in seconds."""
    call()
    least, end = float("inf"), time.thread_time() + SECONDS
    while time.thread_time() < end:
        begin = time.thread_time()
        call()
        least = min(least, time.thread_time() - begin)
    return least

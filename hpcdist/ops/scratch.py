"""Scratch memory that the operators of a thread share: they run one after the other."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.ops.types import Call


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, np.ndarray] = {}
        self.generation = object()  # another one whenever a buffer has moved


_scratch = _Scratch()


def scratch(purpose: str, shape: Sequence[int], dtype) -> np.ndarray:
    """Return this thread's memory for a purpose, to be used until the calling operator ends."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = _scratch.buffers.get(purpose)
    if buffer is None or len(buffer) < nbytes:
        raw = np.empty(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        buffer = _scratch.buffers[purpose] = raw[start : start + nbytes]
        _scratch.generation = object()
    return buffer[:nbytes].view(dtype).reshape(shape)


def with_scratch(make: Callable[[], Sequence[Call]]) -> Call:
    """Return a call that runs the steps of ``make``, made anew when scratch memory has moved."""
    generation: Any = None
    steps: Sequence[Call] = ()

    def run() -> None:
        nonlocal generation, steps
        if generation is not _scratch.generation:
            steps = make()
            generation = _scratch.generation
        for step in steps:
            step()

    return run

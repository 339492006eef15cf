"""Fluid's module ``average``: an average of fetched values, weighted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.base.fetched import as_fetched

__all__ = ["WeightedAverage"]


class WeightedAverage:
    """The sum of ``value * weight`` over the sum of the weights; values may be arrays."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was added."""
        self._sum: Any = 0.0
        self._weight: Any = None

    def add(self, value: Any, weight: Any) -> None:
        """Add a number or an array, as many times as ``weight`` says."""
        if not _is_number(value) and not isinstance(value, np.ndarray):
            raise FeedError(f"value: expected a number or a numpy array, got {value!r}")
        if not _is_number(weight):
            raise FeedError(f"weight: expected a number, got {weight!r}")
        self._sum = self._sum + value * weight
        self._weight = weight if self._weight is None else self._weight + weight

    def eval(self) -> Any:
        """Return the average; ValueError if nothing was added."""
        if self._weight is None:
            raise FeedError("WeightedAverage: nothing was added since the last reset")
        return as_fetched(self._sum / self._weight)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.generic)) or (
        isinstance(value, np.ndarray) and value.shape == (1,)
    )

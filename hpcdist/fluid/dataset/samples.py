"""From whole tables to readers of samples. No files here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TRAIN_SHARE = 0.8


def spread_normalised(features: np.ndarray) -> np.ndarray:
    """Return (x - mean) / (max - min) of every column, in the features' own precision."""
    spread = features.max(axis=0) - features.min(axis=0)
    return (features - features.mean(axis=0)) / spread


def train_rows(rows: int) -> slice:
    """Return the first 80 % of the rows."""
    return slice(0, int(rows * TRAIN_SHARE))


def test_rows(rows: int) -> slice:
    """Return the rows that ``train_rows`` leaves."""
    return slice(int(rows * TRAIN_SHARE), rows)


def regression_reader(
    features: np.ndarray, targets: np.ndarray, rows: slice
) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Return a reader of (float32[features], float32[1]); the arrays are views, not writable."""
    x = features[rows].astype(np.float32)
    y = targets[rows].astype(np.float32).reshape(-1, 1)
    # What one pass changed, the next would read.
    x.flags.writeable = y.flags.writeable = False
    return lambda: zip(x, y, strict=True)


def image_reader(
    images: np.ndarray, labels: np.ndarray, scale: Callable[[np.ndarray], np.ndarray]
) -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    """Return a reader of (float32[pixels] in [-1, 1], int) from uint8 images [n, pixels].

    ``scale`` maps float32 grey levels to [-1, 1].
    """
    chunk = 1024  # converted together: fast, without the whole set as floats in memory

    def read() -> Iterator[tuple[np.ndarray, int]]:
        for begin in range(0, len(images), chunk):
            floats: Any = scale(images[begin : begin + chunk].astype(np.float32))
            yield from zip(floats, labels[begin : begin + chunk].tolist(), strict=True)

    return read

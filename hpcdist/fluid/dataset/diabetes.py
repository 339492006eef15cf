"""Diabetes progression, bundled with scikit-learn: 442 samples, 10 features, one target."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hpcdist.fluid.dataset.bundled import numbers
from hpcdist.fluid.dataset.samples import (
    regression_reader,
    spread_normalised,
    test_rows,
    train_rows,
)

__all__ = ["available", "feature_num", "test", "train"]

feature_num = 10
TARGET_SCALE = 100.0  # the target runs from 25 to 346


def available() -> bool:
    """Return True: the data come with scikit-learn."""
    return True


def train() -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Return a reader of the first 80 % (353): (float32[10] normalised, float32[1] target).

    Features are (x - mean) / (max - min) over the whole set, the target is divided by 100.
    """
    return _reader(train_rows)


def test() -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Return a reader of the last 20 % (89), as ``train``."""
    return _reader(test_rows)


def _reader(
    part: Callable[[int], slice],
) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    features = numbers("diabetes_data_raw.csv.gz")
    (target,) = numbers("diabetes_target.csv.gz").T
    return regression_reader(
        spread_normalised(features), target / TARGET_SCALE, part(len(features))
    )

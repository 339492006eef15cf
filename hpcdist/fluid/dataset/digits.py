"""Handwritten digits of 8 x 8 pixels, bundled with scikit-learn: 1797 samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hpcdist.fluid.dataset.bundled import numbers
from hpcdist.fluid.dataset.samples import image_reader, test_rows, train_rows

__all__ = ["available", "feature_num", "test", "train"]

feature_num = 64


def available() -> bool:
    """Return True: the data come with scikit-learn."""
    return True


def train() -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    """Return a reader of the first 80 % (1437): (float32[64] in [-1, 1], int label 0..9)."""
    return _reader(train_rows)


def test() -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    """Return a reader of the last 20 % (360), as ``train``."""
    return _reader(test_rows)


def _reader(part: Callable[[int], slice]) -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    digits = numbers("digits.csv.gz", ",")
    images, labels = digits[:, :-1], digits[:, -1].astype(int)  # grey levels 0..16
    rows = part(len(images))
    return image_reader(images[rows], labels[rows], lambda x: x / 8.0 - 1.0)

"""Made-up labelled images of any size, for trying image models without files. Not real data.

Each class is a random coarse pattern; a sample is its class's pattern under as much noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hpcdist.base.errors import DataError

__all__ = ["PATTERN", "images"]

PATTERN = 4  # rows and columns of the coarse pattern


def images(
    count: int, classes: int = 10, size: int = 224, seed: int = 0, begin: int = 0
) -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    """Return a reader of ``count`` samples (float32[3, size, size], int label).

    Samples are numbered from ``begin``; sample i of a seed is the same in every process, however
    many are read. Train and test on different numbers of one seed: patterns follow from the seed.
    """
    if min(count, classes) < 1 or size < PATTERN or seed < 0 or begin < 0:
        raise DataError(
            f"synthetic.images: count and classes must be 1 or more, size {PATTERN} or more, seed "
            f"and begin not negative, got {count}, {classes}, {size}, {seed} and {begin}"
        )
    # Classes and samples have separate streams, so that neither number changes the other.
    patterns = np.random.default_rng([seed, 0]).uniform(-1, 1, (classes, 3, PATTERN, PATTERN))
    fine = np.arange(size) * PATTERN // size
    scenes = patterns[:, :, fine[:, None], fine[None, :]].astype(np.float32)

    def read() -> Iterator[tuple[np.ndarray, int]]:
        for i in range(begin, begin + count):
            random = np.random.default_rng([seed, 1, i])
            label = int(random.integers(classes))
            yield scenes[label] + random.standard_normal(scenes.shape[1:], np.float32), label

    return read

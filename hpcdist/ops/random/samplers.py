"""What Fluid's operators draw with a seed: the same numbers in every run, bit for bit Fluid's.

Classes come from ``std::mt19937_64``, or from ``std::mt19937`` where each has its own probability,
integers from ``std::minstd_rand``, all as libstdc++ spreads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcdist.base.device import upload
from hpcdist.ops.random.seeded import MODULUS, MULTIPLIER, start_of
from hpcdist.ops.types import ArrayModule, DeviceArray

MOST = MODULUS - 1  # integers between which ``std::minstd_rand`` can choose by one number
OLD = 16807
_SCALE = np.float32(2.0**-64)


class SeededWords:
    """A stream of uint64 words, which begins anew in every run."""

    def __init__(self, seed: int) -> None:
        self._seed = np.uint64(seed % 2**32)
        self._words = np.empty(0, np.uint64)

    def __call__(self, first: int, count: int) -> np.ndarray:
        """Return ``count`` words, from the one numbered ``first`` on."""
        if len(self._words) < first + count:
            from hpcdist.ops.random.mersenne_kernels import words  # numba takes 0.3 s to import

            self._words = np.empty(first + count, np.uint64)
            words(self._seed, self._words)
        return self._words[first : first + count]


class SeededPairs:
    """A stream of classes below ``count``, each with a chance, which begins anew in every run."""

    def __init__(self, seed: int, count: int) -> None:
        self._seed, self._count = seed % 2**32, count
        self._pairs = np.empty(0, np.int64), np.empty(0)

    def __call__(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ``count`` int64 classes and float64 chances, from those numbered ``first`` on."""
        end, words = first + count, 3 * (first + count)
        while len(self._pairs[0]) < end:
            from hpcdist.ops.random.mersenne_kernels import pairs  # numba takes 0.3 s to import

            words += words // 8 + 8
            drawn = np.random.RandomState(self._seed).randint(0, 2**32, words, np.uint32)
            found = np.empty(end, np.int64), np.empty(end)
            if pairs(drawn, self._count, *found) == end:
                self._pairs = found
        places, asides = self._pairs
        return places[first:end], asides[first:end]


def uniform_classes(words: np.ndarray, count: int) -> np.ndarray:
    """Return int64 classes below ``count``."""
    classes = words // np.uint64((2**64 - 1) // count)
    return np.minimum(classes, np.uint64(count - 1)).astype(np.int64)


def log_uniform_classes(words: np.ndarray, count: int, modulus: int) -> np.ndarray:
    """Return int64 classes c with probability log((c + 2) / (c + 1)) / log(count)."""
    chances = words.astype(np.float32) * _SCALE
    exponents = chances * np.float32(math.log(count))
    return (np.exp(exponents).astype(np.int64) - 1) % modulus


def integers(seed: int, low: int, high: int, size: int) -> np.ndarray:
    """Return ``size`` int64 numbers from ``low`` up to ``high``, at most `MOST` different ones."""
    from hpcdist.ops.random import seeded_kernels  # numba takes 0.3 s to import

    out = np.empty(size, np.int64)
    seeded_kernels.integers(start_of(seed), high - low, out)
    return out + low


def integers_below(
    state: int, spans: Sequence[int], multiplier: int = MULTIPLIER
) -> tuple[list[int], int]:
    """Return a number below each of ``spans``, and the state after them.

    From a state of ``std::minstd_rand`` on; with the multiplier `OLD`, of ``std::minstd_rand0``.
    """
    found = []
    for span in spans:
        scale = max((MODULUS - 2) // span, 1)
        state = state * multiplier % MODULUS
        while state - 1 >= span * scale:
            state = state * multiplier % MODULUS
        found.append((state - 1) // scale)
    return found, state


def copied(xp: ArrayModule, host: np.ndarray) -> DeviceArray:
    """Return a host array where ``xp`` computes."""
    if xp is np:
        return host
    copy = xp.empty(host.shape, host.dtype)
    upload(copy, host)
    return copy

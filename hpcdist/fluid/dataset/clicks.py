"""Clicks on advertisements, made up in the shape of Criteo's: 13 numbers and 26 categories.

Ids of a category follow a power law: few are everywhere, most are rare. Every id has a hidden
weight, as has every number; a click is drawn with the logistic function of their sum. So the best
area under the curve that any model can reach is known: that of the chances themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

__all__ = ["category_sizes", "chances", "number_num", "test", "train"]

number_num = 13
# From a handful of ids to as many as there are rows, as in Criteo's data.
CARDINALITIES = (4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 8000, 16000)
EXPONENT = 1.2  # of the power law
CHUNK = 1024  # rows drawn together
Sample = tuple[np.ndarray, np.ndarray, int]
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]


def category_sizes() -> tuple[int, ...]:
    """Return how many ids each of the 26 categories has."""
    return tuple(sorted(CARDINALITIES * 2))


def train(samples: int = 100_000, seed: int = 0) -> Callable[[], Iterator[Sample]]:
    """Return a reader of (float32[13] numbers, int64[26] categories, int clicked).

    The samples depend on the seed only, not on the process that draws them.
    """
    return _reader(samples, seed, 0)


def test(samples: int = 20_000, seed: int = 0) -> Callable[[], Iterator[Sample]]:
    """Return a reader of other samples of the same world, as ``train``."""
    return _reader(samples, seed, 1)


def chances(samples: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the true chances of a click in the test samples, and the clicks, [samples] each."""
    drawn = [_draw(min(CHUNK, samples - start), seed, 1, start) for start in _starts(samples)]
    truth = [_chance(numbers, ids, seed) for numbers, ids, _ in drawn]
    return np.concatenate(truth), np.concatenate([clicked for *_, clicked in drawn])


def _starts(samples: int) -> range:
    return range(0, samples, CHUNK)


def _reader(samples: int, seed: int, part: int) -> Callable[[], Iterator[Sample]]:
    def read() -> Iterator[Sample]:
        for start in _starts(samples):
            numbers, ids, clicked = _draw(min(CHUNK, samples - start), seed, part, start)
            yield from zip(numbers, ids, clicked.tolist(), strict=True)

    return read


def _draw(rows: int, seed: int, part: int, start: int) -> Drawn:
    rng = np.random.default_rng([seed, part, start])
    numbers = rng.exponential(1.0, (rows, number_num)).astype(np.float32)
    sizes = np.array(category_sizes())
    # The inverse of the power law's distribution, cut at the number of ids.
    low = 1.0 - EXPONENT
    ids = (1 + rng.random((rows, len(sizes))) * ((sizes + 1.0) ** low - 1)) ** (1 / low)
    categories = np.clip(ids.astype(np.int64) - 1, 0, sizes - 1)
    clicked = (rng.random(rows) < _chance(numbers, categories, seed)).astype(np.int64)
    return numbers, categories, clicked


def _chance(numbers: np.ndarray, ids: np.ndarray, seed: int) -> np.ndarray:
    slots = np.arange(ids.shape[1], dtype=np.uint64)
    weights = _weights(ids.astype(np.uint64), slots, seed).sum(axis=1) / math.sqrt(len(slots))
    slopes = _weights(np.arange(number_num, dtype=np.uint64), np.uint64(len(slots)), seed)
    score = 1.4 * weights + 0.5 * (np.log1p(numbers) - 0.6) @ slopes - 1.3
    return np.asarray(1 / (1 + np.exp(-score)))


def _weights(ids: np.ndarray, slot: np.ndarray | np.uint64, seed: int) -> np.ndarray:
    """Return the hidden weight of each id of a slot, uniform of variance 1: a hash of both."""
    with np.errstate(over="ignore"):  # splitmix64 (Steele, Lea and Flood, 2014)
        z = ids + np.uint64(0x9E3779B97F4A7C15) * (slot + np.uint64(1 + 64 * seed))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z / 2.0**64 - 0.5) * math.sqrt(12))

"""Random numbers by counter: an element's number depends on its position, not on drawing order.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, 2011). The
key says which operator of which job draws, the counter in which run and for which element of the
batch. So trainers that share a batch draw what one process draws, each for its own rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcdist.base import settings
from hpcdist.ops.random.philox import MULTIPLIERS, PER_BLOCK, ROUNDS, WEYL
from hpcdist.ops.types import Array, ArrayModule

LOW = 0xFFFFFFFF
Draw = Callable[[], Array]  # draws anew at every call

_reader = ""  # whose data this process reads: part of every key


def draw_as_reader(name: str) -> None:
    """From now on, draw other numbers than processes with another name, which read other data."""
    global _reader
    _reader = name


@dataclass
class Draws:
    """What a random operator keeps from run to run: its name, and how often it has drawn."""

    name: str
    count: int = 0

    def next(self) -> int:
        """Count one draw more; return how many there were before."""
        self.count += 1
        return self.count - 1


class SameDraws(Draws):
    """Those of an operator with a seed, which draws the same numbers in every run, as in Fluid."""

    def next(self) -> int:
        """Return 0: every run is the first."""
        return 0


def key_of(seed: int, operator) -> tuple[int, int]:
    """Return the key of an operator; seed 0 stands for the job's (HPCDIST_SEED)."""
    seed = seed or settings.SEED.read()
    text = f"{seed}/{operator}/{_reader}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


# -- where the elements of an array are in the whole batch -----------------------------------------
@dataclass(frozen=True)
class BatchPart:
    """Which elements of the whole batch's array this process has.

    ``rows`` is None where it has them all, else an int64 array (first row, rows here) of the batch,
    filled before each run. ``width`` is the number of elements of a row. ``sequences``: where the
    sequences of a ragged value begin, and its end; then elements count from their sequence's
    beginning, so that nobody needs to know how long the sequences of others are.
    """

    size: int
    width: int
    rows: Array = None
    sequences: np.ndarray | None = None

    def skipped(self) -> int:
        """Return how many elements, or sequences, of the batch come before those that are here."""
        if self.rows is None:
            return 0
        begin, rows = (int(number) for number in self.rows)
        count = self.size if self.sequences is None else len(self.sequences) - 1
        if begin == 0 or count == 0:
            return 0
        if count % rows:
            unit = "elements" if self.sequences is None else "sequences"
            raise ValueError(
                f"random numbers for a part of a batch: its {rows} rows have {count} {unit}, "
                f"expected a multiple of {rows}"
            )
        return begin * (count // rows)


def part_of(x, rows, lod) -> BatchPart:
    """Return which part of the batch is here; ``rows`` as in `BatchPart`, ``lod`` its sequences."""
    width = x.size // len(x) if x.ndim and len(x) else 1
    if lod is None:
        return BatchPart(x.size, width, rows)
    # Each outermost sequence is a sample; its rows are those of all the sequences within it.
    bounds = np.asarray(lod.offsets[0], np.int64)
    for level in lod.offsets[1:]:
        bounds = np.asarray(level, np.int64)[bounds]
    return BatchPart(x.size, width, rows, bounds)


# -- drawing ---------------------------------------------------------------------------------------
def filler(xp: ArrayModule, part: BatchPart, key: tuple[int, int], draws: Draws) -> Draw:
    """Return the generator of one uint32 for each element, flat, anew at every call."""
    if xp is not np:
        return lambda: _words_by_arrays(xp, part, key, draws.next())
    from hpcdist.ops.random import counter_kernels as kernels  # numba takes 0.3 s to import

    words = np.empty(part.size, np.uint32)
    pieces = pieces_of(part)

    def fill() -> np.ndarray:
        kernels.words(*counters(part, draws.next()), *key, pieces, words)
        return words

    return fill


def pieces_of(part: BatchPart) -> np.ndarray:
    """Return where pieces begin whose elements are counted from 0, and the end, in elements."""
    if part.sequences is None:
        return np.array([0, part.size], np.int64)
    return part.sequences * part.width


def counters(part: BatchPart, draw: int) -> tuple[int, int, int, int]:
    """Return (first element, first sequence, low and high word of the draw) of a run."""
    skipped = part.skipped()
    first, sequence = (skipped, 0) if part.sequences is None else (0, skipped)
    return first, sequence, draw & LOW, draw >> 32


def _words_by_arrays(xp: ArrayModule, part: BatchPart, key: tuple[int, int], draw: int) -> Array:
    """Do as the loops in `counter_kernels`, by operations on arrays."""
    first, sequence, low, high = counters(part, draw)
    if part.sequences is None:
        blocks = xp.arange(first // PER_BLOCK, -(-(first + part.size) // PER_BLOCK), dtype="uint64")
        words = philox(xp, (blocks & LOW, blocks >> 32, low, high), key)
        start = first % PER_BLOCK
        return xp.stack(words, axis=1).reshape(-1)[start : start + part.size]
    pieces = pieces_of(part)
    lengths = np.diff(pieces)
    within = np.arange(part.size) - np.repeat(pieces[:-1], lengths)
    samples = np.repeat(np.arange(len(lengths)) + sequence, lengths)
    blocks = xp.asarray((within // PER_BLOCK).astype(np.uint64))
    words = philox(xp, (blocks, xp.asarray(samples.astype(np.uint64)), low, high), key)
    lanes = xp.asarray(within % PER_BLOCK)
    return xp.stack(words, axis=1).reshape(-1)[xp.arange(part.size) * PER_BLOCK + lanes]


def philox(
    xp: ArrayModule, counter: tuple[Array, Array, int, int], key: tuple[int, int]
) -> list[Array]:
    """Return the four uint32 arrays of a counter whose first two words are uint64 arrays."""
    low, high = (xp.full(counter[0].shape, word, dtype="uint64") for word in counter[2:])
    return [word.astype("uint32") for word in philox_words(*counter[:2], low, high, key)]


def philox_words(a, b, c, d, key: tuple[int, int]) -> tuple[Array, ...]:
    """Return the four words that the four of a counter become, 32 bits in integers of 64.

    Arrays, or tensors, whose integers have a sign: what overflows is cut off.
    """
    first, second = key
    for _ in range(ROUNDS):
        left, right = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, c = ((right >> 32) & LOW) ^ b ^ first, ((left >> 32) & LOW) ^ d ^ second
        b, d = right & LOW, left & LOW
        first, second = (first + WEYL[0]) & LOW, (second + WEYL[1]) & LOW
    return a, b, c, d

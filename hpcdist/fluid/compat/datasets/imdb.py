"""``paddle.dataset.imdb``: film reviews as words, with label 0 (liked) or 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdist.fluid.compat.datasets.common import file_of, files_in, reading

__all__ = ["build_dict", "test", "train", "word_dict"]

FILE = "aclImdb_v1.tar.gz"
UNKNOWN = "<unk>"
Sample = tuple[list[int], int]


def tokenize(pattern: re.Pattern[str]) -> Iterator[list[bytes]]:
    """Yield the words (bytes, small letters, no punctuation) of each review whose name matches."""
    path = file_of("imdb", FILE)
    with reading(path):
        for file in files_in(path, lambda name: pattern.match(name) is not None):
            text = file.read().rstrip(b"\n\r").translate(None, string.punctuation.encode())
            yield text.lower().split()


def build_dict(pattern: re.Pattern[str], cutoff: int) -> dict[Any, int]:
    """Number the words that occur more than ``cutoff`` times, the most frequent first."""
    counts: Counter[bytes] = Counter()
    for words in tokenize(pattern):
        counts.update(words)
    frequent = sorted((-count, word) for word, count in counts.items() if count > cutoff)
    return {**{word: i for i, (_, word) in enumerate(frequent)}, UNKNOWN: len(frequent)}


def word_dict() -> dict[Any, int]:
    """Number the words of all reviews that occur more than 150 times."""
    return build_dict(re.compile(r"aclImdb/(train|test)/(pos|neg)/.*\.txt$"), 150)


def train(word_idx: Mapping[Any, int]) -> Callable[[], Iterator[Sample]]:
    """Return a reader of (numbers of words, label), first all that are liked."""
    return _reader("train", word_idx)


def test(word_idx: Mapping[Any, int]) -> Callable[[], Iterator[Sample]]:
    """Return a reader of the reviews to test with, as ``train``."""
    return _reader("test", word_idx)


def _reader(part: str, numbers: Mapping[Any, int]) -> Callable[[], Iterator[Sample]]:
    unknown = numbers[UNKNOWN]
    samples = [
        ([numbers.get(word, unknown) for word in words], label)
        for label, kind in enumerate(("pos", "neg"))
        for words in tokenize(re.compile(rf"aclImdb/{part}/{kind}/.*\.txt$"))
    ]
    return lambda: iter(samples)

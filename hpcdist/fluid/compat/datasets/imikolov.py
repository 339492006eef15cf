"""``paddle.dataset.imikolov``: sentences of the Penn Treebank as n-grams or sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdist.base.errors import DataError
from hpcdist.fluid.compat.datasets.common import file_of, lines_of
from hpcdist.fluid.dataset.text import BEGIN, END, UNKNOWN, DataType, samples_of

__all__ = ["build_dict", "test", "train"]

FILE = "simple-examples.tgz"
TRAIN, TEST = "simple-examples/data/ptb.train.txt", "simple-examples/data/ptb.valid.txt"


def build_dict(min_word_freq: int = 50) -> dict[Any, int]:
    """Number the words that occur more often than that, the most frequent first."""
    counts: Counter[Any] = Counter()
    for part in (TRAIN, TEST):
        for line in lines_of(file_of("imikolov", FILE), part):
            counts.update(line.encode().split())
            counts.update((BEGIN, END))
    frequent = [(word, count) for word, count in counts.items() if count > min_word_freq]
    frequent.sort(key=lambda item: (-item[1], _text(item[0])))
    return {**{word: i for i, (word, _) in enumerate(frequent)}, UNKNOWN: len(frequent)}


def _text(word: str | bytes) -> bytes:
    return word.encode() if isinstance(word, str) else word


def train(
    word_idx: Mapping[Any, int], n: int, data_type: int = DataType.NGRAM
) -> Callable[[], Iterator[Any]]:
    """Return a reader of n-grams, or of sequences of at most ``n`` words if that is above 0."""
    return _reader(TRAIN, word_idx, n, data_type)


def test(
    word_idx: Mapping[Any, int], n: int, data_type: int = DataType.NGRAM
) -> Callable[[], Iterator[Any]]:
    """Return a reader of the sentences to test with, as ``train``."""
    return _reader(TEST, word_idx, n, data_type)


def _reader(
    part: str, numbers: Mapping[Any, int], n: int, data_type: int
) -> Callable[[], Iterator[Any]]:
    if data_type not in (DataType.NGRAM, DataType.SEQ) or (data_type == DataType.NGRAM and n < 1):
        raise DataError(f"imikolov: expected n-grams of n >= 1, or sequences, got {n}, {data_type}")
    if missing := [mark for mark in (BEGIN, END, UNKNOWN) if mark not in numbers]:
        raise DataError(f"imikolov: the numbers of words lack {', '.join(missing)}")
    path = file_of("imikolov", FILE)
    return lambda: samples_of(
        (line.encode().split() for line in lines_of(path, part)), numbers, n, data_type
    )

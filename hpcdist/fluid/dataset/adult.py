"""Adult: who earns more than 50,000 dollars, from the census of 1994: 32561 + 16281 people.

The tables are read from ``adult_train.csv`` and ``adult_test.csv``, with a line of names first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcdist.fluid.dataset.csv_table import CsvTable
from hpcdist.fluid.dataset.files import find, require

__all__ = ["available", "categories", "category_sizes", "number_num", "test", "train"]

SOURCE = "adult.data and adult.test of https://archive.ics.uci.edu/dataset/2/adult as CSV"
FILES = {"train": "adult_train.csv", "test": "adult_test.csv"}
NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
LABELS = {"<=50K": 0, ">50K": 1, "<=50K.": 0, ">50K.": 1}  # the test file has full stops
SKEWED = ("capital_gain", "capital_loss")  # taken as log(1 + x)
categories = (
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
)
number_num = len(NUMBERS)
Sample = tuple[np.ndarray, np.ndarray, int]


def available() -> bool:
    """Return whether the files are on this machine."""
    return all(find(name) for name in FILES.values())


def train() -> Callable[[], Iterator[Sample]]:
    """Return a reader of 32561 samples: (float32[5] numbers, int64[8] categories, int label).

    Numbers have mean 0 and variance 1 in the training data. Category k counts from 1 in the order
    of the alphabet; 0 is a value that the training data does not have. Label 1 earns more.
    """
    return _reader("train")


def test() -> Callable[[], Iterator[Sample]]:
    """Return a reader of 16281 other people, as ``train``."""
    return _reader("test")


def category_sizes() -> tuple[int, ...]:
    """Return how many ids each category has, 0 for unknown values included."""
    return tuple(len(words) + 1 for words in _fitted(_path("train")).words)


@dataclass(frozen=True)
class _Scale:
    mean: np.ndarray
    deviation: np.ndarray
    words: tuple[dict[str, int], ...]


def _path(part: str) -> Path:
    return require(FILES[part], SOURCE)


@functools.cache
def _table(path: Path) -> CsvTable:
    return CsvTable(path, (*NUMBERS, *categories, "class"))


def _numbers(path: Path) -> np.ndarray:
    table = _table(path).numbers(NUMBERS, low=0)
    for k, name in enumerate(NUMBERS):
        if name in SKEWED:
            table[:, k] = np.log1p(table[:, k])
    return table


@functools.cache
def _fitted(path: Path) -> _Scale:
    """Return scales and vocabularies of the training data."""
    table = _numbers(path)
    words = []
    for name in categories:
        in_use = sorted(set(_table(path).words(name)))
        words.append({word: k + 1 for k, word in enumerate(in_use)})
    deviation = table.std(axis=0)
    return _Scale(table.mean(axis=0), np.where(deviation > 0, deviation, 1), tuple(words))


def _reader(part: str) -> Callable[[], Iterator[Sample]]:
    scale, table = _fitted(_path("train")), _table(_path(part))
    numbers = ((_numbers(_path(part)) - scale.mean) / scale.deviation).astype(np.float32)
    ids_by_category = [
        [words.get(word, 0) for word in table.words(name)]
        for name, words in zip(categories, scale.words)
    ]
    ids = np.array(ids_by_category, np.int64).T
    labels = [LABELS[text] for text in table.words("class", LABELS)]
    numbers.flags.writeable = ids.flags.writeable = False
    return lambda: zip(numbers, ids, labels, strict=True)

"""Adult: who earns more than 50,000 dollars, from the census of 1994: 32561 + 16281 people.

The tables are read from ``adult_train.csv`` and ``adult_test.csv``, with a line of names first.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcdist.dataset.files import damaged, find, require

__all__ = ["available", "categories", "category_sizes", "number_num", "test", "train"]

SOURCE = "adult.data and adult.test of https://archive.ics.uci.edu/dataset/2/adult as CSV"
FILES = {"train": "adult_train.csv", "test": "adult_test.csv"}
NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
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
    """Tell whether the files are on this machine."""
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
def _columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="ascii") as file:
            header, *rows = [r for r in csv.reader(file, skipinitialspace=True) if r] or [[]]
    except (UnicodeError, csv.Error) as error:
        raise damaged(path, error) from error
    missing = [name for name in (*NUMBERS, *categories, "class") if name not in header]
    if missing:
        raise damaged(path, f"expected columns {missing} beside {header}")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise damaged(path, f"sample {number} has {len(row)} values, expected {len(header)}")
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def _numbers(path: Path) -> np.ndarray:
    columns = _columns(path)
    try:
        table = np.array([columns[name] for name in NUMBERS], np.float64).T
    except ValueError as error:
        raise damaged(path, error) from error
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
        found = sorted(set(_columns(path)[name]))
        words.append({word: k + 1 for k, word in enumerate(found)})
    return _Scale(table.mean(axis=0), table.std(axis=0), tuple(words))


def _reader(part: str) -> Callable[[], Iterator[Sample]]:
    scale, columns = _fitted(_path("train")), _columns(_path(part))
    numbers = ((_numbers(_path(part)) - scale.mean) / scale.deviation).astype(np.float32)
    found = [
        [words.get(word, 0) for word in columns[name]]
        for name, words in zip(categories, scale.words)
    ]
    ids = np.array(found, np.int64).T
    labels = [int(text.startswith(">50K")) for text in columns["class"]]
    numbers.flags.writeable = ids.flags.writeable = False
    return lambda: zip(numbers, ids, labels, strict=True)

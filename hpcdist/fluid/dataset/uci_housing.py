"""Boston housing prices: 506 samples of 13 features and the price in 1000 dollars."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hpcdist.fluid.dataset.csv_table import CsvTable
from hpcdist.fluid.dataset.files import RemoteFile, damaged, fetch, local_path
from hpcdist.fluid.dataset.samples import (
    regression_reader,
    spread_normalised,
    test_rows,
    train_rows,
)

__all__ = ["available", "feature_names", "feature_num", "test", "train"]

# fmt: off
feature_names = ["CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO",
                 "B", "LSTAT"]
# fmt: on
feature_num = len(feature_names)

FILE = RemoteFile(
    "BostonHousing.csv",
    "https://raw.githubusercontent.com/kishannk11/datasets/"
    "c3dc8e837cfdfb5371d659fb4b786d9e54649c9c/BostonHousing.csv",
    "sha256:ab16ba38fbbbbcc69fe930aab1293104f1442c8279c130d9eba03dd864bef675",
)
SAMPLES = 506
# Of all values, as little-endian float64: quoting and line ends of the file do not matter.
VALUES_CRC32 = 0xC696741A


def available() -> bool:
    """Return, without network, whether the file is on this machine."""
    return local_path(FILE) is not None


def train() -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Return a reader of the first 80 % (404): (float32[13] normalised, float32[1] price).

    Features are (x - mean) / (max - min) over the whole file. Raise DataError if the file can
    be neither found nor downloaded, or is damaged.
    """
    return _reader(train_rows)


def test() -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Return a reader of the last 20 % (102), as ``train``."""
    return _reader(test_rows)


def _reader(
    part: Callable[[int], slice],
) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    return reader_of(read_table(fetch(FILE)), part)


def reader_of(
    table: np.ndarray, part: Callable[[int], slice]
) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Return a reader of these rows, features and price, of a table as ``read_table`` gives it."""
    return regression_reader(spread_normalised(table[:, :-1]), table[:, -1], part(len(table)))


def read_table(path: Path) -> np.ndarray:
    """Return the 506 x 14 values of the file; DataError if they are not the published ones."""
    columns = [*feature_names, "MEDV"]
    table = CsvTable(path, columns).numbers(columns)
    if len(table) != SAMPLES:
        raise damaged(path, f"expected {SAMPLES} samples, got {len(table)}")
    if zlib.crc32(table.astype("<f8").tobytes()) != VALUES_CRC32:
        raise damaged(path, "some values differ from the published ones")
    return table

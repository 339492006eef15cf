"""``paddle.dataset.uci_housing``: Fluid's own file, where it is, or that of `hpcdist.dataset`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcdist.fluid.compat.datasets.common import kept_by_fluid, reading
from hpcdist.fluid.dataset import uci_housing
from hpcdist.fluid.dataset.files import damaged
from hpcdist.fluid.dataset.samples import test_rows, train_rows
from hpcdist.fluid.dataset.uci_housing import available, feature_names, feature_num

__all__ = ["available", "feature_names", "feature_num", "test", "train"]

FILE = "housing.data"
MD5 = "d4accdce7a25600298819f8e28e8d593"  # by which Fluid knows it


def train() -> Callable[[], Iterator[Any]]:
    """Return a reader of the first 80 %: (float32[13] normalised, float32[1] price)."""
    return _reader(train_rows) or uci_housing.train()


def test() -> Callable[[], Iterator[Any]]:
    """Return a reader of the last 20 %, as ``train``."""
    return _reader(test_rows) or uci_housing.test()


def _reader(part: Callable[[int], slice]) -> Callable[[], Iterator[Any]] | None:
    path = kept_by_fluid("uci_housing", FILE)
    if path is None:
        return None
    with reading(path):
        text = path.read_bytes()
        if hashlib.md5(text, usedforsecurity=False).hexdigest() != MD5:
            raise damaged(path, f"its MD5 sum is not {MD5}, that of the file that Fluid downloads")
        table = np.array(text.decode("ascii").split(), np.float64)
        table = table.reshape(-1, feature_num + 1)
        if not len(table) or not np.isfinite(table).all():
            raise damaged(path, "expected rows of 14 finite numbers")
    return uci_housing.reader_of(table, part)

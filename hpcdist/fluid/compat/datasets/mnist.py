"""``paddle.dataset.mnist``: Fluid's own files, where they are, or those of `hpcdist.dataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcdist.fluid.compat.datasets.common import kept_by_fluid
from hpcdist.fluid.dataset import mnist
from hpcdist.fluid.dataset.mnist import available, feature_num

__all__ = ["available", "feature_num", "reader_creator", "test", "train"]


def reader_creator(
    image_filename: str, label_filename: str, buffer_size: int = 100
) -> Callable[[], Iterator[Any]]:
    """Return a reader of the samples in two files of MNIST's format; it needs no buffer."""
    return mnist.reader_of(Path(image_filename), Path(label_filename))


def train() -> Callable[[], Iterator[Any]]:
    """Return a reader of (float32[784] in [-1, 1], int label 0..9), 60000 samples."""
    return _reader("train") or mnist.train()


def test() -> Callable[[], Iterator[Any]]:
    """Return a reader of the 10000 test samples, as ``train``."""
    return _reader("t10k") or mnist.test()


def _reader(prefix: str) -> Callable[[], Iterator[Any]] | None:
    names = [f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"]
    images, labels = (kept_by_fluid("mnist", name) for name in names)
    return mnist.reader_of(images, labels) if images and labels else None

"""``paddle.dataset.cifar``: 32 x 32 colour images of 10 or 100 classes."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcdist.compat.datasets.common import file_of
from hpcdist.dataset.files import damaged

__all__ = ["test10", "test100", "train10", "train100"]

Reader = Callable[[], Iterator[tuple[np.ndarray, int]]]
ARRAYS = {("_reconstruct", "multiarray"), ("ndarray", "numpy"), ("dtype", "numpy")}


class _Arrays(pickle.Unpickler):
    """Reads dicts of arrays and lists: a file cannot have any other code called."""

    def find_class(self, module: str, name: str) -> Any:
        if (name, module.split(".")[-1]) in ARRAYS and module.split(".")[0] == "numpy":
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array")


def train10(cycle: bool = False) -> Reader:
    """Return a reader of (float32[3072] from 0 to 1, label 0..9), without end if ``cycle``."""
    return _reader("cifar-10-python.tar.gz", "data_batch", b"labels", cycle)


def test10(cycle: bool = False) -> Reader:
    """Return a reader of the images to test with, as ``train10``."""
    return _reader("cifar-10-python.tar.gz", "test_batch", b"labels", cycle)


def train100() -> Reader:
    """Return a reader of (float32[3072] from 0 to 1, label 0..99)."""
    return _reader("cifar-100-python.tar.gz", "train", b"fine_labels", False)


def test100() -> Reader:
    """Return a reader of the images to test with, as ``train100``."""
    return _reader("cifar-100-python.tar.gz", "test", b"fine_labels", False)


def _reader(name: str, part: str, labels: bytes, cycle: bool) -> Reader:
    path = file_of("cifar", name)

    def read() -> Iterator[tuple[np.ndarray, int]]:
        while True:
            try:
                with tarfile.open(path) as archive:
                    for entry in archive:
                        if entry.isfile() and part in entry.name:
                            file = archive.extractfile(entry)
                            assert file is not None, "a plain file"
                            held = _Arrays(file, encoding="bytes").load()
                            for pixels, label in zip(held[b"data"], held[labels], strict=True):
                                yield (pixels / 255.0).astype(np.float32), int(label)
            except (tarfile.TarError, EOFError, OSError, KeyError, pickle.PickleError) as error:
                raise damaged(path, error) from error
            if not cycle:
                return

    return read

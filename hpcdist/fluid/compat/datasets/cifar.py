"""``paddle.dataset.cifar``: 32 x 32 colour images of 10 or 100 classes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcdist.fluid.compat.datasets.common import file_of, files_in, reading

__all__ = ["test10", "test100", "train10", "train100"]

Reader = Callable[[], Iterator[tuple[np.ndarray, int]]]


class _Type:
    """What a file says of the elements of an array."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Leave the order of bytes out: an element is one."""


class _PickledArray:
    """An array of bytes. numpy's would believe a file that its elements are addresses."""

    def __init__(self, *_: Any) -> None:
        self.rows = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        if kind.code not in ("u1", b"u1") or is_fortran:
            raise pickle.UnpicklingError(f"it has an array of {kind.code!r:.80}, expected bytes")
        self.rows = np.frombuffer(data, np.uint8).reshape(shape)


def _encoded(text: str, encoding: Any) -> bytes:
    return text.encode("latin-1")  # bytes stay as they are, under Python 3 too


_STANDING_FOR = {
    "_reconstruct": _PickledArray,
    "ndarray": _PickledArray,
    "dtype": _Type,
}  # of numpy


class _Arrays(pickle.Unpickler):
    """Reads dicts of arrays and lists: a file cannot have any other code called."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in _STANDING_FOR:
            return _STANDING_FOR[name]
        if (module, name) == ("_codecs", "encode"):
            return _encoded
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not an array")


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
            with reading(path):
                for file in files_in(path, lambda name: part in name):
                    batch = _Arrays(file, encoding="bytes").load()
                    for pixels, label in zip(batch[b"data"].rows, batch[labels], strict=True):
                        yield (pixels / 255.0).astype(np.float32), int(label)
            if not cycle:
                return

    return read

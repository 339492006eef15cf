"""MNIST: 28 x 28 grey images of handwritten digits, 60000 to train and 10000 to test."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.fluid.dataset.files import RemoteFile, damaged, fetch, local_path
from hpcdist.fluid.dataset.samples import image_reader

__all__ = ["available", "feature_num", "test", "train"]

feature_num = 784
PIXELS = (28, 28)
MOST_BYTES = 2**26  # of an unpacked file: the largest has 47 MB


def _file(name: str, checksum: str) -> RemoteFile:
    url = f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}"
    return RemoteFile(f"mnist-{name}", url, checksum)


FILES = {  # images, labels
    "train": (
        _file("train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        _file("train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"),
    ),
    "test": (
        _file(
            "t10k-images-idx3-ubyte.gz",
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        _file(
            "t10k-labels-idx1-ubyte.gz",
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
}


def available(part: str | None = None) -> bool:
    """Return, without network, whether the files of "train", "test" or both are on this machine."""
    if part is not None and part not in FILES:
        raise DataError(f'mnist.available: part must be "train", "test" or None, got {part!r}')
    files = FILES[part] if part else FILES["train"] + FILES["test"]
    return all(local_path(file) for file in files)


def train() -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    """Return a reader of (float32[784] as x / 255 * 2 - 1, int label 0..9) in the file's order.

    Raise DataError if a file can be neither found nor downloaded, or is damaged.
    """
    return _reader("train")


def test() -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    """Return a reader of the 10000 test samples, as ``train``."""
    return _reader("test")


def _reader(part: str) -> Callable[[], Iterator[tuple[np.ndarray, int]]]:
    return reader_of(*(fetch(file) for file in FILES[part]))


def reader_of(images_path: Path, labels_path: Path) -> Callable[[], Iterator[Any]]:
    """Return a reader of samples as ``train``'s, of these files; DataError if they are damaged."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != PIXELS:
        raise damaged(images_path, f"expected images of {PIXELS} pixels, got {images.shape[1:]}")
    if labels.shape != images.shape[:1] or labels.max(initial=0) > 9:
        raise damaged(
            labels_path,
            f"expected a label 0..9 for each of {len(images)} images, got {labels.shape} labels "
            f"up to {labels.max(initial=0)}",
        )
    return image_reader(images.reshape(-1, feature_num), labels, lambda x: x / 255.0 * 2.0 - 1.0)


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array of a gzipped IDX file; DataError if it is not one."""
    try:
        with gzip.open(path) as file:
            data = file.read(MOST_BYTES + 1)  # to the end, where length and CRC are checked
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    if len(data) > MOST_BYTES:
        raise damaged(path, f"it unpacks to more than {MOST_BYTES} bytes")
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise damaged(path, f"expected an IDX file of bytes, it starts with {data[:4]!r}")
    dims = data[3]
    if dims not in (1, 3):
        raise damaged(path, f"expected labels (1 dimension) or images (3), got {dims} dimensions")
    begin = 4 + 4 * dims
    if len(data) < begin:
        raise damaged(path, "it ends within its header")
    shape = struct.unpack(f">{dims}I", data[4:begin])
    if 0 in shape or len(data) - begin != math.prod(shape):
        raise damaged(path, f"expected {shape} bytes after the header, got {len(data) - begin}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)

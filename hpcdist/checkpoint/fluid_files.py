"""Fluid's own parameter files, read and written bit for bit.

A file is one or more tensors: uint32 0, uint64 LoD levels (each uint64 bytes, then data), uint32 0,
int32 length of a protobuf TensorDesc (field 1 data type, field 2 dims), the description, the data.
All numbers are little-endian. Files of several tensors hold them sorted by name, without names.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.element_types import CODES, NAMES
from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.files import open_below, read_into
from hpcdist.checkpoint.write import write_bytes

MAX_DESCRIPTION = 4096
MAX_LEVELS = 16
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 58


@dataclass(frozen=True)
class Tensor:
    """A tensor in Fluid's file ``name`` below a directory: ``nbytes`` bytes from ``offset``."""

    directory: Path
    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def file(self) -> Path:
        """The path of the file."""
        return self.directory / self.name

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def read(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Return rows ``begin:end``, reading nothing else."""
        rows = self.shape[0] if self.shape else 1
        last = rows if end is None else end
        if not 0 <= begin <= last <= rows:
            raise CheckpointError(f"{self.file}: has {rows} rows, expected {begin}:{last}")
        data = np.empty((last - begin, *self.shape[1:]), self.dtype)
        self.fill(data, begin)
        return data if self.shape else data.reshape(())

    def fill(self, out: np.ndarray, begin: int = 0) -> None:
        """Read rows from ``begin`` on into a contiguous array that the file has as many for."""
        row = math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize
        with open_below(self.directory, self.name) as file:
            file.seek(self.offset + begin * row)
            if not read_into(file, out.reshape(-1).view(np.uint8).data):
                raise CheckpointError(f"{self.file}: was cut off while it was read")


def tensor_of(directory: Path, name: str) -> Tensor:
    """Return the tensor of a file that contains one.

    Fluid's trainers write a beta power of a parameter that servers have cut several times over,
    once for each server: the first counts.
    """
    tensors, size = _tensors(directory, name, 1)
    over = size - tensors[0].offset - tensors[0].nbytes
    if over and (tensors[0].shape != (1,) or over % tensors[0].nbytes):
        raise CheckpointError(f"{tensors[0].file}: {over} bytes follow its tensor")
    return tensors[0]


def tensors_of(directory: Path, name: str, count: int) -> list[Tensor]:
    """Return the ``count`` tensors of a file; CheckpointError if it is not Fluid's, or truncated,
    or holds another number of them."""
    tensors, size = _tensors(directory, name, count)
    if len(tensors) < count or tensors[-1].offset + tensors[-1].nbytes < size:
        more = "more than " if len(tensors) == count else ""
        raise CheckpointError(
            f"{directory / name}: holds {more}{len(tensors)} variables without names, but {count} "
            "were requested: request exactly those that were saved"
        )
    return tensors


def _tensors(directory: Path, name: str, count: int) -> tuple[list[Tensor], int]:
    """Return the first ``count`` tensors of a file, and its bytes."""
    tensors: list[Tensor] = []
    path = directory / name
    with open_below(directory, name) as file:
        try:
            position, size = 0, os.fstat(file.fileno()).st_size
            while position < size and len(tensors) < count:
                offset, dtype, shape = _head(path, file, position, size)
                tensors.append(Tensor(directory, name, offset, dtype, shape))
                position = offset + tensors[-1].nbytes
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if not tensors:
        raise CheckpointError(f"{path}: not a parameter file of Fluid (it is empty)")
    return tensors, size


def _head(path: Path, file: Any, begin: int, size: int) -> tuple[int, str, tuple[int, ...]]:
    """Return where the data of the tensor at ``begin`` begins, its dtype and its shape."""

    def take(form: str) -> int:
        data = file.read(struct.calcsize(form))
        if len(data) < struct.calcsize(form):
            raise CheckpointError(f"{path}: truncated in the head of a tensor")
        return int(struct.unpack(form, data)[0])

    file.seek(begin)
    version, levels = take("<I"), take("<Q")
    if version != 0 or levels > MAX_LEVELS:
        raise CheckpointError(f"{path}: not a parameter file of Fluid (at byte {begin})")
    for _ in range(levels):
        length = take("<Q")
        if file.tell() + length > size:
            raise CheckpointError(f"{path}: truncated in the LoD of a tensor")
        file.seek(length, 1)
    version, length = take("<I"), take("<i")
    if version != 0 or not 0 < length <= MAX_DESCRIPTION:
        raise CheckpointError(f"{path}: not a parameter file of Fluid (at byte {begin})")
    dtype, shape = _description(path, file.read(length))
    offset, nbytes = file.tell(), math.prod(shape) * np.dtype(dtype).itemsize
    if offset + nbytes > size:
        raise CheckpointError(
            f"{path}: truncated: {dtype}{list(shape)} needs {nbytes} bytes from byte "
            f"{offset}, but the file has {size}"
        )
    return offset, dtype, shape


def _description(path: Path, data: bytes) -> tuple[str, tuple[int, ...]]:
    """Parse a TensorDesc: varints of fields 1 and 2, the latter repeated or packed."""
    code, dims, position = None, [], 0
    try:
        while position < len(data):
            key, position = _varint(data, position)
            value, position = _varint(data, position)
            if key == 0x08:
                code = value
            elif key == 0x10:
                dims.append(value)
            elif key == 0x12:
                end = position + value
                while position < end:
                    dim, position = _varint(data, position)
                    dims.append(dim)
            else:
                raise IndexError
    except IndexError:
        raise CheckpointError(f"{path}: malformed description of a tensor") from None
    size = math.prod(max(1, dim) for dim in dims)
    if code not in NAMES or len(dims) > MAX_DIMENSIONS or size >= MAX_ELEMENTS:
        raise CheckpointError(f"{path}: a tensor of unknown type {code} and shape {dims}")
    return NAMES[code], tuple(dims)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position
        if shift > 63:
            raise IndexError


def as_varint(value: int) -> bytes:
    """Return a number of at least 0 as protobuf writes it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def encoded(array: np.ndarray) -> Iterator[Any]:
    """Yield the bytes of one tensor in parts."""
    if array.dtype.name not in CODES:
        raise CheckpointError(f"Fluid has no tensors of {array.dtype}")
    description = b"\x08" + as_varint(CODES[array.dtype.name])
    description += b"".join(b"\x10" + as_varint(dim) for dim in array.shape)
    yield struct.pack("<IQIi", 0, 0, 0, len(description)) + description
    yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def write_tensors(path: Path, arrays: Iterable[np.ndarray]) -> None:
    """Write tensors one after the other; the file is complete, or as it was before."""
    write_bytes(path, *(part for array in arrays for part in encoded(array)))

"""Packed sections of increments: bytes of one significance together, deflated where it pays. Pure.

Rows are in the order of their ids, which are written as differences of neighbours: those of ids are
small, those of keys are not. Of float32 only signs and exponents can be packed, a quarter of the
bytes: so each significance is a frame by itself, as is each byte of rows that are kept in others,
and lies there as it is unless it becomes smaller. Readers merge increments in memory; bases are not
packed, since they are mapped. Earlier releases wrote keys, and one frame of all bytes of such rows.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdist.ps.published.sorted_rows import Keys, ids_of, mixes_of

BLOCK = 1 << 15  # rows, or keys, of a block: part of the format
FRAME = struct.Struct("<I")  # the bytes of a frame
SAMPLE = 1 << 12  # bytes by which it is guessed whether a frame can be packed
PAYS = 0.98
MOST = 1100  # times that deflate can make anything smaller, and what is left over of it


def by_id(keys: Keys) -> tuple[Keys, NDArray[np.int64]]:
    """Return the ids of keys, ascending as uint64, and where each stood."""
    ids = ids_of(keys).view(np.uint64)
    order = np.argsort(ids)
    return ids[order], order


def packed_ids(ids: Keys) -> Iterator[bytes]:
    """Yield what is written for ids in ascending order, as uint64."""
    steps = np.diff(ids, prepend=np.uint64(0))
    for begin in range(0, len(ids), BLOCK):
        yield from _frames(steps[begin : begin + BLOCK].view(np.uint8).reshape(-1, 8))


def packed_rows(rows: NDArray[Any]) -> Iterator[bytes]:
    """Yield what is written for at most `BLOCK` rows, float32 or uint8."""
    size = rows.shape[1] if rows.dtype == np.uint8 else rows.dtype.itemsize
    yield from _frames(np.ascontiguousarray(rows).view(np.uint8).reshape(-1, size))


def _frames(items: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield a frame for each significance of numbers, given as bytes [n, bytes of a number]."""
    for column in items.T:
        plain = np.ascontiguousarray(column).tobytes()
        packed = plain
        if len(_deflated(plain[:SAMPLE])) < PAYS * len(plain[:SAMPLE]):
            packed = min(_deflated(plain), plain, key=len)
        yield FRAME.pack(len(packed)) + packed


def _deflated(data: bytes) -> bytes:
    # What repeats here are single bytes: longer matches are rare, and looking for them takes long.
    deflate = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    return deflate.compress(data) + deflate.flush()


class Unpacked:
    """Reads what was packed, in order; ValueError for bytes that nobody has packed."""

    def __init__(self, data: memoryview, *, by_id: bool = True) -> None:
        """Begin at the first byte; not ``by_id``: an earlier release has packed it."""
        self._data, self._at, self._by_id = data, 0, by_id

    def keys(self, count: int) -> tuple[Keys, NDArray[np.int64]]:
        """Return the next keys, uint64 [count], and where each one's row stands."""
        read = self._read_keys(count)
        if not self._by_id:
            return read, np.arange(count)
        if not (read[1:] > read[:-1]).all():
            raise ValueError("its ids are out of order")
        keys = mixes_of(read.view(np.int64))
        order = np.argsort(keys)
        return keys[order], order

    def _read_keys(self, count: int) -> Keys:
        steps = np.empty(count, np.uint64)
        for begin in range(0, count, BLOCK):
            self._read(steps[begin : begin + BLOCK].view(np.uint8).reshape(-1, 8))
        return np.cumsum(steps, dtype=np.uint64)

    def rows(self, out: NDArray[Any]) -> None:
        """Write the next rows to ``out``, float32 or uint8 [n, elements]."""
        for begin in range(0, len(out), BLOCK):
            block = out[begin : begin + BLOCK]
            by_column = self._by_id and out.dtype == np.uint8
            size = out.shape[1] if by_column else out.dtype.itemsize
            self._read(block.view(np.uint8).reshape(-1, size))

    def end(self) -> None:
        """Make sure that nothing is left."""
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes are left over")

    def _read(self, items: NDArray[np.uint8]) -> None:
        for column in range(items.shape[1]):
            items[:, column] = np.frombuffer(self._frame(len(items)), np.uint8)

    def _frame(self, count: int) -> bytes | memoryview:
        begin = self._at + FRAME.size
        if begin > len(self._data):
            raise ValueError("it ends within its rows")
        (size,) = FRAME.unpack_from(self._data, self._at)
        frame = self._data[begin : begin + size]
        self._at = begin + size
        if len(frame) != size:
            raise ValueError("it ends within its rows")
        if size == count:
            return frame
        inflate = zlib.decompressobj(-15)
        try:
            plain = inflate.decompress(frame, count + 1)
        except zlib.error as error:
            raise ValueError(f"its rows cannot be unpacked: {error}") from None
        if len(plain) != count or not inflate.eof or inflate.unused_data:
            raise ValueError("its rows cannot be unpacked")
        return plain

"""Chunks that HDF5's filters lz4 and zstd have compressed.

A chunk is decompressed through an in-memory HDF5 file created here, so HDF5 sees nothing else of
the file, and only if its header states the expected size.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.base.extras import install_command
from hpcdist.base.hdf5 import h5py

FILTERS = ("lz4", "zstd")
_ZSTD = b"\x28\xb5\x2f\xfd"  # what a chunk of zstd begins with; one of lz4 with its size
_numbers = itertools.count()


def filters(compression: str) -> dict[str, Any]:
    """Return how a compressed dataset is made; CheckpointError if it cannot be."""
    if compression not in FILTERS:
        raise CheckpointError(
            f"compression: expected one of {', '.join(FILTERS)} or None, got {compression!r}"
        )
    try:
        import hdf5plugin
    except ImportError:
        raise CheckpointError(
            f"a compressed checkpoint needs hdf5plugin: {install_command('compression')}"
        ) from None
    codec = hdf5plugin.LZ4() if compression == "lz4" else hdf5plugin.Zstd(clevel=3)
    return {"fletcher32": True, "fillvalue": None, **codec}


class Unpacker:
    """Decompresses chunks of ``nbytes`` bytes; ``where`` names them in errors."""

    def __init__(self, nbytes: int, place: str) -> None:
        self._nbytes = nbytes
        self._where = place
        name = f"chunk-{next(_numbers)}"  # HDF5 takes files in memory of one name for the same
        self._file = h5py.File(name, "w", driver="core", backing_store=False)

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def unpack(self, packed: bytes) -> np.ndarray:
        """Return the bytes, uint8 [nbytes], of a chunk; CheckpointError if it is malformed."""
        compression = "zstd" if packed.startswith(_ZSTD) else "lz4"
        nbytes = _zstd_bytes(packed) if compression == "zstd" else _lz4_bytes(packed)
        if nbytes != self._nbytes:
            raise CheckpointError(
                f"{self._where}: a chunk would be {nbytes} bytes, expected {self._nbytes}"
            )
        if compression not in self._file:
            self._file.create_dataset(
                compression, (nbytes,), np.uint8, chunks=(nbytes,), **filters(compression)
            )
        dataset = self._file[compression]
        try:
            dataset.id.write_direct_chunk((0,), packed)
            return np.asarray(dataset[:])
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{self._where}: cannot be decompressed: {error}") from error


def _lz4_bytes(packed: bytes) -> int:
    """Return the size of the content that a chunk names; -1 if its blocks do not fit into it.

    The filter does not check them: 8 bytes of size, 4 of a block's, and before each block 4 of its
    packed size, all big-endian. HDF5's checksum takes 4 bytes at the end.
    """
    total, block = int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:12], "big")
    block, position, end = min(block, total), 12, len(packed) - 4
    if not block or total // block > len(packed):
        return -1
    for _ in range(-(-total // block)):
        position += 4 + int.from_bytes(packed[position : position + 4], "big")
        if position > end:
            return -1
    return total if position == end else -1


def _zstd_bytes(packed: bytes) -> int:
    """Return the size of the content that the header of a zstd frame names; -1 without one."""
    if len(packed) < 6:
        return -1
    flags = packed[4]
    width = (1 if flags & 0x20 else 0, 2, 4, 8)[flags >> 6]
    begin = 5 + (0 if flags & 0x20 else 1) + (0, 1, 2, 4)[flags & 3]
    if not width or len(packed) < begin + width:
        return -1
    return int.from_bytes(packed[begin : begin + width], "little") + (256 if width == 2 else 0)

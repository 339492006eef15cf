"""Parquet, Arrow, HDF5 and .npy files: formats that state their number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from hpcdist.base.errors import DataError
from hpcdist.base.hdf5 import h5py
from hpcdist.data.columnar.files import FileBlock, RawBlock, pieces_of

ROWS = 1 << 16  # of a block, where the format has none of its own


class ParquetSource:
    """Blocks are row groups."""

    unit = "row group"

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = pq.ParquetFile(path)

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self._file.schema_arrow.names

    def blocks(self) -> Sequence[FileBlock]:
        """Return the row groups."""
        facts = self._file.metadata
        return [
            FileBlock(facts.row_group(k).num_rows, k, k + 1) for k in range(facts.num_row_groups)
        ]

    def count(self, block: FileBlock, expression: Any) -> int:
        """Return how many rows pass a filter; where statistics say none, nothing is read."""
        groups = range(block.begin, block.end)
        piece = ds.ParquetFileFormat().make_fragment(self._path, LocalFileSystem(), None, groups)
        return int(piece.count_rows(filter=expression))

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Return columns of a row group."""
        try:
            table = self._file.read_row_group(block.begin, columns=list(columns))
        except pa.ArrowInvalid as error:
            if "lists to be of size" not in str(error):
                raise
            raise pa.ArrowInvalid(
                f"{error} (pyarrow before 26 cannot read null lists of one size from Parquet; "
                f"this is {pa.__version__})"
            ) from error
        if len(columns) and table.num_columns != len(columns):
            raise DataError(f"expected the columns {list(columns)}, got {table.column_names}")
        return RawBlock(table.num_rows, {name: table[name] for name in columns}, {})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ArrowSource:
    """Blocks are the record batches of a file in Arrow's IPC format (also called Feather)."""

    unit = "record batch"

    def __init__(self, path: str) -> None:
        # Read, not mapped: a mapped file that is truncated kills the process that looks at it.
        self._bytes = pa.OSFile(path)
        self._file = pa.ipc.open_file(self._bytes)

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self._file.schema.names

    def blocks(self) -> Sequence[FileBlock]:
        """Return the record batches."""
        batches = range(self._file.num_record_batches)
        return [FileBlock(self._file.get_batch(k).num_rows, k, k + 1) for k in batches]

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Return columns of a record batch."""
        batch = self._file.get_batch(block.begin)
        arrays = {name: pa.chunked_array([batch.column(name)]) for name in columns}
        for name, array in arrays.items():
            try:
                # Arrow believes offsets of a damaged file, and would read beyond its memory.
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise DataError(f"column {name!r} is damaged: {error}") from None
        return RawBlock(batch.num_rows, arrays, {})

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()


class H5Source:
    """Columns are the datasets of an HDF5 file, with one length; blocks are 65536 rows."""

    unit = "block"

    def __init__(self, path: str, columns: Sequence[str] | None = None) -> None:
        """``columns``: those that will be read; the lengths of others do not matter."""
        self._file = h5py.File(path, "r")
        self._path = path
        self._columns = columns

    def names(self) -> Sequence[str]:
        """Return the paths of the datasets."""
        names: list[str] = []

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.shape:
                names.append(name)

        self._file.visititems(visit)
        return names

    def blocks(self) -> Sequence[FileBlock]:
        """Cut the rows."""
        names = self.names() if self._columns is None else self._columns
        lengths = {name: self._file[name].shape[0] for name in names}
        if len(set(lengths.values())) != 1:
            raise DataError(
                f"data.read: {self._path}: expected datasets of one length, got {lengths}"
            )
        return list(pieces_of(next(iter(lengths.values())), ROWS))

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Return rows of datasets; text of variable length as pyarrow's."""
        arrays = {}
        for name in columns:
            values = self._file[name][block.begin : block.end]
            arrays[name] = (
                pa.chunked_array([pa.array(values)]) if values.dtype == object else values
            )
        return RawBlock(block.end - block.begin, arrays, {})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NpySource:
    """One array: its fields are columns, else it is the column ``value``; blocks of 65536 rows."""

    unit = "block"

    def __init__(self, path: str) -> None:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not array.ndim or not array.flags.c_contiguous:
            raise DataError(
                f"data.read: {path}: expected an array whose rows lie one after the other, got "
                f"shape {array.shape}" + (", Fortran order" if array.ndim else "")
            )
        self._dtype, self._shape, self._offset = array.dtype, array.shape, array.offset
        self._file = open(path, "rb")  # noqa: SIM115  # closed by close()

    def names(self) -> Sequence[str]:
        """Return the names of the fields."""
        return self._dtype.names or ["value"]

    def blocks(self) -> Sequence[FileBlock]:
        """Cut the rows."""
        return list(pieces_of(self._shape[0], ROWS))

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Read rows; they are not mapped: a file that is truncated would kill the process."""
        shape = (block.end - block.begin, *self._shape[1:])
        row = self._dtype.itemsize * int(np.prod(self._shape[1:], dtype=np.int64))
        self._file.seek(self._offset + block.begin * row)
        data = self._file.read(shape[0] * row)
        if len(data) < shape[0] * row:
            raise DataError(f"expected {shape[0] * row} bytes, the file ends after {len(data)}")
        rows = np.frombuffer(data, self._dtype).reshape(shape)
        fields = {name: rows if rows.dtype.names is None else rows[name] for name in columns}
        return RawBlock(len(rows), fields, {})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

"""The formats of files, one declaration each.

A new format is a class with the methods of `DataFile`, and one line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdist.base.errors import DataError
from hpcdist.base.nearest import did_you_mean
from hpcdist.data.columnar.binary_files import ArrowSource, H5Source, NpySource, ParquetSource
from hpcdist.data.columnar.csv_source import AnyDelimited, CsvSource, TsvSource
from hpcdist.data.columnar.json_source import JsonSource
from hpcdist.data.columnar.sparse_source import LibffmSource, LibsvmSource
from hpcdist.data.columnar.streams import COMPRESSIONS, compression_of, uncompressed_name
from hpcdist.data.columnar.tfrecord_source import TfRecordSource


@dataclass(frozen=True)
class Format:
    """What opens files of a format, and which arguments of `data.read` apply to them."""

    name: str
    endings: tuple[str, ...]
    source: Any
    streamed: bool = False  # files may be compressed: they are read as streams
    encoded: bool = False  # encoding=
    typed: bool = False  # types=: files do not state the types of columns
    delimited: bool = False  # names=, delimiter=, strip=


FORMATS = (
    Format("parquet", (".parquet", ".pq"), ParquetSource),
    Format("arrow", (".arrow", ".feather"), ArrowSource),
    Format("hdf5", (".h5", ".hdf5"), H5Source),
    Format("npy", (".npy",), NpySource),
    Format("csv", (".csv",), CsvSource, True, True, True, True),
    Format("tsv", (".tsv",), TsvSource, True, True, True, True),
    Format("txt", (".txt", ".data"), AnyDelimited, True, True, True, True),
    Format("json", (".jsonl", ".ndjson"), JsonSource, True, True, True),
    Format("libsvm", (".libsvm", ".svm", ".svmlight"), LibsvmSource, True, True),
    Format("libffm", (".libffm", ".ffm"), LibffmSource, True, True),
    Format("tfrecord", (".tfrecord", ".tfrecords"), TfRecordSource, True, typed=True),
)
_BY_NAME = {kind.name: kind for kind in FORMATS}
_BY_ENDING = {ending: kind for kind in FORMATS for ending in kind.endings}


def format_of(files: Sequence[str], name: object = None, delimiter: object = None) -> Format:
    """Return the one format that all files have: ``name``, else as their names end.

    With a ``delimiter`` files with any other ending are text with that between values.
    """
    if name is not None:
        if not isinstance(name, str) or name not in _BY_NAME:
            raise DataError(
                f"data.read: format must be one of {', '.join(_BY_NAME)}, got {name!r:.80}"
                + did_you_mean(str(name), _BY_NAME)
            )
        kinds = dict.fromkeys([_BY_NAME[name]], files[0])
    else:
        kinds = {_by_ending(file, delimiter): file for file in reversed(files)}
    if len(kinds) > 1:
        raise DataError(
            f"data.read: expected files of one format, got {' and '.join(reversed(kinds.values()))}"
        )
    (kind,) = kinds
    for file in files:
        compression = compression_of(file)
        if compression and not kind.streamed:
            raise DataError(
                f"data.read: {file}: {kind.name} files are read at any place, so they cannot be "
                f"compressed as a whole ({compression.name}): unpack it; Parquet is compressed "
                "within"
            )
    return kind


def _by_ending(file: str, delimiter: object) -> Format:
    ending = Path(uncompressed_name(file)).suffix.lower()
    kind = _BY_ENDING.get(ending) or (_BY_NAME["txt"] if delimiter is not None else None)
    if kind is None and Path(file).is_dir():
        raise DataError(
            f"data.read: {file} is a folder: name its files, such as '{Path(file) / '*.csv'}'"
        )
    if kind is None:
        raise DataError(
            f"data.read: {file}: cannot read files that end in {ending!r}, expected one of "
            f"{', '.join(_BY_ENDING)}, text also with {', '.join(c.ending for c in COMPRESSIONS)} "
            "after it; or say what it is: format='csv' (or "
            f"{', '.join(repr(n) for n in _BY_NAME if n != 'csv')}), or delimiter='\\t'"
            + did_you_mean(ending, _BY_ENDING)
        )
    return kind

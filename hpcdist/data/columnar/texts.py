"""All texts of a column of files, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.arguments import options_of, typed
from hpcdist.data.columnar.columns import holds_text, is_empty
from hpcdist.data.columnar.files import expanded, naming, require
from hpcdist.data.columnar.formats import format_of


def texts_of(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    column: str,
    format: str | None = None,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    strip: bool = False,
) -> Iterator[str]:
    """Give the texts that are not null; DataError, with the file's name, if it cannot be read."""
    files = expanded(paths)
    kind = format_of(files, format, delimiter)
    options = options_of(kind, names, delimiter, encoding, strip)
    opened = typed(kind, files, [column], {}, [], [column], options)
    for path in files:
        with naming(path), closing(opened(path)) as source:
            require(path, source.names(), [column])
            for block in source.blocks():
                raw = source.read(block, [column]).columns[column]
                if not holds_text(raw) and not is_empty(raw):
                    raise DataError(f"column {column!r} of {path} does not hold text")
                for value in raw.tolist() if isinstance(raw, np.ndarray) else raw.to_pylist():
                    if value is not None:
                        yield value.decode() if isinstance(value, bytes) else value

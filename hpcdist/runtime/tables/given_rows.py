"""Rows that a distributed table begins with: vectors given by a script, or read from a text file.

A file has a line for each row: an id, or a word, and the numbers. That is word2vec's text format
(whose first line, with the numbers of rows and columns, is left out) and GloVe's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcdist.base.errors import DataError, TableError
from hpcdist.ps.batch import owners_of
from hpcdist.ps.table import SparseTable

_PIECE = 4096  # rows that are read, then loaded
_LONGEST_LINE = 1 << 24  # bytes; a longer one is cut, and then has a wrong number of fields

Pieces = Iterator[tuple[np.ndarray, np.ndarray]]  # ids int64 [n], rows float32 [n, width]


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Vectors by id: ``rows`` of ``ids``, or what is in the file ``path``.

    ``vocabulary`` has the ids of a file's words; a word that is not in it is left out.
    """

    path: str = ""
    ids: np.ndarray | None = None
    rows: np.ndarray | None = None
    vocabulary: Mapping[str, int] | None = None

    def __repr__(self) -> str:
        """Say what ranks must agree on."""
        digest = hashlib.sha256(repr(sorted((self.vocabulary or {}).items())).encode())
        for array in (self.ids, self.rows):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        size = os.path.getsize(self.path) if self.path else 0
        return f"GivenRows({self.path!r}, {size} bytes, {digest.hexdigest()[:16]})"

    def load(self, table: SparseTable, owner: int, owners: int) -> None:
        """Put those given rows into a new table that live on this one of its ``owners``.

        TableError for an id that is given twice, or more rows than the table may have.
        """
        for ids, rows in self.pieces(table.dim):
            if not np.isfinite(rows).all():
                bad = ids[np.flatnonzero(~np.isfinite(rows).all(axis=1))[0]]
                raise TableError(
                    f"table {table.name!r}: the vector given for id {bad} is not finite"
                )
            here = np.flatnonzero(owners_of(ids, owners) == owner)
            before, mine = len(table), np.ascontiguousarray(ids[here])
            state = np.full((len(mine), table.state_width), table.optimizer.first_state, np.float32)
            table.load(mine, np.ascontiguousarray(rows[here]), state)
            if len(table) != before + len(mine):
                values, counts = np.unique(mine, return_counts=True)
                twice = (
                    values[np.argmax(counts)] if counts.max() > 1 else "among those of earlier rows"
                )
                raise TableError(f"table {table.name!r}: two vectors are given for one id, {twice}")

    def pieces(self, width: int) -> Pieces:
        """Yield all rows in order; DataError for one that is not of ``width`` finite numbers."""
        if self.ids is None or self.rows is None:
            yield from self._read(width)
            return
        for begin in range(0, len(self.ids), _PIECE):
            part = slice(begin, begin + _PIECE)
            yield self.ids[part], np.ascontiguousarray(self.rows[part], np.float32)

    def _read(self, width: int) -> Pieces:
        from hpcdist.data.columnar.streams import opened_text  # imports pyarrow

        file, _ = opened_text(self.path, None)
        ids: list[int] = []
        rows: list[np.ndarray] = []
        with closing(file):
            for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE), b""), 1):
                where, fields = f"{self.path}, line {number}", line.split()
                if not fields:
                    continue
                if number == 1 and len(fields) == 2 and width != 1:
                    _check_header(where, fields, width)
                    continue
                row = _row(where, fields, width)
                id_ = self._id(where, b" ".join(fields[:-width]))
                if id_ is None:
                    continue
                ids.append(id_)
                rows.append(row)
                if len(ids) == _PIECE:
                    yield np.array(ids, np.int64), np.array(rows)
                    ids, rows = [], []
        if ids:
            yield np.array(ids, np.int64), np.array(rows)

    def _id(self, where: str, word: bytes) -> int | None:
        text = word.decode("utf-8", "surrogateescape")
        if self.vocabulary is not None:
            return self.vocabulary.get(text)
        try:
            return int(text)
        except ValueError:
            raise DataError(
                f"{where}: {text!r} is not an id: pass vocabulary={{word: id}} for files of words"
            ) from None


def _check_header(where: str, fields: list[bytes], width: int) -> None:
    if fields[1] != str(width).encode():
        raise DataError(
            f"{where}: the file has vectors of {fields[1].decode(errors='replace')} numbers, the "
            f"table rows of {width}"
        )


def _row(where: str, fields: list[bytes], width: int) -> np.ndarray:
    if len(fields) < width + 1:
        raise DataError(
            f"{where}: expected an id or a word and {width} numbers, got {len(fields)} fields"
        )
    try:
        return np.array(fields[-width:], np.float32)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None

"""LIBSVM's and LIBFFM's text: a label, then the features of a row that are not zero."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hpcdist.data.columnar.files import Faults
from hpcdist.data.columnar.text_source import TextSource

_COMMENT = re.compile(rb"\s*#.*")
_LARGEST = (1 << 64) - 1


class LibsvmSource(TextSource):
    """Lines ``label [qid:n] index:value ...``; a comment begins with #."""

    parts: tuple[str, ...] = (
        "index",
        "value",
    )  # of a feature; the last one is a number, others are ids

    def _begin(self) -> None:
        """See whether rows belong to queries: the first one tells."""
        first = next(self._rows(self._read_lines()), b"")
        self._queries = first.split()[1:2] and first.split()[1].startswith(b"qid:")

    def _types(self, lines: list[bytes]) -> pa.Schema:
        fields = [("label", pa.float64())]
        if self._queries:
            fields.append(("qid", pa.int64()))
        fields += [(part, pa.list_(pa.int64())) for part in self.parts[:-1]]
        return pa.schema([*fields, (self.parts[-1], pa.list_(pa.float64()))])

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self._types([]).names

    def _is_row(self, line: bytes) -> bool:
        stripped = line.strip()
        return bool(stripped) and not stripped.startswith(b"#")

    def _parsed(
        self, lines: list[bytes], columns: Sequence[str]
    ) -> tuple[Mapping[str, Any], Faults]:
        faults: Faults = {}
        labels, queries, rows = [], [], []
        for row, line in enumerate(lines):
            label = query = None
            features: list[list[Any]] = [[] for _ in self.parts]
            try:
                label, query, features = self._features(line)
            except ValueError as error:
                faults[row] = ("", self._undecodable(line) or str(error))
            labels.append(label)
            queries.append(query)
            rows.append(features)
        arrays: dict[str, Any] = {
            "label": pa.array(labels, pa.float64()),
            "qid": pa.array(queries, pa.int64()),
        }
        lengths = [len(features[-1]) for features in rows]
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        for place, part in enumerate(self.parts):
            dtype = np.float64 if part == self.parts[-1] else np.uint64
            values = np.array([v for features in rows for v in features[place]], dtype)
            flat = pa.array(values if dtype is np.float64 else values.view(np.int64))
            arrays[part] = pa.ListArray.from_arrays(offsets, flat)
        return {name: arrays[name] for name in columns}, faults

    def _features(self, line: bytes) -> tuple[float, int | None, list[list[Any]]]:
        """Return label, query and features of a line; ValueError if it is malformed."""
        if b"#" in line:
            line = _COMMENT.sub(b"", line, count=1)
        label, *words = line.split()
        query = None
        if words and words[0].startswith(b"qid:"):
            query = int(words.pop(0)[4:])
            if not -1 << 63 <= query < 1 << 63:
                raise ValueError(f"qid {query} has more than 64 bits")
        features: list[list[Any]] = [[] for _ in self.parts]
        *ids, numbers = features
        for word in words:
            parts = word.split(b":")
            if len(parts) != len(self.parts):
                raise ValueError(
                    f"expected {':'.join(self.parts)}, got {word[:80].decode(errors='replace')!r}"
                )
            for values, part in zip(ids, parts):
                number = int(part) if part.isdigit() else -1
                if not 0 <= number <= _LARGEST:
                    got = part[:80].decode(errors="replace")
                    raise ValueError(f"expected an index from 0 on, of 64 bits, got {got!r}")
                values.append(number)
            numbers.append(float(parts[-1]))
        return float(label), query, features


class LibffmSource(LibsvmSource):
    """Lines ``label field:index:value ...``."""

    parts = ("field", "index", "value")

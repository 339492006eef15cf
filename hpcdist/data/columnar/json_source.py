"""JSON lines, parsed by pyarrow; a line that is not an object, or does not fit, is bad."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from hpcdist.data.columnar.files import Faults
from hpcdist.data.columnar.text_source import TextSource


class JsonSource(TextSource):
    """One object in each line; a key that is missing is a null."""

    def _types(self, lines: list[bytes]) -> pa.Schema:
        try:
            return self._table(lines, None).schema
        except pa.ArrowInvalid:
            return self._table([line for line in lines if not _malformed(line)], None).schema

    def _parsed(
        self, lines: list[bytes], columns: Sequence[str]
    ) -> tuple[Mapping[str, Any], Faults]:
        schema = pa.schema([self.schema.field(name) for name in columns])
        faults: Faults = {}
        try:
            table = self._table(lines, schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            good = list(lines)
            for row, line in enumerate(lines):
                if reason := _malformed(line) or self._unfit(line, schema):
                    faults[row] = ("", reason)
                    good[row] = b"{}\n"
            table = self._table(good, schema)
        return {name: table[name] for name in columns}, faults

    def _unfit(self, line: bytes, schema: pa.Schema) -> str:
        """Return why a line cannot be a row of these types; an empty string if it can."""
        try:
            self._table([line], schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return " ".join(str(error).split())[:200]
        return ""

    def _table(self, lines: list[bytes], schema: pa.Schema | None) -> pa.Table:
        data = b"".join(lines)
        table = pyarrow.json.read_json(
            io.BytesIO(data),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=max(len(data) + 1, 1 << 10)
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "ignore",
            ),
        )
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("several objects in a line, or one in several lines")
        return table


def _malformed(line: bytes) -> str:
    """Return why a line is no object; an empty string if it is one."""
    try:
        return "" if isinstance(json.loads(line), dict) else "expected an object"
    except ValueError as error:
        return " ".join(str(error).split())[:200]

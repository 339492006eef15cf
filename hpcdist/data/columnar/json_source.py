"""JSON lines, parsed by pyarrow; a line that is not an object, or does not fit, is bad."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from hpcdist.data.columnar.files import Faults
from hpcdist.data.columnar.integers import is_rounded, may_round, rounded_message
from hpcdist.data.columnar.text_source import TextSource


class JsonSource(TextSource):
    """One object in each line; a key that is missing is a null."""

    def _types(self, lines: list[bytes]) -> pa.Schema:
        try:
            table = self._table(lines, None)
        except pa.ArrowInvalid:
            lines = [line for line in lines if not _malformed(line)]
            table = self._table(lines, None)
        return pa.schema([(n, self._shown(n, table[n], lines)) for n in table.column_names])

    def _shown(self, name: str, column: Any, lines: list[bytes]) -> pa.DataType:
        """Return the type that the values of a column show."""
        if may_round(column):
            is_list = pa.types.is_list(column.type)
            unsigned = pa.list_(pa.uint64()) if is_list else pa.uint64()
            with contextlib.suppress(pa.ArrowInvalid):  # some are negative, or fractions
                self._table(lines, pa.schema([(name, unsigned)]))
                return unsigned
        return column.type

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
        arrays = {name: table[name] for name in columns}
        for name in columns:
            if name not in self._options.given and may_round(table[name]):
                for row, line in enumerate(lines):
                    if row not in faults and (reason := _rounded(line, name)):
                        faults[row] = (name, reason)
        return arrays, faults

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


def _rounded(line: bytes, name: str) -> str:
    """Return why a number is another one as a float64; an empty string if it is the same."""
    value = json.loads(line).get(name)
    for number in value if isinstance(value, list) else [value]:
        if type(number) is int and is_rounded(str(number), float(number)):
            return rounded_message(str(number), name)
    return ""


def _malformed(line: bytes) -> str:
    """Return why a line is no object; an empty string if it is one."""
    try:
        return "" if isinstance(json.loads(line), dict) else "expected an object"
    except ValueError as error:
        return " ".join(str(error).split())[:200]

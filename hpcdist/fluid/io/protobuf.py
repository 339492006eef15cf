"""Messages of protobuf, those of Fluid's Programs, read and written without its library.

A message is fields: a varint (number << 3 | wire type), then the value. Nested messages have their
length first. Fields not in `TABLES` are skipped, as protobuf does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdist.base import text_tables
from hpcdist.checkpoint.fluid_files import as_varint

# Of each message: number -> (name, what it is, whether it comes many times).
TABLES: dict[str, dict[int, tuple[str, str, bool]]] = {
    message: {
        int(number): (name, kind.rstrip("*"), kind.endswith("*"))
        for number, name, kind in map(str.split, fields)
    }
    for message, fields in text_tables.sections(__package__, "messages.txt").items()
}


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            value &= (1 << 64) - 1
            return (value - (1 << 64) if value >> 63 else value), at
    raise ValueError("a number of more than 64 bits")


def _fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value) of a message: a number, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[wire]
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"field {number} of {length} bytes reaches beyond the end")
        yield number, wire, data[at : at + length]
        at += length


def parsed(kind: str, data: memoryview) -> dict[str, Any]:
    """Return the fields of a message of `TABLES`; ValueError, or another, if it is malformed."""
    fields: dict[str, Any] = {}
    for number, wire, value in _fields(data):
        if number not in TABLES[kind]:
            continue
        name, kind_of_field, many = TABLES[kind][number]
        values = _values(kind_of_field, wire, value)
        if many:
            fields.setdefault(name, []).extend(values)
        else:
            (fields[name],) = values
    return fields


def _values(kind: str, wire: int, value: Any) -> list[Any]:
    """Return the values of a field: several numbers, if they are packed."""
    if kind == "int" and wire == 0:
        return [value]
    if kind == "float" and wire == 5:
        return list(struct.unpack("<f", value))
    if kind == "double" and wire == 1:
        return list(struct.unpack("<d", value))
    if wire != 2:
        raise ValueError(f"a field of wire type {wire} where {kind} is expected")
    if kind == "text":
        return [bytes(value).decode()]
    if kind in ("float", "double"):
        size, letter = (4, "f") if kind == "float" else (8, "d")
        return list(struct.unpack(f"<{len(value) // size}{letter}", value))
    if kind == "int":
        numbers, at = [], 0
        while at < len(value):
            number, at = _varint(value, at)
            numbers.append(number)
        return numbers
    return [parsed(kind, value)]


def encoded(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return a message as bytes."""
    parts = []
    for number, (name, kind_of_field, many) in TABLES[kind].items():
        if name not in fields:
            continue
        for value in fields[name] if many else [fields[name]]:
            if kind_of_field == "int":
                parts.append(as_varint(number << 3) + as_varint(value & (1 << 64) - 1))
            elif kind_of_field == "float":
                parts.append(as_varint(number << 3 | 5) + struct.pack("<f", value))
            else:
                data = value.encode() if kind_of_field == "text" else encoded(kind_of_field, value)
                parts.append(as_varint(number << 3 | 2) + as_varint(len(data)) + data)
    return b"".join(parts)

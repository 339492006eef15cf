"""TFRecord files of ``tf.train.Example``: protobuf's parser, and checksums by google-crc32c."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import pyarrow as pa

from hpcdist.base.errors import DataError
from hpcdist.base.extras import install_command
from hpcdist.base.plain_data import MAX_LINE_BYTES
from hpcdist.data.columnar.files import Faults, FileBlock, RawBlock
from hpcdist.data.columnar.streams import opened_text
from hpcdist.data.columnar.text_source import STANDARD, TextOptions

BLOCK_BYTES = 8 << 20
_HEAD = struct.Struct("<QI")  # length, and its checksum
_SUM = struct.Struct("<I")
_KINDS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}


@cache
def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(
            f"data.read: TFRecord files need {error.name}, which is not installed: "
            f"{install_command('tfrecord')}"
        ) from None


@cache
def _example() -> Any:
    """Return the class of ``tf.train.Example``, as TensorFlow's example.proto defines it."""
    descriptors = _needed("google.protobuf.descriptor_pb2")
    pools = _needed("google.protobuf.descriptor_pool")
    factory = _needed("google.protobuf.message_factory")
    one, many = 1, 3  # labels
    types = {"double": 1, "float": 2, "int64": 3, "message": 11, "bytes": 12, "string": 9}
    file = descriptors.FileDescriptorProto(
        name="hpcdist_example.proto", package="tensorflow", syntax="proto3"
    )

    def add(parent: Any, name: str, *fields: tuple[str, int, int, str]) -> Any:
        message = parent.add(name=name)
        for field, number, label, kind in fields:
            made = message.field.add(name=field, number=number, label=label)
            made.type = types.get(kind, types["message"])
            if kind not in types:
                made.type_name = f".tensorflow.{kind}"
        return message

    messages = file.message_type
    add(messages, "BytesList", ("value", 1, many, "bytes"))
    add(messages, "FloatList", ("value", 1, many, "float"))
    add(messages, "Int64List", ("value", 1, many, "int64"))
    lists = ("bytes_list", "float_list", "int64_list")
    kinds = ("BytesList", "FloatList", "Int64List")
    feature = add(
        messages,
        "Feature",
        *[(n, k, one, kind) for k, (n, kind) in enumerate(zip(lists, kinds), 1)],
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = add(messages, "Features", ("feature", 1, many, "Features.FeatureEntry"))
    entry = add(
        features.nested_type,
        "FeatureEntry",
        ("key", 1, one, "string"),
        ("value", 2, one, "Feature"),
    )
    entry.options.map_entry = True
    add(messages, "Example", ("features", 1, one, "Features"))
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _checksum(data: bytes) -> int:
    """Return the masked CRC-32C that stands behind data."""
    crc = _needed("google_crc32c").value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class TfRecordSource:
    """Blocks are records of about 8 MiB; a feature is a column."""

    unit = "block"

    def __init__(
        self, path: str, schema: pa.Schema | None = None, options: TextOptions = STANDARD
    ) -> None:
        _needed("google_crc32c")
        _example()
        self._path, self._schema, self._lengths = path, schema, options.lengths
        self._file, self.splits = opened_text(path, None)

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of columns: those that were given, else as the beginning shows them."""
        return self._inferred() if self._schema is None else self._schema

    def names(self) -> Sequence[str]:
        """Return the names of the features."""
        return self.schema.names

    def has_rows(self) -> bool:
        """Return whether there is a record."""
        self._file.seek(0)
        return bool(self._file.read(1))

    def _inferred(self) -> pa.Schema:
        """Infer the features' types from the first block, and how many values each has."""
        kinds: dict[str, set[str]] = {}
        lengths: dict[str, set[int]] = {}
        for record, _ in self._records(0, BLOCK_BYTES):
            features = self._features(record)
            for name, feature in (features or {}).items():
                kind, values = _values(feature)
                known = kinds.setdefault(name, set())
                if kind:
                    known.add(kind)
                    lengths.setdefault(name, set()).add(len(values))
        if not kinds:
            raise DataError(f"data.read: {self._path} has no records of tf.train.Example")
        fields = []
        for name in sorted(kinds):
            kind = _KINDS[next(iter(kinds[name]))] if len(kinds[name]) == 1 else pa.null()
            fields.append((name, self._sized(name, kind, lengths.get(name, set()))))
        return pa.schema(fields)

    def _sized(self, name: str, kind: pa.DataType, lengths: set[int]) -> pa.DataType:
        """Return the type of a column: one value, some, or any number, as its variable takes."""
        size = self._lengths.get(name, max(lengths) or None if len(lengths) == 1 else None)
        if size == 1 or kind == pa.null():
            return kind
        return pa.list_(kind) if size is None else pa.list_(kind, size)

    def blocks(self) -> Sequence[FileBlock]:
        """Cut the file between records, and count them."""
        blocks: list[FileBlock] = []
        begin, number = 0, 1
        while True:
            rows = size = 0
            for record, _ in self._records(begin, BLOCK_BYTES):
                rows, size = rows + 1, size + _HEAD.size + len(record) + _SUM.size
            if not rows:
                return blocks
            blocks.append(FileBlock(rows, begin, begin + size, number))
            begin, number = begin + size, number + rows

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Parse the records of a block; those that are damaged come with nulls, and are named."""
        faults: Faults = {}
        rows: dict[str, list[Any]] = {name: [] for name in columns}
        for row, (record, intact) in enumerate(self._records(block.begin, block.end - block.begin)):
            features = self._features(record) if intact else None
            if features is None:
                what = "it is no tf.train.Example" if intact else "its checksum is wrong"
                faults[row] = ("", f"the record is damaged: {what}")
            for name in columns:
                value, reason = _as(self.schema.field(name).type, (features or {}).get(name))
                rows[name].append(value)
                if reason:
                    faults.setdefault(row, (name, reason))
        arrays = {name: pa.array(rows[name], self.schema.field(name).type) for name in columns}
        return RawBlock(block.rows, arrays, faults, lambda row: block.line + row)

    def _records(self, begin: int, upto: int) -> Iterator[tuple[bytes, bool]]:
        """Give records from a place on until there are ``upto`` bytes, and whether each is intact.

        DataError where the next one cannot be found.
        """
        self._file.seek(begin)
        at = begin
        while at < begin + upto and (head := self._file.read(_HEAD.size)):
            if len(head) < _HEAD.size:
                raise DataError(f"data.read: {self._path} ends within a record, at byte {at}")
            length, checksum = _HEAD.unpack(head)
            if _checksum(head[: _HEAD.size - _SUM.size]) != checksum:
                raise DataError(
                    f"data.read: {self._path}: at byte {at} no record begins (the checksum of its "
                    "length is wrong): the file is damaged, or is no TFRecord file"
                )
            if length > MAX_LINE_BYTES:
                raise DataError(
                    f"data.read: {self._path}: the record at byte {at} has {length} bytes, more "
                    f"than {MAX_LINE_BYTES >> 20} MiB"
                )
            data = self._file.read(length + _SUM.size)
            if len(data) < length + _SUM.size:
                raise DataError(f"data.read: {self._path} ends within a record, at byte {at}")
            record = data[:length]
            yield record, (_checksum(record),) == _SUM.unpack(data[length:])
            at += _HEAD.size + len(data)

    def _features(self, record: bytes) -> Mapping[str, Any] | None:
        """Return the features of a record; None if it is no Example."""
        try:
            features: Mapping[str, Any] = _example().FromString(record).features.feature
        except _needed("google.protobuf.message").DecodeError:
            return None
        return features

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _values(feature: Any) -> tuple[str, list[Any]]:
    """Return the kind of a feature, and its values."""
    kind = feature.WhichOneof("kind")
    return (kind, list(getattr(feature, kind).value)) if kind else ("", [])


def _as(kind: pa.DataType, feature: Any) -> tuple[Any, str]:
    """Return a feature as a value of a type, or None and why it is none; None alone: a null."""
    found, values = _values(feature) if feature is not None else ("", [])
    is_list = pa.types.is_list(kind)
    if feature is None or (not values and not is_list):
        return None, ""
    wanted = _kind_of(kind.value_type if is_list or pa.types.is_fixed_size_list(kind) else kind)
    if values and found != wanted:
        return None, f"it is a {found}, expected a {wanted}"
    size = None if is_list else kind.list_size if pa.types.is_fixed_size_list(kind) else 1
    if size not in (None, len(values)):
        return None, f"it has {len(values)} values, expected {size}"
    return (values[0] if size == 1 and not pa.types.is_fixed_size_list(kind) else values), ""


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return "float_list"
    return "int64_list" if pa.types.is_integer(kind) else "bytes_list"

"""From columns of files to arrays: one stated rule for each type.

| in the file | here |
|---|---|
| integers, floats, booleans | as they are; 16-bit floats as float32 |
| decimals | float64; without fractions int64, or uint64 |
| text, bytes | int64: XXH3 of the UTF-8 bytes, 64 bits, seed 0; or modulo a number of buckets |
| dates | int64: days since 1970-01-01 |
| times, timestamps, durations | int64: microseconds since midnight, since 1970-01-01 UTC |
| lists | ragged: values, and where each row's begin |
| fixed-size lists, arrays with more dimensions | [rows, ...] |
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
import xxhash

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.files import Faults
from hpcdist.data.columnar.integers import of_hex


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths: row i is ``values[offsets[i]:offsets[i + 1]]``."""

    values: np.ndarray
    offsets: np.ndarray  # int64, ascending from 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dtype(self) -> Any:
        """Type of the values."""
        return self.values.dtype

    def part(self, begin: int, end: int) -> Ragged:
        """Return consecutive rows."""
        first, last = self.offsets[begin], self.offsets[end]
        return Ragged(self.values[first:last], self.offsets[begin : end + 1] - first)

    def take(self, rows: np.ndarray) -> Ragged:
        """Return some rows, in any order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        shifts = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return Ragged(self.values[shifts + np.arange(offsets[-1])], offsets)


Column = np.ndarray | Ragged
ArrowArray: TypeAlias = Any  # a pyarrow.Array or ChunkedArray, or numpy's: pyarrow has no types


def part(column: Column, begin: int, end: int) -> Column:
    """Return consecutive rows of a column."""
    return column.part(begin, end) if isinstance(column, Ragged) else column[begin:end]


def taken(column: Column, rows: np.ndarray) -> Column:
    """Return some rows of a column, in any order."""
    if isinstance(column, Ragged):
        return column.take(rows)
    return np.take(column, rows, axis=0, mode="clip")  # none is outside: "raise" copies twice


def joined(name: str, columns: Sequence[Column]) -> Column:
    """Put the parts of a column one after the other."""
    if len(columns) == 1:
        return columns[0]
    ragged = [column for column in columns if isinstance(column, Ragged)]
    shapes = {c.values.shape[1:] if isinstance(c, Ragged) else c.shape[1:] for c in columns}
    if len(ragged) not in (0, len(columns)) or len(shapes) > 1:
        raise DataError(
            f"{name!r}: some blocks have lists and others values, or lists of another length; all "
            "files must hold the same type"
        )
    if not ragged:
        _expect_exact(name, columns)
        return np.concatenate([np.asarray(column) for column in columns])
    _expect_exact(name, ragged)
    starts = np.cumsum([0, *(len(column.values) for column in ragged)])
    offsets = [column.offsets[:-1] + start for column, start in zip(ragged, starts)]
    return Ragged(
        np.concatenate([column.values for column in ragged]),
        np.concatenate([*offsets, starts[-1:]]).astype(np.int64),
    )


def _expect_exact(name: str, columns: Sequence[Column]) -> None:
    """Raise DataError if joining makes floats of integers of 64 bits."""
    types = {np.dtype(column.dtype) for column in columns}
    if np.result_type(*types).kind == "f" and any(
        t.kind in "iu" and t.itemsize == 8 for t in types
    ):
        raise DataError(
            f"column {name!r} is {' and '.join(sorted(map(str, types)))} in different blocks or "
            "files: joined they would be floats, which do not hold every integer; declare a "
            "variable for it (feed_list=), or write one type into all files"
        )


@dataclass(frozen=True)
class Rules:
    """What becomes of nulls and texts: ``fill`` and ``buckets`` by column; "" is all others."""

    fill: Mapping[str, Any]
    buckets: Mapping[str, int]
    encoded: Set[str] = frozenset()  # columns that are decoded later, from bytes
    hexadecimal: Set[str] = frozenset()  # columns of text that are numbers

    def filling(self, name: str) -> Any:
        """Return the value that replaces nulls of a column; None: such rows are bad."""
        return self.fill.get(name, self.fill.get(""))


def converted(name: str, raw: ArrowArray, rules: Rules, faults: Faults) -> Column:
    """Return a column of a file as arrays; rows that cannot be used are added to ``faults``."""
    kind = raw.dtype if isinstance(raw, np.ndarray) else raw.type
    if name in rules.buckets and not holds_text(raw) and kind != pa.null():
        raise DataError(
            f"buckets: column {name!r} holds {kind}, not text; of CSV types={{{name!r}: 'string'}} "
            "reads it as text"
        )
    if isinstance(raw, np.ndarray) and raw.dtype.kind not in "SUMm":
        if name in rules.encoded:
            raise _not_encoded(name, kind)
        return _of_numpy(name, raw)
    array = _one_array(raw)
    if name in rules.encoded:
        return _of_bytes(name, array, rules, faults)
    if name in rules.hexadecimal and not (_is_list(array.type) or holds_text(array)):
        raise DataError(f"types: column {name!r} holds {array.type}, not text: it is not hex")
    if _is_list(array.type):
        return _of_lists(name, array, rules, faults)
    return _of_values(name, array, rules, faults)


def _one_array(raw: ArrowArray) -> Any:
    """Return a column as one array of pyarrow's."""
    if isinstance(raw, np.ndarray):
        return pa.array(raw.astype(object) if raw.dtype.kind == "U" else raw)
    array = raw
    if isinstance(raw, pa.ChunkedArray):
        array = raw.chunk(0) if raw.num_chunks == 1 else raw.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of no chunks, or of texts too long for one
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array


def holds_text(raw: ArrowArray) -> bool:
    """Return whether a column of a file, or the lists in it, hold text, which is hashed."""
    if isinstance(raw, np.ndarray):
        return raw.dtype.kind in "SU"
    kind = raw.type
    while _is_list(kind) or kinds.is_dictionary(kind):
        kind = kind.value_type
    return is_text(kind)


def is_empty(raw: ArrowArray) -> bool:
    """Return whether a column of a file has nothing but nulls, and so no type."""
    return isinstance(raw, (pa.Array, pa.ChunkedArray)) and raw.null_count == len(raw)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text or bytes."""
    return (
        kinds.is_string(kind)
        or kinds.is_large_string(kind)
        or kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)


def _of_numpy(name: str, raw: np.ndarray) -> Column:
    if raw.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} has the type {raw.dtype}, which holds no numbers or text")
    values = raw.astype(raw.dtype.newbyteorder("="), copy=False)
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _not_encoded(name: str, kind: Any) -> DataError:
    return DataError(
        f"data.read: column {name!r} holds {kind}: only text and bytes are decoded; of CSV "
        f"types={{{name!r}: 'string'}} reads it as text"
    )


def _of_bytes(name: str, array: ArrowArray, rules: Rules, faults: Faults) -> Ragged:
    """Return texts, or bytes, as they are: uint8, one sequence for each row."""
    if kinds.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kinds.is_null(array.type):
        array = pc.cast(array, pa.binary())
    if (kinds.is_list(array.type) or kinds.is_large_list(array.type)) and kinds.is_uint8(
        array.type.value_type
    ):
        lists = _of_lists(name, array, replace(rules, encoded=frozenset()), faults)
        assert isinstance(lists, Ragged)
        return lists
    if not is_text(array.type):
        raise _not_encoded(name, array.type)
    _note_nulls(name, array, rules, faults)
    array = pc.cast(array, pa.large_binary()).fill_null(b"")
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    return Ragged(values, offsets - offsets[0])


def _note_nulls(name: str, array: ArrowArray, rules: Rules, faults: Faults) -> np.ndarray | None:
    """Return which values are null, None if none is; they are bad unless something is filled in."""
    if not array.null_count:
        return None
    missing: np.ndarray = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
    if rules.filling(name) is None:
        for row in missing:
            faults.setdefault(int(row), (name, "the value is null"))
    return missing


def _of_lists(name: str, array: ArrowArray, rules: Rules, faults: Faults) -> Column:
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    if array.null_count and rules.filling(name) is None:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            faults.setdefault(int(row), (name, "the list is null"))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    within: Faults = {}
    values = converted(name, array.flatten(), rules, within)
    if isinstance(values, Ragged):
        raise DataError(f"column {name!r} holds lists of lists: only one level is read")
    for place, (_, reason) in within.items():
        owner = int(np.searchsorted(offsets, place, "right")) - 1
        faults.setdefault(owner, (name, f"element {place - offsets[owner]}: {reason}"))
    if not kinds.is_fixed_size_list(array.type):
        return Ragged(values, offsets)
    shape = (array.type.list_size, *values.shape[1:])
    if not array.null_count:
        return values.reshape(len(array), *shape)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    rows = np.full((len(array), *shape), _filler(name, rules, values.dtype), values.dtype)
    rows[present] = values.reshape(np.count_nonzero(present), *shape)
    return rows


def _of_values(name: str, array: ArrowArray, rules: Rules, faults: Faults) -> np.ndarray:
    missing = _note_nulls(name, array, rules, faults)
    if name in rules.hexadecimal:
        values = _of_hex(name, array, rules, faults)
    elif kinds.is_decimal(array.type) and array.type.scale <= 0:
        values = _integers(name, array, faults)
    else:
        values = _numbers(name, array, rules)
    if missing is not None:
        values = np.array(values)
        values[missing] = _filler(name, rules, values.dtype)
    return values


def _numbers(name: str, array: ArrowArray, rules: Rules) -> np.ndarray:
    """Return numbers for values; what stands for nulls does not matter."""
    kind = array.type
    if kinds.is_dictionary(kind):
        return _numbers(name, array.dictionary_decode(), rules)
    if is_text(kind):
        return _hashed(array, rules.buckets.get(name))
    if kinds.is_date(kind):
        array = pc.cast(pc.cast(array, pa.date32()), pa.int32())
        return _plain(pc.cast(array, pa.int64()))
    if kinds.is_timestamp(kind):
        return _microseconds(name, array, pa.timestamp("us", kind.tz))
    if kinds.is_time(kind):
        return _microseconds(name, array, pa.time64("us"))
    if kinds.is_duration(kind):
        return _microseconds(name, array, pa.duration("us"))
    if kinds.is_decimal(kind):
        return _plain(pc.cast(array, pa.float64()))
    if kinds.is_float16(kind):
        return _plain(pc.cast(array, pa.float32()))
    if kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind):
        return _plain(array)
    if kinds.is_null(kind):
        return np.zeros(len(array), np.float32)
    raise DataError(f"column {name!r} has the type {kind}: expected numbers, text, dates or lists")


def _microseconds(name: str, array: ArrowArray, kind: pa.DataType) -> np.ndarray:
    """Return times as ``kind``, of microseconds, which finer ones are cut to."""
    try:
        cut = pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=True))
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {name!r}: a time does not fit into 64 bits of microseconds: {error}"
        ) from None
    return _plain(pc.cast(cut, pa.int64()))


def _integers(name: str, array: ArrowArray, faults: Faults) -> np.ndarray:
    """Return decimals without fractions, which is how some databases write unsigned ids."""
    for kind in (pa.int64(), pa.uint64()):
        with contextlib.suppress(pa.ArrowInvalid):
            return _plain(pc.cast(array, kind))
    values = [int(value or 0) for value in array.to_pylist()]
    least, most = (-1 << 63, (1 << 63) - 1) if min(values) < 0 else (0, (1 << 64) - 1)
    for row, value in enumerate(values):
        if not least <= value <= most:
            faults.setdefault(row, (name, f"{value} has more than 64 bits"))
            values[row] = 0
    return np.array(values, np.int64 if least else np.uint64)


def _plain(array: ArrowArray) -> np.ndarray:
    """Return numbers as numpy's, without a copy if there are no nulls."""
    if array.null_count:
        array = array.fill_null(pa.scalar(0).cast(array.type))
    return array.to_numpy(zero_copy_only=False)


def _hashed(array: ArrowArray, buckets: int | None) -> np.ndarray:
    """Return a number for each text; each different one is hashed once."""
    encoded = array.dictionary_encode()
    texts = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    digests = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
    numbers = (digests if buckets is None else digests % np.uint64(buckets)).view(np.int64)
    if not len(numbers):
        return np.zeros(len(array), np.int64)
    return numbers[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]


def _of_hex(name: str, array: ArrowArray, rules: Rules, faults: Faults) -> np.ndarray:
    """Return the numbers that texts are in hexadecimal digits, as int64 of the same bits."""
    encoded = array if kinds.is_dictionary(array.type) else array.dictionary_encode()
    texts = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    found, bad = of_hex([text or b"" for text in texts])
    places = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    present = encoded.is_valid().to_numpy(zero_copy_only=False)
    if not len(found):
        return np.zeros(len(array), np.int64)
    for row in np.flatnonzero(bad[places] & present).tolist():
        reason = f"{texts[places[row]]!r:.60} is not a hexadecimal number of 64 bits"
        faults.setdefault(row, (name, reason))
    buckets = rules.buckets.get(name)
    numbers = (found if buckets is None else found % np.uint64(buckets)).view(np.int64)
    return numbers[places]


def _filler(name: str, rules: Rules, dtype: np.dtype[Any]) -> Any:
    """Return the value for nulls, if the column can hold it; 0 where such rows are bad."""
    fill = rules.filling(name)
    if fill is None:
        return 0
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.asarray(float(fill) if dtype.kind == "f" else fill).astype(dtype)
    rounded = dtype.kind == "f" and np.isfinite(value) == np.isfinite(float(fill))
    if value.item() != fill and not rounded:
        raise DataError(f"nulls: {fill!r} cannot stand for nulls of column {name!r} ({dtype})")
    return value

"""The types of columns of files that do not state them: text, and TFRecord.

Types are those that the user gives, or that the beginning of the first file shows; where it does
not, those of the variables. A value that does not fit is a bad row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from hpcdist.base.errors import DataError
from hpcdist.base.nearest import did_you_mean
from hpcdist.data.columnar.files import naming, require


def text_schema(
    kind: Callable[[str], Any],
    paths: Sequence[str],
    needed: Sequence[str],
    types: Mapping[str, Any],
    assumed: Mapping[str, str],
) -> pa.Schema:
    """Return the types of the columns that are needed: as given, else as a file's beginning shows.

    That file is the first one with rows. ``assumed`` are those that variables want, for columns
    that are empty there, or hold numbers and text; and for integers, where the variable takes
    fractions. DataError if a type is unknown.
    """
    declared = {name: _type_of(name, wanted_type) for name, wanted_type in types.items()}
    path = paths[0]
    shown = pa.schema([])
    if not declared.keys() >= set(needed):
        for path in paths:
            with naming(path), closing(kind(path)) as source:
                if source.has_rows():
                    break
        with naming(path), closing(kind(path)) as source:
            shown = source.schema
            require(path, [*shown.names, *declared], needed, hint_of(source))
    for name in needed:
        if name not in declared:
            declared[name] = _settled(path, name, shown.field(name).type, assumed.get(name))
    return pa.schema([(name, declared[name]) for name in needed])


def hint_of(source: Any) -> str:
    """Return why a column may be missing, if the format can tell."""
    hint: str = getattr(source, "hint", str)()
    return hint


def _type_of(name: str, kind: Any) -> pa.DataType:
    try:
        if isinstance(kind, pa.DataType):
            return kind
        if isinstance(kind, str):
            return pa.type_for_alias(kind)
        return pa.from_numpy_dtype(np.dtype(kind))
    except (ValueError, TypeError, pa.ArrowNotImplementedError):
        raise DataError(
            f"data.read: types: {kind!r} of {name!r} is not a type"
            + did_you_mean(str(kind), ("hex", "string", "int64", "uint64", "float32", "float64"))
        ) from None


def _settled(path: str, name: str, shown: pa.DataType, assumed: str | None) -> pa.DataType:
    unclear = pa.null() in (shown, getattr(shown, "value_type", None))
    if assumed and (shown == pa.null() or (assumed == "float64" and pa.types.is_integer(shown))):
        return pa.type_for_alias(assumed)
    if unclear:
        raise DataError(
            f"data.read: the beginning of {path} does not show what column {name!r} holds: it is "
            f"empty, or numbers and text; pass types={{{name!r}: 'float64'}}, or 'string'"
        )
    return shown

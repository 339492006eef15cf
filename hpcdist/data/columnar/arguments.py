"""Checks the arguments of `data.read`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.binary_files import BINARY, H5Source
from hpcdist.data.columnar.columns import ColumnTarget, Rules
from hpcdist.data.columnar.files import naming
from hpcdist.data.columnar.text import TEXT, text_schema

Columns = Sequence[str] | Mapping[str, str | Sequence[str]]


def at_least(least: int, argument: str, value: object) -> int:
    """Return an integer that is not less than ``least``."""
    if not is_integer(value) or value < least:
        raise DataError(f"data.read: {argument} must be an integer >= {least}, got {value!r}")
    return int(value)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether this is an integer, Python's or numpy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def by_column(argument: str, value: Any) -> Mapping[str, Any]:
    """Return a dict by column; none is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"data.read: {argument} must be a dict by column, got {value!r:.80}")
    return value


def format_of(files: Sequence[str]) -> Any:
    """Return what opens a file of the one format that all have."""
    endings = {Path(file).suffix.lower(): file for file in files}
    formats = {**BINARY, **TEXT}
    for ending, file in endings.items():
        if ending not in formats:
            raise DataError(
                f"data.read: {file}: cannot read files that end in {ending!r}, expected one of "
                f"{', '.join(formats)}"
            )
    kinds = {formats[ending]: file for ending, file in endings.items()}
    if len(kinds) > 1:
        raise DataError(
            f"data.read: expected files of one format, got {' and '.join(kinds.values())}"
        )
    (kind,) = kinds
    return kind


def typed(
    kind: Any,
    files: Sequence[str],
    needed: Sequence[str],
    types: Mapping[str, Any],
    targets: Sequence[ColumnTarget],
    texts: Collection[str],
) -> Any:
    """Return what opens a file; of text, with the types that its columns have in all files.

    ``texts`` are columns that are text, whatever the beginning of a file shows.
    """
    if kind in TEXT.values():
        assumed = _assumed(targets) | dict.fromkeys(texts, "string")
        return partial(kind, schema=text_schema(kind, files, needed, types, assumed))
    if types:
        raise DataError(
            "data.read: types= is for CSV and JSON; files of other formats hold their types"
        )
    return partial(kind, columns=needed) if kind is H5Source else kind


def _assumed(targets: Sequence[ColumnTarget]) -> dict[str, str]:
    """Return the types that columns have if they hold just what their variables take."""
    kinds_of: dict[str, set[str]] = {}
    for target in targets:
        if target.dtype is not None:
            for name in target.columns:
                kind = "float64" if target.dtype.kind == "f" else "int64"
                kinds_of.setdefault(name, set()).add(kind)
    return {name: kinds.pop() for name, kinds in kinds_of.items() if len(kinds) == 1}


def targets_of(
    kind: Any, file: str, columns: Columns | None, feed_list: Sequence[Any] | None
) -> list[ColumnTarget]:
    """Return what to read, for variables or as it is in the files."""
    if columns is None and feed_list is None:
        with naming(file), closing(kind(file)) as source:
            columns = list(source.names())
        if kind in TEXT.values() and all(map(_is_number, columns)):
            raise DataError(
                f"data.read: the first line of {file} names the columns {', '.join(columns)[:80]}, "
                "which look like values: add a line with the names; if these are names, pass "
                "columns="
            )
    if columns is None:
        columns = []
    if isinstance(columns, str):
        columns = [columns]
    _expect_columns(columns, feed_list)
    by_target = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    if feed_list is None:
        return [_target(name, chosen) for name, chosen in by_target.items()]
    if not isinstance(feed_list, Sequence):
        raise DataError(f"data.read: feed_list must be a list of variables, got {feed_list!r:.80}")
    targets = []
    for variable in feed_list:
        if not getattr(variable, "shape", None) or not hasattr(variable, "dtype"):
            raise DataError(f"data.read: feed_list must hold variables, got {variable!r:.80}")
        target = _target(variable.name, by_target.get(variable.name, variable.name))
        targets.append(target.of(variable))
    unused = [name for name in by_target if name not in {t.name for t in targets}]
    if unused:
        raise DataError(f"data.read: columns names {unused[0]!r}, which is not in feed_list")
    return targets


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _expect_columns(columns: object, feed_list: object) -> None:
    """Raise DataError if ``columns`` are not what `read` says."""
    fits = isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns)
    if isinstance(columns, Mapping):
        fits = all(
            isinstance(chosen, Sequence) and all(isinstance(name, str) for name in chosen)
            for chosen in columns.values()
        )
    if not fits or not (columns or feed_list):
        raise DataError(
            "data.read: columns must be names of columns; or a dict: name of a variable -> name of "
            f"its column, or a list of columns; got {columns!r:.80}"
        )


def _target(name: str, chosen: str | Sequence[str]) -> ColumnTarget:
    if isinstance(chosen, str):
        return ColumnTarget(name, (chosen,), False)
    if not chosen:
        raise DataError(f"data.read: columns: {name!r} has no column")
    return ColumnTarget(name, tuple(chosen), True)


def rules_of(nulls: object, buckets: Mapping[str, int] | None, encoded: Collection[str]) -> Rules:
    """Return what becomes of nulls and texts; ``encoded`` columns are decoded later."""
    fills = nulls if isinstance(nulls, Mapping) else {"": nulls}
    if isinstance(nulls, str) and nulls == "error":
        fills = {}
    for value in fills.values():
        if not isinstance(value, Real):
            raise DataError(
                "data.read: nulls must be 'error', a number, or a dict of numbers by column, "
                f"got {nulls!r:.200}"
            )
    rules = Rules(dict(fills), dict(by_column("buckets", buckets)), frozenset(encoded))
    for name, count in rules.buckets.items():
        at_least(1, f"buckets[{name!r}]", count)
        if name in rules.encoded:
            raise DataError(f"data.read: column {name!r} has both decode= and buckets=")
    return rules


def refuse_unread(needed: Collection[str], rules: Rules, types: Collection[str]) -> None:
    """Raise DataError for a column that something is said of, and that is not read."""
    arguments = {
        "nulls": rules.fill,
        "buckets": rules.buckets,
        "types": types,
        "decode": rules.encoded,
    }
    for argument, names in arguments.items():
        for name in names:
            if name and name not in needed:
                raise DataError(
                    f"data.read: {argument} names the column {name!r}, which is not read, "
                    f"only {', '.join(needed)[:400]}"
                )

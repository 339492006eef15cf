"""Checks the arguments of `data.read`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import prod
from numbers import Integral, Real
from typing import Any, TypeGuard

from hpcdist.base.errors import DataError
from hpcdist.base.nearest import did_you_mean
from hpcdist.data.columnar.binary_files import H5Source
from hpcdist.data.columnar.columns import Rules
from hpcdist.data.columnar.csv_source import is_number
from hpcdist.data.columnar.delimited import Delimiter
from hpcdist.data.columnar.files import naming
from hpcdist.data.columnar.formats import Format
from hpcdist.data.columnar.streams import encoding_of
from hpcdist.data.columnar.targets import ColumnTarget
from hpcdist.data.columnar.text import text_schema
from hpcdist.data.columnar.text_source import STANDARD, TextOptions

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


def options_of(
    kind: Format, names: object, delimiter: object, encoding: object, strip: object
) -> TextOptions:
    """Return how text is to be read; DataError for what does not apply to the format."""
    given = {"names": names, "delimiter": delimiter, "strip": strip or None}
    for argument, value in given.items():
        if value is not None and not kind.delimited:
            raise DataError(
                f"data.read: {argument}= is for delimited text; files of the format {kind.name} "
                "need none"
            )
    if encoding is not None and not kind.encoded:
        raise DataError(
            f"data.read: encoding= is for text, files of the format {kind.name} are none"
        )
    if type(strip) is not bool:
        raise DataError(f"data.read: strip must be True or False, got {strip!r:.80}")
    if delimiter is not None:
        Delimiter(delimiter)  # type: ignore[arg-type]  # refuses what is no text
    chosen: tuple[str, ...] | None = None
    if names is not None:
        fits = isinstance(names, Sequence) and not isinstance(names, str) and names
        if not fits or not all(isinstance(name, str) and name for name in names):  # type: ignore
            raise DataError(f"data.read: names must be a list of names, got {names!r:.80}")
        chosen = tuple(names)  # type: ignore
        twice = next((name for name in chosen if chosen.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"data.read: names has {twice!r} twice")
    return TextOptions(chosen, delimiter, encoding_of(encoding), strip)  # type: ignore[arg-type]


def typed(
    kind: Format,
    files: Sequence[str],
    needed: Sequence[str],
    types: Mapping[str, Any],
    targets: Sequence[ColumnTarget],
    texts: Collection[str],
    options: TextOptions = STANDARD,
) -> Any:
    """Return the opener of a file; of text, with its columns' types in all files.

    ``texts`` are columns that are text, whatever the beginning of a file shows.
    """
    if kind.typed:
        options = replace(options, given=frozenset(types), lengths=_lengths(targets))
        opened = partial(kind.source, options=options)
        assumed = (_assumed(targets) if kind.encoded else {}) | dict.fromkeys(texts, "string")
        return partial(opened, schema=text_schema(opened, files, needed, types, assumed))
    if types:
        raise DataError(
            f"data.read: types= is for CSV, JSON and TFRecord; files of the format {kind.name} "
            "hold their types (only 'hex', of columns of text, applies to all)"
        )
    if kind.encoded:
        return partial(kind.source, options=options)
    return partial(kind.source, columns=needed) if kind.source is H5Source else kind.source


def _lengths(targets: Sequence[ColumnTarget]) -> dict[str, int | None]:
    """Return how many values of a column the variables take from a row; None: any number."""
    lengths: dict[str, int | None] = {}
    for target in targets:
        if target.ragged:
            lengths |= dict.fromkeys(target.columns)
        elif target.sample is not None and min(target.sample, default=1) > 0:
            size = 1 if target.stacked else prod(target.sample)
            lengths |= dict.fromkeys(target.columns, size)
    return lengths


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
    kind: Format,
    file: str,
    columns: Columns | None,
    feed_list: Sequence[Any] | None,
    options: TextOptions = STANDARD,
) -> list[ColumnTarget]:
    """Return the targets to read, for variables or as they are in the files."""
    if columns is None and feed_list is None:
        opened = partial(kind.source, options=options) if kind.streamed else kind.source
        with naming(file), closing(opened(file)) as source:
            columns = list(source.names())
        if kind.delimited and options.names is None and all(map(is_number, columns)):
            raise DataError(
                f"data.read: the first line of {file} names the columns {', '.join(columns)[:80]}, "
                "which look like values: pass names=[...]; if these are names, pass columns="
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


def rules_of(
    nulls: object,
    buckets: Mapping[str, int] | None,
    encoded: Collection[str],
    hexadecimal: Collection[str] = (),
) -> Rules:
    """Return the rules for nulls and texts; ``encoded`` columns are decoded later."""
    fills = nulls if isinstance(nulls, Mapping) else {"": nulls}
    if isinstance(nulls, str) and nulls == "error":
        fills = {}
    for value in fills.values():
        if not isinstance(value, Real):
            raise DataError(
                "data.read: nulls must be 'error', a number, or a dict of numbers by column, "
                f"got {nulls!r:.200}"
            )
    numbers = dict(by_column("buckets", buckets))
    rules = Rules(dict(fills), numbers, frozenset(encoded), frozenset(hexadecimal))
    for name, count in rules.buckets.items():
        at_least(1, f"buckets[{name!r}]", count)
        if name in rules.encoded:
            raise DataError(f"data.read: column {name!r} has both decode= and buckets=")
    for name in rules.encoded & rules.hexadecimal:
        raise DataError(f"data.read: column {name!r} has both decode= and types= 'hex'")
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
                    f"only {', '.join(needed)[:400]}{did_you_mean(name, needed)}"
                )

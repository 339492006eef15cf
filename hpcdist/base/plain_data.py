"""Untrusted JSON as typed values: data of a wrong type is refused. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

MAX_INTEGER = 1 << 62
MAX_FLOAT = sys.float_info.max
MAX_LINE_BYTES = 64 << 20  # of a text file: a longer one has no end of line, or is no text


def typed(kind: Any, plain: Any) -> Any:
    """Return JSON's ``plain`` as a value of type ``kind``; ValueError or KeyError if it is none.

    ``kind`` is a dataclass, or what its fields may be: numbers, text, tuples, Mappings, or one of
    these or None. Integers count or measure something: they are from 0 to 2**62.
    """
    arguments = get_args(kind)
    if kind is Any:
        return plain
    if isinstance(kind, type) and is_dataclass(kind):
        by_name = _of(dict, plain)
        values = {
            name: typed(hint, by_name[name])
            for name, (hint, needed) in _fields(kind).items()
            if needed or name in by_name
        }
        return kind(**values)
    if get_origin(kind) is UnionType:  # with None
        return None if plain is None else typed(arguments[0], plain)
    if get_origin(kind) is tuple:
        items = _of(list, plain)
        if arguments[-1] is not ...:
            return tuple(typed(k, item) for k, item in zip(arguments, items, strict=True))
        if arguments[0] is int:  # there are millions of them
            return _integers(items)
        return tuple(typed(arguments[0], item) for item in items)
    if get_origin(kind) is Mapping:
        return {name: typed(arguments[1], item) for name, item in _of(dict, plain).items()}
    if kind is int:
        return _integers([plain])[0]
    if kind is float:
        _of((int, float), plain)
        if not -MAX_FLOAT <= plain <= MAX_FLOAT:  # nor NaN; an integer may have hundreds of digits
            raise ValueError(f"{plain!r:.80} is not a finite number")
        return float(plain)
    if kind is str:
        _of(str, plain).encode()  # refuses what no file name can hold
    return _of(kind, plain)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a class, and whether it has no default."""
    hints = get_type_hints(kind)
    return {
        f.name: (hints[f.name], f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
    }


def _of(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, kind) or (isinstance(plain, bool) and kind is not bool):
        raise ValueError(f"expected {getattr(kind, '__name__', kind)}, got {plain!r:.80}")
    return plain


def _integers(numbers: list[Any]) -> tuple[int, ...]:
    if numbers and (
        set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers) >= MAX_INTEGER
    ):
        raise ValueError(f"expected integers from 0 on, got {numbers!r:.80}")
    return tuple(numbers)


def no_number(text: str) -> Any:
    """Refuse NaN and infinity, which JSON does not have; for ``json.loads(parse_constant=)``."""
    raise ValueError(f"{text} is not a finite number")

"""Nested structures of values: lists, tuples, named tuples and dicts, as cells' states are.

They are Fluid's ``layers.utils``. Dicts are traversed in the order of their sorted keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError

__all__ = [
    "assert_same_structure",
    "convert_to_list",
    "copy_mutable_vars",
    "flatten",
    "hold_mutable_vars",
    "is_sequence",
    "map_structure",
    "pack_sequence_as",
]


def is_sequence(seq: Any) -> bool:
    """Return whether something holds values, and is no string."""
    return isinstance(seq, (Mapping, Sequence)) and not isinstance(seq, (str, bytes))


def _parts(nest: Any) -> list[Any]:
    if isinstance(nest, Mapping):
        return [nest[key] for key in sorted(nest)]
    return list(nest)


def flatten(nest: Any) -> list[Any]:
    """Return all values of a structure, one after the other."""
    if not is_sequence(nest):
        return [nest]
    return [value for part in _parts(nest) for value in flatten(part)]


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """Return values as `flatten` gives them in a structure like another one."""
    if not is_sequence(flat_sequence):
        raise GraphTypeError(f"pack_sequence_as: expected a list of values, got {flat_sequence!r}")
    expected = len(flatten(structure))
    if expected != len(flat_sequence):
        raise GraphError(
            f"pack_sequence_as: {structure} has {expected} values, but {len(flat_sequence)} are "
            "given"
        )
    return _packed(structure, iter(flat_sequence))


def _packed(structure: Any, values: Iterator[Any]) -> Any:
    if not is_sequence(structure):
        return next(values)
    parts = [_packed(part, values) for part in _parts(structure)]
    if isinstance(structure, Mapping):
        by_key = dict(zip(sorted(structure), parts))
        return type(structure)((key, by_key[key]) for key in structure)  # type: ignore[call-arg]
    if hasattr(structure, "_fields"):
        return type(structure)(*parts)
    return type(structure)(parts)


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """Apply a function to the values of one structure, or to those of several side by side."""
    values = zip(*(flatten(each) for each in structure))
    return pack_sequence_as(structure[0], [func(*each) for each in values])


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raise an error unless two structures hold equally many values in the same way."""
    if is_sequence(nest1) is not is_sequence(nest2) or len(flatten(nest1)) != len(flatten(nest2)):
        raise GraphError(f"two structures differ: one is {nest1}, the other {nest2}")
    if not is_sequence(nest1):
        return
    if check_types and type(nest1) is not type(nest2):
        raise GraphTypeError(
            f"two structures differ: one is a {type(nest1).__name__}, the other a "
            f"{type(nest2).__name__}: {nest1} and {nest2}"
        )
    if isinstance(nest1, Mapping) and isinstance(nest2, Mapping) and set(nest1) != set(nest2):
        raise GraphError(f"two dicts differ: one has {sorted(nest1)}, the other {sorted(nest2)}")
    for part1, part2 in zip(_parts(nest1), _parts(nest2), strict=True):
        assert_same_structure(part1, part2, check_types)


def hold_mutable_vars(structure: Any) -> bool:
    """Return whether a structure holds others."""
    return any(is_sequence(part) for part in _parts(structure))


def copy_mutable_vars(structure: Any) -> Any:
    """Return a copy of a structure with the same values."""
    return map_structure(lambda value: value, structure)


def convert_to_list(value: Any, n: int, name: str, dtype: type = int) -> list[Any]:
    """Return ``n`` numbers: one that is repeated, or as many as are given."""
    if isinstance(value, dtype):
        return [value] * n
    if not is_sequence(value) or len(value) != n:
        raise GraphError(f"{name} must be a number, or {n} of them, got {value!r}")
    return [dtype(each) for each in value]

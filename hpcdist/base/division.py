"""Integers divided: rounded up, and ranges cut into nearly equal parts."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def equal_parts(total: int, parts: int) -> list[int]:
    """Return ``parts + 1`` bounds of nearly equal parts of 0:total; part k begins at bound k."""
    return [k * total // parts for k in range(parts + 1)]


def equal_part(total: int, part: int, parts: int) -> tuple[int, int]:
    """Return the bounds of one of these parts."""
    return part * total // parts, (part + 1) * total // parts

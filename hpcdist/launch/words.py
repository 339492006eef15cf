"""Words that several messages share."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""Helpers for the text of messages."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a line as a terminal may show it: a control character in a name would command it."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def counted(count: int, noun: str) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""Helpers for the text of messages."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    """Return a line as a terminal may show it: a control character in a name would command it."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def counted(count: int, noun: str) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def spans(numbers: Sequence[int]) -> str:
    """Write numbers in few characters.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

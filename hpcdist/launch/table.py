"""What a job is told about itself at the start, framed as Fluid's launcher framed it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

NAME_WIDTH = 40
VALUE_WIDTH = 45
SHOWN_END = 41


def arguments(options: Mapping[str, object]) -> str:
    """Return the "Configuration Arguments" block, sorted by name."""
    lines = [
        f"{name}: {'' if value is None else value}".rstrip() for name, value in options.items()
    ]
    head = "-----------  Configuration Arguments -----------"
    return "\n".join([head, *sorted(lines), "-" * len(head)])


def environment(variables: Mapping[str, str]) -> str:
    """Return the framed table of variables; of a long value the end is shown."""
    width = NAME_WIDTH + 2 + VALUE_WIDTH
    rows = [(name, _end_of(value)) for name, value in variables.items()]
    lines = [
        f"+{'=' * width}+",
        _row("Distributed Envs", "Value"),
        f"+{'-' * width}+",
        *(_row(name, value) for name, value in rows),
        f"+{'=' * width}+",
    ]
    return "\n".join("    " + line for line in lines)


def _row(name: str, value: str) -> str:
    return f"|{name:>{NAME_WIDTH}}  {value:^{VALUE_WIDTH}}|"


def _end_of(value: str) -> str:
    return value if len(value) < VALUE_WIDTH else "... " + value[-SHOWN_END:]

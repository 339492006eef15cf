"""docs/settings.md, as ``python -m hpcdist settings`` prints it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hpcdist.base.setting import Section, Setting
from hpcdist.base.settings import ALL
from hpcdist.launch.command_line import Parser

_HEAD = """\
# Settings

All environment variables that hpcdist reads. `python -m hpcdist settings` prints this page from
`hpcdist/base/settings.py`. An empty variable counts as not set. The launcher checks the variables
of Fluid and hpcdist before the script starts, and warns about names that do not exist. In a script,
`fluid.get_flags("FLAGS_rpc_deadline")` and `fluid.set_flags({...})` read and set variables that
begin with `FLAGS_`.
"""
_ABOUT = {
    Section.IGNORED: "In Fluid they tune memory, threads and kernels. `get_flags` and `set_flags`"
    " accept them.",
    Section.ROLE: "The launcher sets these on every rank, unless they are already set; see"
    " [launch.md](launch.md).",
}


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``settings``."""
    return Parser("settings", description="List all environment variables, as Markdown.")


def main(argv: Sequence[str]) -> None:
    """Print the page."""
    parser().parse_args(argv)
    print(markdown(), end="")


def markdown() -> str:
    """Return the text of docs/settings.md."""
    parts = [_HEAD]
    for group in Section:
        members = [setting for setting in ALL.values() if setting.group is group]
        parts.append("\n".join(filter(None, [f"## {group.value}\n", _ABOUT.get(group, "")])))
        if group is Section.IGNORED:
            parts[-1] += "\n\n" + "\n".join(f"- `{s.name}` ({_default(s)})" for s in members) + "\n"
            continue
        rows = [
            f"| `{s.name}` | {s.kind.expected} | {s.unit} | {_default(s)} | {s.meaning} |"
            for s in members
        ]
        head = ["| variable | value | unit | default | meaning |", "|---|---|---|---|---|"]
        parts[-1] = parts[-1].rstrip() + "\n\n" + "\n".join([*head, *rows]) + "\n"
    return "\n".join(parts)


def _default(setting: Setting[Any]) -> str:
    if isinstance(setting.default, Setting):
        return f"as `{setting.default.name}`"
    if setting.default in (None, "", ()):
        return ""
    return f"`{setting.kind.text(setting.default)}`"

"""``python -m hpcdist checkpoint inspect|verify PATH``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.checkpoint import Checkpoint
from hpcdist.checkpoint.directories import steps
from hpcdist.checkpoint.metadata import Part
from hpcdist.checkpoint.plan import Saved
from hpcdist.checkpoint.read import StoredFile
from hpcdist.launch.command_line import Parser
from hpcdist.launch.console import console_of
from hpcdist.launch.words import counted

DESCRIPTION = """\
Show the contents of checkpoints, or verify that they are complete.

  python -m hpcdist checkpoint inspect ckpt/         all of a directory
  python -m hpcdist checkpoint verify ckpt/step-100  every byte of one

PATH is a directory of checkpoints, one checkpoint (its directory or its manifest), or one part.
inspect checks everything except the data; verify compares every byte with its checksum. The exit
code is 1 if something is missing or damaged."""
COLOURS = {
    "parameter": "green",
    "optimizer": "cyan",
    "learning rate": "magenta",
    "counter": "magenta",
}


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``checkpoint``."""
    declared = Parser("checkpoint", description=DESCRIPTION)
    declared.add_argument("action", choices=("inspect", "verify"), help="what to do")
    declared.add_argument("path", type=Path, metavar="PATH", help="what to look at")
    return declared


def main(argv: Sequence[str]) -> None:
    """Show or verify the checkpoints under a path; exits with 1 if one is damaged."""
    arguments = parser().parse_args(argv)
    console = console_of(160)
    try:
        intact = _show(console, arguments.path, verify=arguments.action == "verify")
    except CheckpointError as error:
        _say(Console(stderr=True, highlight=False, soft_wrap=True), "not intact", str(error))
        intact = False
    if not intact:
        raise SystemExit(1)


def _show(console: Console, path: Path, *, verify: bool) -> bool:
    """Show the checkpoints or file at ``path``; return whether all of it is intact."""
    checkpoints = steps(path)
    if checkpoints:
        return _show_all(console, path, [p for _, p in checkpoints], verify=verify)
    if path.is_file():
        with StoredFile(path) as file:
            if isinstance(file.facts, Part):
                _show_part(console, file, verify=verify)
                return True
    with Checkpoint(path) as checkpoint:
        if verify:
            checkpoint.check_data()
        _show_checkpoint(console, checkpoint)
    _say(console, "intact", "every byte verified" if verify else "data not read: use verify")
    return True


def _show_all(console: Console, root: Path, paths: Sequence[Path], *, verify: bool) -> bool:
    table = _table(plain(f"Checkpoints in {root}"), "step", "variables", "files", "bytes", "state")
    intact = True
    for path in paths:
        try:
            with Checkpoint(path) as checkpoint:
                if verify:
                    checkpoint.check_data()
                facts = checkpoint.facts
                size = decimal(sum(file.bytes for file in facts.files))
                counts = str(len(checkpoint.variables)), str(len(facts.files))
                state = Text("verified" if verify else "intact", style="green")
                table.add_row(str(facts.step), *counts, size, state)
        except CheckpointError as error:
            intact = False
            table.add_row(path.name, "", "", "", plain(str(error), "red"))
    console.print(table)
    return intact


def _show_checkpoint(console: Console, checkpoint: Checkpoint) -> None:
    facts = checkpoint.facts
    count = len(facts.trainers)
    trainers = f", state of {counted(count, 'trainer')}" if count else ""
    words = f"{checkpoint.manifest}: step {facts.step}, program {facts.program[:12]}{trainers}"
    console.print(plain(words))
    table = _table("Variables", "name", "role", "type", "shape", "bytes", "parts")
    kinds = [*COLOURS]
    for saved in sorted(
        checkpoint.variables.values(),
        key=lambda s: (kinds.index(s.role) if s.role in kinds else len(kinds), s.name),
    ):
        homes = {facts.homes[i] for i in saved.copies or saved.pieces}
        role = plain(saved.role, COLOURS.get(saved.role, ""))
        shape = " x ".join(map(str, saved.shape))
        size = decimal(_nbytes(saved))
        table.add_row(plain(saved.name), role, saved.dtype, shape, size, _numbers(homes))
    console.print(table)
    if facts.tables:
        rows = _table("Tables", "name", "optimizer", "rows", "width", "bytes", "parts")
        for name in dict.fromkeys(t.name for t in facts.tables):
            groups = [(h, t) for h, t in zip(facts.table_homes, facts.tables) if t.name == name]
            first, count = groups[0][1], sum(t.count for _, t in groups)
            optimizer = _kind(first.facts.get("optimizer"))
            row = first.row_bytes + first.state_bytes or 4 * (first.dim + first.state_width)
            size = decimal(count * (8 + row))
            holders = _numbers({h for h, _ in groups})
            rows.add_row(plain(name), plain(optimizer), str(count), str(first.dim), size, holders)
        console.print(rows)
    parts = _table("Parts", "#", "file", "bytes", "written by")
    for number, (file, opened) in enumerate(zip(facts.files, checkpoint.files)):
        assert isinstance(opened.facts, Part)
        written = decimal(file.bytes), plain(opened.facts.writer)
        parts.add_row(str(number), plain(file.file), *written)
    console.print(parts)


def _show_part(console: Console, file: StoredFile, *, verify: bool) -> None:
    part = file.facts
    assert isinstance(part, Part)
    if verify:
        for job in file.check_data():
            job()
    console.print(plain(f"{file.path}: step {part.step}, written by {part.writer}"))
    table = _table("Pieces", "dataset", "of", "rows", "of rows", "type")
    for piece in part.pieces:
        rows = "copy" if piece.copy else f"{piece.begin}:{piece.end}"
        table.add_row(plain(piece.path), plain(piece.name), rows, str(piece.whole[0]), piece.dtype)
    console.print(table)


def _table(title: str | Text, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        numbers = column in ("bytes", "rows", "step", "#", "width", "variables", "files")
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    return table


def _say(console: Console, state: str, words: str) -> None:
    console.print(
        Text(state, style="bold red" if state == "not intact" else "bold green"), end=": "
    )
    console.print(plain(words))


def plain(words: str, style: str = "") -> Text:
    """Return words of a file as what they are: neither markup nor commands to a terminal."""
    shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in words)
    return Text(shown, style=style)


def _kind(optimizer: object) -> str:
    return str(optimizer.get("kind", "")) if isinstance(optimizer, dict) else ""


def _nbytes(saved: Saved) -> int:
    return math.prod(saved.shape) * np.dtype(saved.dtype).itemsize


def _numbers(homes: set[int]) -> str:
    return ", ".join(map(str, sorted(homes)))

"""``python -m hpcdist table stats|top|get|diff``: rows of checkpoints and published versions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hpcdist.base.errors import CheckpointError, PublicationError, TableError
from hpcdist.base.setting import Integer
from hpcdist.launch.checkpoints import plain
from hpcdist.launch.command_line import Parser, argument
from hpcdist.launch.console import console_of
from hpcdist.launch.saved_tables import SavedTable, open_tables
from hpcdist.launch.words import counted
from hpcdist.ps.published.sorted_rows import Ids, Rows

DESCRIPTION = """\
Show the rows of embedding tables, in checkpoints and in published versions.

  python -m hpcdist table stats ckpt/              rows, norms, servers
  python -m hpcdist table top published/ -n 20     the rows of largest norm
  python -m hpcdist table get ckpt/step-100 3 -7   the rows of some ids
  python -m hpcdist table diff ckpt/step-9 ckpt/   what was added and changed

PATH is a checkpoint, a directory of checkpoints (the newest one counts), or a directory that tables
are published to (the newest complete version counts). The exit code is 1 if something is missing or
damaged, an id has no row, or diff finds a difference."""
ACTIONS = {"stats": "PATH", "top": "PATH", "get": "PATH ID ...", "diff": "PATH OTHER"}
SHOWN = 6  # elements of a row
BARS = 40  # columns of the longest bar
LOWEST, HIGHEST = -20, 20  # powers of two between which norms are counted


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``table``."""
    declared = Parser("table", description=DESCRIPTION)
    words = ", ".join(ACTIONS)
    declared.add_argument("action", choices=tuple(ACTIONS), metavar="action", help=words)
    declared.add_argument("given", nargs="+", metavar="PATH", help="and ids, or another path")
    declared.add_argument("--table", metavar="NAME", help="one table (default: all)")
    rows = argument(Integer(1))
    declared.add_argument("-n", type=rows, default=10, metavar="N", help="rows to show (10)")
    return declared


def main(argv: Sequence[str]) -> None:
    """Show rows of tables; exits with 1 as the description says."""
    declared = parser()
    arguments = declared.parse_args(argv)
    action, (first, *more) = arguments.action, arguments.given
    fits = {"get": len(more) > 0, "diff": len(more) == 1}.get(action, not more)
    if not fits:
        declared.error(f"{action}: expected {ACTIONS[action]}, got {' '.join(arguments.given)}")
    ids = [_id(declared, word) for word in more] if action == "get" else []
    console = console_of(160)
    try:
        with ExitStack() as stack:
            found = open_tables(Path(first), stack)
            console.print(plain(found.described))
            tables = found.chosen(arguments.table)
            if action == "diff":
                other = open_tables(Path(more[0]), stack)
                console.print(plain(other.described))
                right = not _diff(console, tables, other.tables, arguments.table, arguments.n)
            elif action == "get":
                right = _get(console, tables, np.array(ids, np.int64))
            else:
                show = _stats if action == "stats" else _top
                for table in tables:
                    show(console, table, arguments.n)
                right = True
    except (CheckpointError, PublicationError, TableError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(plain(f"not shown: {error}"))
        right = False
    if not right:
        raise SystemExit(1)


def _id(declared: argparse.ArgumentParser, word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        declared.error(f"get: expected integers as ids, got {word!r}")
    if not -(2**63) <= value < 2**63:
        declared.error(f"get: an id is an int64, got {word}")
    return value


# -- stats -----------------------------------------------------------------------------------------
@dataclass
class Statistics:
    """Counts of a table's rows: by owner, and by the power of two of their norm."""

    owners: list[int]
    norms: dict[int, int]
    zero: int = 0
    not_finite: int = 0
    total: float = 0.0
    greatest: float = 0.0

    @property
    def skew(self) -> float:
        """How many times the mean the fullest owner has."""
        mean = sum(self.owners) / len(self.owners)
        return max(self.owners) / mean if mean else 1.0

    @property
    def mean(self) -> float:
        """The mean norm of rows whose numbers are finite."""
        counted = sum(self.owners) - self.not_finite
        return self.total / counted if counted else 0.0


def statistics_of(table: SavedTable) -> Statistics:
    """Count a table's rows, reading some at a time."""
    found = Statistics([0] * table.owners, {})
    for owner, ids, rows in table.pieces():
        found.owners[owner] += len(ids)
        norms = norms_of(rows)
        finite = norms[np.isfinite(norms)]
        found.not_finite += len(norms) - len(finite)
        found.zero += int((finite == 0).sum())
        found.total += float(finite.sum())
        found.greatest = max(found.greatest, float(finite.max(initial=0.0)))
        powers = np.floor(np.log2(finite[finite > 0])).clip(LOWEST, HIGHEST).astype(int)
        for power, count in zip(*np.unique(powers, return_counts=True)):
            found.norms[int(power)] = found.norms.get(int(power), 0) + int(count)
    return found


def norms_of(rows: Rows) -> np.ndarray:
    """Return the Euclidean norm of each row, float64 [n]."""
    wide = rows.astype(np.float64)
    norms: np.ndarray = np.sqrt(np.einsum("nw,nw->n", wide, wide))
    return norms


def _stats(console: Console, table: SavedTable, _: int) -> None:
    found = statistics_of(table)
    console.print(
        plain(
            f"\ntable {table.name}: {counted(table.rows, 'row')} of {table.width}, norms: mean "
            f"{found.mean:.4g}, greatest {found.greatest:.4g}; {found.zero} of zeros, "
            f"{found.not_finite} with NaN or infinity"
        )
    )
    shares = ", ".join(str(count) for count in found.owners)
    console.print(f"rows by owner: {shares}; the fullest has {found.skew:.2f} times the mean")
    if not found.norms:
        return
    shown = _table("norm", "rows", "")
    most = max(found.norms.values())
    for power in range(min(found.norms), max(found.norms) + 1):
        count = found.norms.get(power, 0)
        low, high = f"{2.0**power:.3g}", f"{2.0 ** (power + 1):.3g}"
        bar = "#" * -(-BARS * count // most)
        shown.add_row(f"{low} to {high}", str(count), bar)
    console.print(shown)


# -- top, get --------------------------------------------------------------------------------------
def _top(console: Console, table: SavedTable, count: int) -> None:
    best_ids, best = np.empty(0, np.int64), np.empty((0, table.width), np.float32)
    for _, ids, rows in table.pieces():
        all_ids, all_rows = np.concatenate([best_ids, ids]), np.concatenate([best, rows])
        order = np.lexsort(
            [all_ids, -np.nan_to_num(norms_of(all_rows), nan=np.inf, posinf=np.inf)]
        )[:count]
        best_ids, best = all_ids[order], all_rows[order]
    _rows(console, table, best_ids, best)


def _get(console: Console, tables: Sequence[SavedTable], wanted: Ids) -> bool:
    """Show the rows of ids; return whether every id has a row in some table."""
    there: set[int] = set()
    for table in tables:
        found = {int(i): row for i, row in _found(table, wanted)}
        there |= found.keys()
        ids = np.array([i for i in dict.fromkeys(wanted.tolist()) if i in found], np.int64)
        if len(ids):
            _rows(console, table, ids, np.array([found[int(i)] for i in ids], np.float32))
    missing = [i for i in dict.fromkeys(wanted.tolist()) if i not in there]
    if missing:
        names = ", ".join(table.name for table in tables)
        console.print(plain(f"no row of {', '.join(map(str, missing))} in {names}"))
    return not missing


def _found(table: SavedTable, wanted: Ids) -> list[tuple[int, np.ndarray]]:
    pairs = []
    for _, ids, rows in table.pieces():
        for place in np.flatnonzero(np.isin(ids, wanted)):
            pairs.append((int(ids[place]), rows[place]))
    return pairs


def _rows(console: Console, table: SavedTable, ids: Ids, rows: Rows) -> None:
    shown = _table("id", "norm", "row")
    for id, norm, row in zip(ids, norms_of(rows), rows, strict=True):
        values = ", ".join(f"{value:.6g}" for value in row[:SHOWN])
        more = ", ..." * (table.width > SHOWN)
        shown.add_row(str(id), f"{norm:.4g}", f"{values}{more}")
    console.print(plain(f"\ntable {table.name}"))
    console.print(shown)


# -- diff ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Difference:
    """The ids that only one of two tables has, and rows that differ, by their greatest change."""

    added: Ids
    deleted: Ids
    changed: Ids
    by: np.ndarray  # the greatest absolute change in each changed row
    same: int


def difference(before: tuple[Ids, Rows], after: tuple[Ids, Rows]) -> Difference:
    """Compare (ids in ascending order, rows) of two tables; NaN equals NaN."""
    common, of_before, of_after = np.intersect1d(
        before[0], after[0], assume_unique=True, return_indices=True
    )
    old, new = before[1][of_before], after[1][of_after]
    differs = ~((old == new) | (np.isnan(old) & np.isnan(new))).all(axis=1)
    with np.errstate(invalid="ignore"):
        change = np.abs(new[differs].astype(np.float64) - old[differs])
    by = np.nan_to_num(change, nan=np.inf, posinf=np.inf).max(axis=1, initial=0.0)
    added = np.setdiff1d(after[0], before[0], assume_unique=True)
    deleted = np.setdiff1d(before[0], after[0], assume_unique=True)
    return Difference(added, deleted, common[differs], by, int((~differs).sum()))


def _diff(
    console: Console,
    tables: Sequence[SavedTable],
    others: Mapping[str, SavedTable],
    only: str | None,
    count: int,
) -> bool:
    """Show what differs between tables of the same name; return whether anything does."""
    differs = False
    for name in sorted({table.name for table in tables} ^ (others.keys() if not only else set())):
        if name not in others or name not in {table.name for table in tables}:
            where = "second" if name in others else "first"
            console.print(plain(f"\ntable {name}: only in the {where}"))
            differs = True
    for table in tables:
        other = others.get(table.name)
        if other is None:
            differs |= bool(only)
            continue
        if other.width != table.width:
            console.print(plain(f"\ntable {table.name}: width {table.width}, then {other.width}"))
            differs = True
            continue
        found = difference(table.read(), other.read())
        console.print(
            plain(
                f"\ntable {table.name}: {len(found.added)} added, {len(found.deleted)} deleted, "
                f"{len(found.changed)} changed, {found.same} the same"
            )
        )
        differs |= bool(len(found.added) or len(found.deleted) or len(found.changed))
        _changes(console, found, count)
    return differs


def _changes(console: Console, found: Difference, count: int) -> None:
    for what, ids in (("added", found.added), ("deleted", found.deleted)):
        if len(ids):
            more = ", ..." * (len(ids) > count)
            console.print(plain(f"{what}: {', '.join(map(str, ids[:count]))}{more}"))
    if len(found.changed):
        shown = _table("changed id", "greatest change")
        for place in np.lexsort([found.changed, -found.by])[:count]:
            shown.add_row(str(found.changed[place]), f"{found.by[place]:.4g}")
        console.print(shown)


def _table(*columns: str) -> Table:
    table = Table(header_style="bold")
    for column in columns:
        numbers = column not in ("row", "norm", "")
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    return table

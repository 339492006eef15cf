"""From blocks to batches: loads windows in order, then cuts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.blocks import Loaded
from hpcdist.data.columnar.columns import Column, joined, part, taken
from hpcdist.data.columnar.order import Numbers, Order, Run, Window, share

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Batch:
    """Rows of the positions ``begin:end``."""

    begin: int
    end: int
    upto: int  # where the batch of all trainers ends
    columns: Mapping[str, Column]
    numbers: Numbers  # of the rows that are used, in order
    skipped: Numbers  # of those that are not


@dataclass(frozen=True)
class LoadedWindow:
    """The rows of a window, in memory."""

    window: Window
    columns: Mapping[str, Column]  # rows that can be used, permuted
    numbers: Numbers  # of all rows, permuted
    usable: np.ndarray | None  # bool, of all rows, permuted
    before: Numbers | None  # how many can be used before each row

    def rows(self, run: Run) -> tuple[dict[str, Column], Numbers, Numbers]:
        """Return the arrays of a run, and the numbers of its rows: used ones and others."""
        begin, end = run.begin, run.end
        numbers = self.numbers[begin:end]
        none = numbers[:0]
        if self.usable is not None and self.before is not None:
            usable = self.usable[begin:end]
            numbers, none = numbers[usable], numbers[~usable]
            begin, end = int(self.before[begin]), int(self.before[end])
        return {n: part(c, begin, end) for n, c in self.columns.items()}, numbers, none


def _load(order: Order, window: Window, read: Callable[[int], Loaded]) -> LoadedWindow:
    loaded = [read(piece.block).part(piece.begin, piece.end) for piece in window.pieces]
    tables = [block.columns for block in loaded if block.columns is not None]
    columns: dict[str, Column] = (
        {n: joined(n, [c[n] for c in tables]) for n in tables[0]} if tables else {}
    )
    places = window.places()
    numbers = order.row_numbers(window, places)
    usable = before = None
    if any(block.usable is not None for block in loaded):
        usable = np.concatenate(
            [
                np.ones(block.rows, bool) if block.usable is None else block.usable
                for block in loaded
            ]
        )
        if places is not None:
            compact = np.cumsum(usable) - 1  # where a row that can be used stands in the arrays
            usable = usable[places]
            places = compact[places[usable]]
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(usable)])
    count = len(numbers) if usable is None else int(np.count_nonzero(usable))
    for name, column in columns.items():
        if len(column) != count:  # every number below would stand for another row
            raise DataError(f"{name!r}: expected {count} rows of a window, got {len(column)}")
    if places is not None:
        columns = {name: taken(column, places) for name, column in columns.items()}
    return LoadedWindow(window, columns, numbers, usable, before)


def windows(
    order: Order,
    position: int,
    stop: int,
    size: int,
    read: Callable[[int], Loaded],
    trainer: int = 0,
    trainers: int = 1,
) -> Iterator[LoadedWindow]:
    """Load the windows that `batches` of the same arguments takes, one by one, as they are due."""
    last: dict[int, Window] = {}  # by lane
    for first in range(position, stop, size):
        begin, end = share(first, min(first + size, stop), trainer, trainers)
        for run in order.runs(begin, end):
            if last.get(run.window.lane) is not run.window:
                last[run.window.lane] = run.window
                yield _load(order, run.window, read)


def batches(
    order: Order,
    position: int,
    stop: int,
    size: int,
    loaded: Iterator[LoadedWindow],
    trainer: int = 0,
    trainers: int = 1,
) -> Iterator[Batch]:
    """Give one trainer's rows of the batches from ``position`` to ``stop``.

    ``loaded`` are `windows`, perhaps read ahead; one of each lane is held.
    """
    by_lane: dict[int, LoadedWindow] = {}  # by lane
    for first in range(position, stop, size):
        upto = min(first + size, stop)
        begin, end = share(first, upto, trainer, trainers)
        parts = []
        for run in order.runs(begin, end):
            window = by_lane.get(run.window.lane)
            if window is None or window.window is not run.window:
                by_lane.pop(run.window.lane, None)  # the next one may be loaded meanwhile
                window = None
                window = by_lane[run.window.lane] = next(loaded)
            parts.append(window.rows(run))
        if len(parts) == 1:
            yield Batch(begin, end, upto, *parts[0])
            continue
        columns = [arrays for arrays, _, _ in parts if arrays]
        yield Batch(
            begin,
            end,
            upto,
            {n: joined(n, [arrays[n] for arrays in columns]) for n in columns[0]}
            if columns
            else {},
            np.concatenate([_NONE, *(numbers for _, numbers, _ in parts)]),
            np.concatenate([_NONE, *(skipped for _, _, skipped in parts)]),
        )

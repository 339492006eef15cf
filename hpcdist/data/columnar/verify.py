"""Verifies from certificates that every row was used exactly once, or lists the rows. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.base.plain_data import no_number, typed
from hpcdist.data.columnar.certificate import VERSION, digest_of
from hpcdist.data.columnar.order import Numbers, Order, Shuffle

MAX_LANES = 1 << 20  # a divisor of the rows of a batch
_NAME = re.compile(r"[\w-]+")
Files = tuple[tuple[str, tuple[int, ...]], ...]  # their names, and the rows of their blocks


@dataclass(frozen=True)
class CertificateHead:
    """What the first line of a trainer's file says, see `certificate.Certificate`."""

    data: str  # digest of what was read
    run: str  # name of this reading
    started: float  # seconds since 1970
    shuffle: Shuffle
    end: int  # positions of an epoch
    of: int  # trainers that each read their share; 1: whole batches
    parent: tuple[str, int, int] | None  # the run from which it continued, and where
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True)
class UsedBatch:
    """A batch that a trainer took."""

    epoch: int
    begin: int
    end: int
    digest: int
    skipped: tuple[int, ...]
    confirmed: bool  # the trainer took the next one, or stopped in good order


@dataclass(frozen=True)
class Record:
    """What one trainer wrote."""

    name: str
    head: CertificateHead
    batches: tuple[UsedBatch, ...]
    left_out: tuple[str, ...]


@dataclass
class Epoch:
    """What became of the rows of one epoch."""

    number: int
    rows: int  # that are to be used: with drop_last not all of them
    complete: bool  # whether it has come to its end
    used: int = 0
    skipped: int = 0
    missing: list[int] = field(default_factory=list)  # rows, of what has been gone through
    repeated: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether each row was used exactly once."""
        return not (self.missing or self.repeated or self.in_flight)


@dataclass
class Verdict:
    """What the certificates of one data set say."""

    data: str
    files: Files
    runs: int
    others: int  # runs that do not count: none of them led here
    rolled_back: int  # rows whose use a restore has undone
    epochs: list[Epoch]
    left_out: list[str]
    damage: list[str]  # lines that do not fit

    @property
    def exact(self) -> bool:
        """Whether every row was used exactly once, as far as the job has come."""
        return not self.damage and all(epoch.exact for epoch in self.epochs)

    def named(self, rows: Sequence[int], most: int = 20) -> list[str]:
        """Return rows as ``file, block, rows``, those that follow each other together."""
        words = []
        for first, last in _ranges(sorted(set(rows))):
            words += list(self._within_blocks(first, last))
        more = len(words) - most
        return words[:most] + ([f"and {more} more ranges"] if more > 0 else [])

    def _within_blocks(self, first: int, last: int) -> Iterator[str]:
        start = 0
        for path, blocks in self.files:
            for number, size in enumerate(blocks):
                begin, end = max(first, start), min(last, start + size)
                if begin < end:
                    yield f"{path}, block {number}, rows {begin - start}:{end - start}"
                start += size


def verify(directory: Path) -> list[Verdict]:
    """Verify the certificates in a directory, for each data set. DataError if there are none."""
    records: dict[str, list[Record]] = {}
    damage: dict[str, list[str]] = {}
    for path in sorted(directory.glob("rows-*.txt")):
        record, wrong = _read(path)
        records.setdefault(record.head.data, []).append(record)
        damage.setdefault(record.head.data, []).extend(wrong)
    if not records:
        raise DataError(f"{directory} holds no certificate (rows-*.txt)")
    try:
        return [
            verdict
            for data, certificates in records.items()
            for verdict in _judge(directory, data, certificates, damage[data])
        ]
    except MemoryError as error:
        raise DataError(
            f"{directory}: its data has too many rows for this memory: {error}"
        ) from None


def _read(path: Path) -> tuple[Record, list[str]]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    try:
        head = _head(lines[0])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not a certificate of this version: {error!r:.200}") from None
    batches: list[UsedBatch] = []
    left_out: list[str] = []
    wrong: list[str] = []
    for number, line in enumerate(lines[1:-1], 2):  # a line without an end is incomplete
        words = line.split(" ")
        try:
            if words[0] == "b":
                if batches:
                    batches[-1] = replace(batches[-1], confirmed=True)
                epoch, begin, end = map(int, words[1:4])
                batches.append(UsedBatch(epoch, begin, end, int(words[4], 16), (), False))
            elif words[0] == "s":
                last = batches[-1]
                batches[-1] = replace(last, skipped=(*last.skipped, int(words[1])))
            elif words[0] == "x":
                left_out.append(line[2:])
            elif words[0] == "e" and batches:
                batches[-1] = replace(batches[-1], confirmed=True)
        except (ValueError, IndexError):
            wrong.append(f"{path.name}, line {number}: malformed")
    return Record(path.name, head, tuple(batches), tuple(left_out)), wrong


def _head(line: str) -> CertificateHead:
    """Parse a certificate's first line; ValueError, KeyError or TypeError if it is none."""
    record = json.loads(line, parse_constant=no_number)
    if record["version"] != VERSION:
        raise ValueError(f"expected version {VERSION}")
    seed, window, lanes, chunk, *runs = record["shuffle"]
    numbers = {"window": window, "lanes": lanes, "chunk": chunk, "runs": [*runs, []][0]}
    fits = seed is None or type(seed) is int  # any integer, also one below 0
    shuffle = {"seed": None, **numbers}
    head: CertificateHead = typed(CertificateHead, {**record, "shuffle": shuffle})
    if not fits or not 0 < lanes <= MAX_LANES or not window or not chunk:
        raise ValueError(f"shuffle {record['shuffle']!r:.80}")
    if not all(map(_NAME.fullmatch, (head.data, head.run))):
        raise ValueError("malformed names")
    return replace(head, shuffle=replace(head.shuffle, seed=seed))


def _files(path: Path) -> Files:
    """Return names of files and rows of their blocks, as an index says."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))["files"]
        files: Files = typed(Files, record)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is missing or damaged: {error!r:.200}") from None
    return files


def _judge(
    directory: Path, data: str, records: list[Record], damage: list[str]
) -> Iterator[Verdict]:
    """Judge every run of the newest job that no other run continued from."""
    files = _files(directory / f"index-{data}.json")
    orders = _Orders([size for _, blocks in files for size in blocks])
    for record in records:
        if record.head.end > orders.positions:
            raise DataError(
                f"{directory}: {record.name} says that an epoch ends at row {record.head.end}, "
                f"and the files have {orders.positions}"
            )
        if sum(record.head.shuffle.runs) not in (0, orders.blocks):
            raise DataError(
                f"{directory}: {record.name} says that blocks are read in runs of "
                f"{sum(record.head.shuffle.runs)} in all, and the files have {orders.blocks}"
            )
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record.head.run, []).append(record)
    lineages = [_lineage(runs, last) for last in _last(runs)]
    other_runs = len(runs.keys() - {run for lineage in lineages for run, _ in lineage})
    for lineage in lineages:
        verdict = Verdict(data, files, len(lineage), other_runs, 0, [], [], [*damage])
        by_epoch: dict[int, list[tuple[UsedBatch, Numbers]]] = {}
        heads: dict[int, CertificateHead] = {}
        for run, until in lineage:
            for record in _distinct(runs[run]):
                for batch, numbers in _checked(record, orders, verdict.damage):
                    if until is not None and (batch.epoch, batch.begin) >= until:
                        verdict.rolled_back += len(numbers)
                        continue
                    confirmed = batch.confirmed or until is not None  # saved: so it was used
                    batch = replace(batch, confirmed=confirmed)
                    by_epoch.setdefault(batch.epoch, []).append((batch, numbers))
                    heads[batch.epoch] = record.head
                verdict.left_out += record.left_out
        for number in sorted(by_epoch):
            upto = max(batch.end for batch, _ in by_epoch[number])
            complete = number < max(by_epoch) or upto == heads[number].end
            epoch = _epoch(number, by_epoch[number], orders, heads[number], complete)
            verdict.epochs.append(epoch)
        yield verdict


def _last(runs: Mapping[str, list[Record]]) -> list[str]:
    """Return the runs of the newest job that none continued from: one of each of its readers."""
    before: set[str] = set()
    for records in runs.values():
        before.update(records[0].head.replaced, (records[0].head.parent or ())[:1])
    started = {run: max(r.head.started for r in runs[run]) for run in runs if run not in before}
    if not started:
        raise DataError("forged certificates: no run is the last one of its job")
    # Clocks of hosts differ: what a run continued from may seem to have started after it.
    newest = max(started, key=lambda run: (started[run], run))
    return [run for run in sorted(started) if _job(run) == _job(newest)]


def _job(run: str) -> str:
    return run.rpartition("-")[0]  # a job's runs are numbered


def _lineage(
    runs: Mapping[str, list[Record]], last: str
) -> list[tuple[str, tuple[int, int] | None]]:
    """Return the runs that led to the last one, and where the next one continued from each."""
    chain: list[tuple[str, tuple[int, int] | None]] = []
    run, until = last, None
    while run in runs and run not in [name for name, _ in chain]:
        chain.append((run, until))
        parent = runs[run][0].head.parent
        if parent is None:
            break
        run, until = parent[0], (parent[1], parent[2])
    return chain[::-1]


def _distinct(records: Sequence[Record]) -> list[Record]:
    """Return the trainers' records; of those who all wrote whole batches, the longest."""
    if records[0].head.of > 1:
        return list(records)
    return [max(records, key=lambda record: (len(record.batches), record.name))]


class _Orders:
    """The orders of epochs, and the rows of the windows that were looked at last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.positions, self.blocks = sum(sizes), len(sizes)
        self._orders: dict[Any, Order] = {}
        self._windows: dict[Any, Numbers] = {}

    def of(self, epoch: int, shuffle: Shuffle) -> Order:
        """Return the order of an epoch."""
        key = (epoch, shuffle)
        if key not in self._orders:
            self._orders[key] = Order(self._sizes, shuffle, epoch)
        return self._orders[key]

    def rows(self, order: Order, begin: int, end: int) -> Numbers:
        """Return the rows at some positions."""
        parts = [np.empty(0, np.int64)]
        for run in order.runs(begin, end):
            key = (id(order), run.window.lane, run.window.begin)
            if key not in self._windows:
                if len(self._windows) > 2 * order.shuffle.lanes + 2:
                    self._windows.clear()
                self._windows[key] = order.row_numbers(run.window, run.window.places())
            parts.append(self._windows[key][run.begin : run.end])
        return np.concatenate(parts)


def _checked(
    record: Record, orders: _Orders, damage: list[str]
) -> Iterator[tuple[UsedBatch, Numbers]]:
    """Give the rows that were used, if the digests say so."""
    digest = 0
    for batch in record.batches:
        order = orders.of(batch.epoch, record.head.shuffle)
        if not 0 <= batch.begin <= batch.end <= order.rows:
            damage.append(f"{record.name}: there are no positions {batch.begin}:{batch.end}")
            return
        if not all(0 <= row < order.rows for row in batch.skipped):
            damage.append(f"{record.name}: it left out rows that the files do not have")
            return
        numbers = orders.rows(order, batch.begin, batch.end)
        numbers = numbers[~np.isin(numbers, batch.skipped)] if batch.skipped else numbers
        digest = digest_of(numbers, digest)
        if digest != batch.digest:
            damage.append(
                f"{record.name}: positions {batch.begin}:{batch.end} of epoch {batch.epoch}: the "
                "digest differs: other rows were read, or a line was changed"
            )
            return
        yield batch, numbers


def _epoch(
    number: int,
    batches: Sequence[tuple[UsedBatch, Numbers]],
    orders: _Orders,
    head: CertificateHead,
    complete: bool,
) -> Epoch:
    """Count how often each row of an epoch was used."""
    order, end = orders.of(number, head.shuffle), head.end
    uses = np.zeros(order.rows, np.uint8)
    epoch = Epoch(number, end, complete)
    upto = end if complete else max(batch.end for batch, _ in batches)
    for batch, numbers in batches:
        if batch.confirmed:
            uses[numbers] = np.minimum(uses[numbers], 254) + 1
        else:
            epoch.in_flight += numbers.tolist()
        epoch.skipped += len(batch.skipped)
        uses[list(batch.skipped)] = 1
    epoch.used = int(np.count_nonzero(uses)) - epoch.skipped
    due = orders.rows(order, 0, upto)
    uses[epoch.in_flight] = np.maximum(uses[epoch.in_flight], 1)
    epoch.missing = due[uses[due] == 0].tolist()
    epoch.repeated = np.flatnonzero(uses > 1).tolist()
    return epoch


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = -2
    for number in numbers:
        if number != last:
            if first >= 0:
                yield first, last
            first = number
        last = number + 1
    if first >= 0:
        yield first, last

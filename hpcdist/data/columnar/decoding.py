"""Decoding of columns: texts to ids of words, encoded images to pixels.

Batches are decoded, not blocks, so windows contain undecoded data, and a trainer decodes only its
rows. The result depends only on the row's bytes, its number and the epoch.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from hpcdist.base.division import equal_parts
from hpcdist.base.errors import DataError
from hpcdist.data.columnar.blocks import Skip
from hpcdist.data.columnar.columns import Column, Ragged, joined, taken
from hpcdist.data.columnar.files import Faults, Index, worded
from hpcdist.data.columnar.images import Images
from hpcdist.data.columnar.targets import ColumnTarget
from hpcdist.data.columnar.windows import Batch

_LARGEST = np.iinfo(np.int64).max
_CHUNKS = 4  # of a batch, for each process: rows take unequal times


class ColumnDecoder(Protocol):
    """What turns one value of a column into an array."""

    @property
    def nothing(self) -> np.ndarray:
        """What stands for a row that cannot be decoded."""

    def row(self, value: bytes, epoch: int, number: int) -> np.ndarray:
        """Return the array; DataError if no row can be decoded so, any other if this one cannot."""

    def refuse(self, target: ColumnTarget) -> None:
        """Raise DataError if a variable cannot take the arrays."""


@dataclass(frozen=True)
class Texts:
    """Texts as ids: ``encode`` returns integers for a text, any number of them."""

    encode: Callable[[str], Sequence[int]]

    @property
    def nothing(self) -> np.ndarray:
        """No ids."""
        return np.zeros(0, np.int64)

    def row(self, value: bytes, epoch: int, number: int) -> np.ndarray:
        """Return the ids of a text, int64[ids]."""
        ids = np.asarray(self.encode(value.decode()))
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError(
                f"decode: {self.encode!r:.80} must return a list of integers for a text, got "
                f"shape {ids.shape} of {ids.dtype}"
            )
        if ids.size and ids.max() > _LARGEST:
            raise DataError(f"decode: {self.encode!r:.80} returned {ids.max()}, expected int64")
        return ids.astype(np.int64)

    def refuse(self, target: ColumnTarget) -> None:
        """Raise DataError if a variable is not ragged, or does not take integers."""
        if target.ragged is False or (target.dtype is not None and target.dtype.kind not in "iu"):
            raise DataError(
                f"data.read: the ids of the texts in column {target.columns[0]!r} are ragged whole "
                f"numbers: declare variable {target.name!r} with int64 and lod_level=1"
            )


def decoders_of(decode: object, targets: Sequence[ColumnTarget]) -> dict[str, ColumnDecoder]:
    """Return the decoder of each column in ``decode``; DataError if a variable does not fit."""
    if not isinstance(decode, Mapping):
        raise DataError(f"data.read: decode must be a dict by column, got {decode!r:.80}")
    decoders: dict[str, ColumnDecoder] = {}
    for name, decoder in decode.items():
        if not isinstance(decoder, Images) and not callable(decoder):
            raise DataError(
                f"data.read: decode: expected Images, a Vocabulary, or a function of a text for "
                f"column {name!r}, got {decoder!r:.80}"
            )
        decoders[name] = decoder if isinstance(decoder, Images) else Texts(decoder)
    for target in targets:
        for name in decoders.keys() & set(target.columns):
            if target.stacked:
                raise DataError(
                    f"data.read: column {name!r} is decoded, so it cannot be combined with other "
                    "columns"
                )
            decoders[name].refuse(target)
    return decoders


class Decoding:
    """Decodes the columns of batches."""

    def __init__(
        self,
        decoders: Mapping[str, ColumnDecoder],
        targets: Sequence[ColumnTarget],
        index: Index,
        workers: int,
    ) -> None:
        self._decoders, self._index, self._workers = decoders, index, workers
        self._targets = [target for target in targets if target.columns[0] in decoders]
        self.doing = ""  # which rows are being decoded, for those who wait too long

    def batches(
        self,
        raw: Callable[[], Iterable[Batch]],
        epoch: int,
        refuse_or_note: Callable[[Sequence[Skip]], None],
    ) -> Iterator[Batch]:
        """Yield batches with their columns decoded.

        ``refuse_or_note`` is called with bad rows: it raises, or they are left out.
        """
        pool = _Pool(self._decoders, self._workers)
        try:
            for batch in raw():
                self.doing = f"rows of positions {batch.begin}:{batch.end} of epoch {epoch}"
                yield self._decoded(batch, epoch, pool, refuse_or_note)
                self.doing = ""
        finally:
            pool.close()

    def _decoded(
        self,
        batch: Batch,
        epoch: int,
        pool: _Pool,
        refuse_or_note: Callable[[Sequence[Skip]], None],
    ) -> Batch:
        if not len(batch.numbers):
            return batch
        columns, faults = dict(batch.columns), Faults()
        for target in self._targets:
            (name,) = target.columns
            raw = columns[target.name]
            assert isinstance(raw, Ragged)
            column, reasons = pool.decoded(name, raw, epoch, batch.numbers)
            for row, reason in reasons.items():
                faults.setdefault(row, (name, reason))
            columns[target.name] = target.filled({name: column}, frozenset(), faults)
        if not faults:
            return replace(batch, columns=columns)
        bad = np.array(sorted(faults))
        refuse_or_note([self._skip(int(batch.numbers[row]), *faults[row]) for row in bad])
        good = np.delete(np.arange(len(batch.numbers)), bad)
        return replace(
            batch,
            columns={name: taken(column, good) for name, column in columns.items()},
            numbers=batch.numbers[good],
            skipped=np.concatenate([batch.skipped, batch.numbers[bad]]),
        )

    def _skip(self, number: int, column: str, reason: str) -> Skip:
        file, within, row = self._index.row(number)
        return Skip(file.path, f"{file.unit} {within}", row, row + 1, column, reason)


Reasons = dict[int, str]  # row that cannot be decoded -> why


def _decode(
    decoder: ColumnDecoder, raw: Ragged, epoch: int, numbers: np.ndarray
) -> tuple[Column, Reasons]:
    """Decode some rows, one after the other."""
    rows, reasons = [], Reasons()
    values = raw.values.tobytes()
    for place, (begin, end) in enumerate(pairwise(raw.offsets.tolist())):
        try:
            rows.append(decoder.row(values[begin:end], epoch, int(numbers[place])))
        except DataError:
            raise
        except Exception as error:  # whatever a damaged image or a user's function raises
            reasons[place] = worded(error)
            rows.append(decoder.nothing)
    if isinstance(decoder, Texts):
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return Ragged(np.concatenate([decoder.nothing, *rows]), offsets), reasons
    return np.stack(rows), reasons


# -- processes -------------------------------------------------------------------------------------
# Ends of pipes of this process's pools. Whatever is forked lets go of them, other pools' processes
# and the script's own too: one that kept an end would keep that pool's processes alive.
_ends: set[int] = set()
_changing = threading.RLock()  # of the set; nothing is forked meanwhile


def _let_go() -> None:
    for end in _ends:
        os.close(end)
    _ends.clear()
    _changing.release()


os.register_at_fork(
    before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_let_go
)


class _Pool:
    """Processes that decode; where there are none, the caller does."""

    def __init__(self, decoders: Mapping[str, ColumnDecoder], workers: int) -> None:
        self._decoders, self._workers = decoders, workers
        self._processes: ProcessPoolExecutor | None = None
        if workers:
            # Only this process holds the end to write into: when it is gone, the others read it.
            with _changing:
                self._life, self._held = os.pipe()
                _ends.add(self._held)
            self._processes = ProcessPoolExecutor(
                workers,
                # Functions of the script's cannot be sent to a process that is started afresh.
                multiprocessing.get_context("fork"),
                _begin,
                (decoders, self._life),
            )

    def decoded(
        self, name: str, raw: Ragged, epoch: int, numbers: np.ndarray
    ) -> tuple[Column, Reasons]:
        """Return the rows of a column as arrays, and those that cannot be decoded."""
        if self._processes is None:
            return _decode(self._decoders[name], raw, epoch, numbers)
        count = min(self._workers * _CHUNKS, len(raw))
        cuts = equal_parts(len(raw), count)
        try:
            parts: list[Future[tuple[Column, Reasons]]] = [
                self._processes.submit(_work, name, raw.part(a, b), epoch, numbers[a:b])
                for a, b in pairwise(cuts)
            ]
            decoded = [part.result() for part in parts]
        except BrokenProcessPool:
            raise DataError(
                f"a process that decodes column {name!r} has died: killed, perhaps because memory "
                "ran out; fewer workers= need less"
            ) from None
        reasons = {
            a + row: reason
            for a, (_, faults) in zip(cuts, decoded)
            for row, reason in faults.items()
        }
        return joined(name, [column for column, _ in decoded]), reasons

    def close(self) -> None:
        """End the processes, whatever they do."""
        if self._processes is not None and self._held in _ends:  # not a copy in a forked process
            self._processes.shutdown(wait=False, cancel_futures=True)
            with _changing:
                _ends.remove(self._held)
                os.close(self._held)
            os.close(self._life)


_here: Mapping[str, ColumnDecoder] = {}  # in a process of a pool: its decoders


def _begin(decoders: Mapping[str, ColumnDecoder], life: int) -> None:
    global _here
    _here = decoders
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()


def _end_with(life: int) -> None:
    """End this process when the one that forked it closes its end, or is dead."""
    os.read(life, 1)
    os._exit(1)


def _work(name: str, raw: Ragged, epoch: int, numbers: np.ndarray) -> tuple[Column, Reasons]:
    return _decode(_here[name], raw, epoch, numbers)

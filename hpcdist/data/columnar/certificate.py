"""Which rows every step used: recorded during training, verified afterwards.

Every trainer appends to its file in one directory, beside ``index-*.json``, which lists the files
and blocks of the data. A line begins with a letter:

    {...}                       first line: whose file this is, and from where it continued
    b epoch begin end digest    the trainer took the positions begin:end of the epoch
    s number                    a row of that batch was left out
    x words                     what was left out, and why
    e                           the trainer stopped reading in good order

``digest`` is XXH3 over the numbers of the rows (int64, little-endian), with the digest before as
seed: it proves that those rows were read and that no earlier line has changed. A batch counts as
used when its trainer took the next one, when it stopped in good order, or when a checkpoint was
saved after it. The last batch of a trainer that was killed is *in flight*.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import xxhash

from hpcdist.base.errors import DataError
from hpcdist.base.replaced import write_whole
from hpcdist.comm.run_name import run_name
from hpcdist.data.columnar.order import Shuffle

if TYPE_CHECKING:  # these need pyarrow, which `verify` must not need
    from hpcdist.data.columnar.blocks import Skip
    from hpcdist.data.columnar.windows import Batch

VERSION = 1


class Certificate:
    """The file of one trainer."""

    def __init__(
        self,
        directory: Path,
        data: str,
        files: Sequence[tuple[str, Sequence[int]]],
        facts: Mapping[str, Any],
        trainer: int,
    ) -> None:
        """``data`` is the digest of ``files``: names, and rows of their blocks."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            index = directory / f"index-{data}.json"
            if not index.exists():
                text = json.dumps({"version": VERSION, "files": files})
                write_whole(index, text)
            self.run, self._file = _new_file(directory, run_name(), trainer)
        except OSError as error:
            raise DataError(f"cannot write a certificate into {directory}: {error}") from None
        self._digest = 0
        head = {
            "version": VERSION,
            "data": data,
            "run": self.run,
            "started": time.time(),
            "trainer": trainer,
        }
        self._write(json.dumps({**head, **facts}))

    def batch(self, epoch: int, batch: Batch, skips: Sequence[Skip]) -> None:
        """Write which rows a step uses."""
        self._digest = digest_of(batch.numbers, self._digest)
        lines = [f"b {epoch} {batch.begin} {batch.end} {self._digest:016x}"]
        lines += [f"s {number}" for number in batch.skipped.tolist()]
        lines += [f"x {' '.join(str(skip).split())}" for skip in skips]
        self._write("\n".join(lines))

    def end(self) -> None:
        """Write that all that was given has been used, so far."""
        self._write("e")

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()


def digest_of(numbers: np.ndarray, before: int) -> int:
    """Return the running digest after some rows."""
    return int(xxhash.xxh3_64_intdigest(np.ascontiguousarray(numbers, "<i8").tobytes(), before))


def _new_file(directory: Path, run: str, trainer: int) -> tuple[str, TextIO]:
    """Make a file that is not there yet; a process may read several data sets, or begin again.

    Returns what names this reading in its job, and the file.
    """
    for number in range(1 << 16):
        path = directory / f"rows-{run}-{number}-{trainer}.txt"
        with contextlib.suppress(FileExistsError):
            return f"{run}-{number}", path.open("x", encoding="utf-8")
    raise DataError(f"{directory} holds {1 << 16} files of this run")


def shuffle_facts(shuffle: Shuffle) -> list[Any]:
    """Return a shuffle as plain data."""
    facts = [shuffle.seed, shuffle.window, shuffle.lanes, shuffle.chunk]
    return [*facts, list(shuffle.runs)] if shuffle.runs else facts

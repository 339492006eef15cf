"""The loop over days and passes: waits for data, scores it, trains it, saves, publishes."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.checks import positive
from hpcdist.base.errors import CheckpointError, DataError
from hpcdist.checkpoint import lock, preemption
from hpcdist.checkpoint.ranks import peers_here, together, with_the_living
from hpcdist.checkpoint.saver import LoopSaver
from hpcdist.fluid.metrics import Auc
from hpcdist.fluid.online.days import DATA, WHOLE_DAY, Days, Found, Passes, PassOfDay, day_of
from hpcdist.fluid.online.history import History
from hpcdist.fluid.online.parts import Parts, batches_are_shared
from hpcdist.ops.metric.auc import area

ERROR, SKIP = "error", "skip"

logger = logging.getLogger("hpcdist.online")


@dataclass(frozen=True)
class Report:
    """A pass that has been trained: its rows, and how well the model before knew them.

    ``auc``: over all trainers, 0 where a class is missing. ``forgotten``: rows of each table, at
    the end of a day that shrinks them.

    >>> Report("20261130", 0, files=1, rows=2, auc=0.5).auc
    0.5
    """

    day: str
    number: int
    files: int
    rows: int
    auc: float
    forgotten: Mapping[str, int] | None = None

    def __str__(self) -> str:
        told = (
            f"{self.day} pass {self.number}: {self.rows} rows, AUC {self.auc:.6f} before training"
        )
        if self.forgotten is not None:
            told += f"; forgotten: {sum(self.forgotten.values())} rows"
        return told


def train(
    data: str | Path,
    first: str,
    parts: Parts,
    saver: LoopSaver,
    *,
    last: str | None = None,
    passes: Passes = WHOLE_DAY,
    done: str = "data.done",
    poll_s: float = 10.0,
    shrink: Callable[[], Mapping[str, int]] | None = None,
    on_empty: str = ERROR,
    after_pass: Callable[[Report], object] | None = None,
) -> int:
    """Train day after day, pass after pass; return how many passes this run has trained.

    Every trainer calls this, after the startup program. The rows of a pass are in the files of
    ``data``/DAY/SPLIT; ``passes`` names the splits of a day, those of one pass in a list (`splits`
    makes them), default: one pass, in the directory of the day. A split is complete when it has the
    file ``done``: until then the job looks every ``poll_s`` seconds ("": nothing is waited for).
    Each pass is loaded, scored by the model so far, then trained (``parts``); ``saver`` counts
    passes: it saves, and publishes, every so many of them. At the end of a day ``shrink`` is
    called, and a base is published. After ``last``, or never, the loop ends, and saves.

    A job that is started again goes on behind the last pass that was saved, with the bits of one
    that was not killed; days before that are done. ``on_empty``: what a pass without a row is, an
    "error" or something to "skip". ``after_pass`` is told each `Report`.

    Raises DataError, on other trainers CheckpointError, for what cannot be: no such directory, a
    day or pass of another form, complete directories without data. A checkpoint that cannot be
    written, as on a full disk, ends nothing: that is said once, and tried again after each pass.

    Examples:
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for day in ("20261130", "20261201"):
        ...     (root / "data" / day).mkdir(parents=True)
        ...     written = (root / "data" / day / "part-0").write_text("0.2 0\\n0.9 1\\n")
        >>> x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1])
        >>> chance = fluid.layers.fc(x, 1, act="sigmoid")
        >>> loss = fluid.layers.mean(fluid.layers.log_loss(chance, y))
        >>> scores = fluid.default_main_program().clone(for_test=True)
        >>> updates = fluid.optimizer.SGD(0.1).minimize(loss)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> def load(files, number):
        ...     rows = np.concatenate([np.loadtxt(file, np.float32, ndmin=2) for file in files])
        ...     return {"x": rows[:, :1], "y": rows[:, 1:]}
        >>> def score(samples):
        ...     yield exe.run(scores, feed=samples, fetch_list=[chance])[0], samples["y"]
        >>> def fit(samples):
        ...     results = exe.run(feed=samples, fetch_list=[loss])
        >>> saver = fluid.checkpoint.Saver(exe, root / "checkpoints")
        >>> parts = hpcdist.online.Parts(load, score, fit)
        >>> hpcdist.online.train(root / "data", "20261130", parts, saver, last="20261201", done="")
        2
    """
    call = "a function or None"
    for name, value, fits, expected in (
        ("parts", parts, isinstance(parts, Parts), "hpcdist.online.Parts, or what makes them"),
        ("saver", saver, isinstance(saver, LoopSaver), "a Saver"),
        ("shrink", shrink, shrink is None or callable(shrink), call),
        ("after_pass", after_pass, after_pass is None or callable(after_pass), call),
    ):
        if not fits:
            raise DataError(f"{name}: expected {expected}, got {value!r}")
    if on_empty not in (ERROR, SKIP):
        raise DataError(f"on_empty: expected {ERROR!r} or {SKIP!r}, got {on_empty!r}")
    positive("poll_s", poll_s, DATA)
    place = PassOfDay(day_of("first", first), 1)
    end = None if last is None else day_of("last", last)
    if end is not None and end < place.day:
        raise DataError(f"last: {last} is before the first day, {first}")
    loop = _Loop(Days(data, passes, done), parts, saver, poll_s)
    place = max(place, loop.resumed())
    count = 0
    while end is None or place.day <= end:
        report = loop.train(place, skips=on_empty == SKIP)
        if loop.ends_day(place) and shrink is not None:
            report = replace(report, forgotten=shrink())
        loop.finish(place, report)
        if after_pass is not None:
            after_pass(report)
        place = loop.days.after(place)
        count += 1
    loop.close()
    return count


class _Loop:
    """What one run does; every trainer has one."""

    def __init__(self, days: Days, parts: Parts, saver: LoopSaver, poll_s: float) -> None:
        self.days = days
        self._parts, self._saver, self._poll_s = parts, saver, poll_s
        self._extra: dict[str, Any] | None = None  # what a checkpoint says of the last pass
        self._history: History | None = None  # of trainer 0
        self._put_off = False

    def resumed(self) -> PassOfDay:
        """Go on from the latest checkpoint, if there is one; return the pass to begin with."""
        restored = self._saver.restore()
        place = PassOfDay(datetime.date.min, 0)
        if restored is not None:
            self._extra = restored.extra
            place = self._place_of(restored.extra, restored.path)
        if peers_here().trainer == 0:
            self._history = History(self._saver.directory, lambda line: _of(line) <= place)
            if restored is not None:
                logger.info("online: goes on behind %s, of %s", place, restored.path)
        return place if restored is None else self.days.after(place)

    def _place_of(self, extra: object, path: Path) -> PassOfDay:
        try:
            line = extra["online"]  # type: ignore[index]
            place, passes = _of(line), int(line["passes"])
        except (KeyError, TypeError, ValueError, DataError):
            raise CheckpointError(f"{path}: was not saved by online.train") from None
        if passes != self.days.passes and place.number != passes:
            raise CheckpointError(
                f"{path}: was saved behind pass {place.number} of {passes} of a day, which now has "
                f"{self.days.passes}: change passes= between two days only"
            )
        return place if passes == self.days.passes else PassOfDay(place.day, self.days.passes)

    def ends_day(self, place: PassOfDay) -> bool:
        """Return whether a pass is the last one of its day."""
        return place.number == self.days.passes

    def train(self, place: PassOfDay, skips: bool) -> Report:
        """Wait for the data of a pass; load, score and train it. Collective."""
        files = self._files(place)
        samples = self._parts.load(files, self.days.index(place))
        auc = Auc("auc")
        for chances, labels in self._parts.score(samples):
            auc.update(_of_both(chances), np.asarray(labels).reshape(-1, 1))
        counts = _of_all(auc.counts)
        rows = int(counts.sum())
        if not rows and not skips:
            raise DataError(f"{place}: there is no row in {len(files)} files: {files[0]}, ...")
        trained = self._parts.train(samples) if rows else 0
        if trained is not None and _of_all(np.array(trained, np.int64)) != rows:
            raise DataError(f"{place}: {rows} rows were scored, and {trained} of them trained here")
        return Report(f"{place.day:%Y%m%d}", place.number, len(files), rows, area(*counts))

    def finish(self, place: PassOfDay, report: Report) -> None:
        """Note that a pass has been trained; save and publish if it is time. Collective."""
        line = asdict(report)
        self._extra = {"online": line | {"passes": self.days.passes}}
        if self._history is not None:
            logger.info("online: %s", report)
            self._history.add(line)
        self._save()
        if self.ends_day(place) and self._saver.publishes:
            self._saver.publish_base()

    def close(self) -> None:
        """Save what has been trained since the last save. Collective."""
        self._saver.close(self._extra)

    def _save(self) -> None:
        """Save if it is time, or if the last checkpoint could not be written.

        CheckpointError if this job has lost its directory to another one.
        """
        try:
            self._saver.after_step(self._extra)
            if self._put_off:
                self._saver.save(self._extra)
        except CheckpointError as error:
            _together(lambda: lock.check(self._saver.directory))
            if not self._put_off:
                logger.warning(
                    "online: the checkpoint is put off, training goes on, and it is tried again "
                    "after each pass: %s",
                    error,
                )
            self._put_off = True
            return
        if self._put_off:
            logger.warning("online: checkpoints go on")
        self._put_off = False

    def _files(self, place: PassOfDay) -> list[str]:
        """Wait until the data of a pass is complete; return its files, as trainer 0 sees them.

        Where a trainer is warned meanwhile, all save, and their scripts end.
        """
        said = False
        while True:
            looked = _together(lambda: self._look(place))
            if any(warned for _, _, warned in looked):
                self.close()
                raise SystemExit(preemption.AGAIN)
            files, awaited, _ = looked[0]
            if not awaited:
                return [*map(str, files)]
            if not said and peers_here().trainer == 0:
                logger.warning("online: %s: waiting for %s", place, awaited)
            said = True
            time.sleep(self._poll_s)

    def _look(self, place: PassOfDay) -> list[Any]:
        found = self.days.find(place) if peers_here().trainer == 0 else Found()
        return [list(found.files), found.awaited, preemption.warned()]


@with_the_living
def _together(compute: Callable[[], Any]) -> list[Any]:
    return together(peers_here(), compute)


def _of_all(counts: np.ndarray) -> np.ndarray:
    """Return the sum over all trainers that have rows of their own. Collective."""
    if batches_are_shared():
        return counts
    gathered = _together(counts.tolist)
    return np.asarray(np.sum([np.array(one, np.int64) for one in gathered], axis=0))


def _of_both(chances: Any) -> np.ndarray:
    """Return chances of both classes, [n, 2], of those of the second, [n] or [n, 1]."""
    array = np.asarray(chances)
    if array.ndim == 2 and array.shape[1] == 2:
        return array
    of_second = array.reshape(-1, 1)
    return np.concatenate([1 - of_second, of_second], axis=1)


def _of(line: Mapping[str, Any]) -> PassOfDay:
    return PassOfDay(day_of("day", line["day"]), int(line["number"]))

"""Saves a training loop's checkpoints at intervals, and when its job must stop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdist.base import settings
from hpcdist.base.checks import is_positive, is_whole
from hpcdist.base.errors import CheckpointError, NotFiniteError
from hpcdist.checkpoint import preemption
from hpcdist.checkpoint.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.kept import Kept
from hpcdist.checkpoint.lock import make
from hpcdist.checkpoint.ranks import peers_here, together, with_the_living
from hpcdist.checkpoint.restoring import SAVED, Restored, restore
from hpcdist.checkpoint.resume_state import Reading
from hpcdist.checkpoint.saving import save, wait

if TYPE_CHECKING:
    from hpcdist.checkpoint.publisher import TablePublisher
    from hpcdist.checkpoint.rows import Choice
    from hpcdist.ps.published.dense import OnnxModel

LOOK_S = 0.5  # how often trainers ask each other whether it is time to save, or to stop
S = TypeVar("S", bound="LoopSaver")
BEST = "best"  # the directory, below that of the others, of the best checkpoint

logger = logging.getLogger("hpcdist.checkpoint")


class LoopSaver:
    """The checkpoints of one training loop, which every trainer runs; front doors say what of.

    See `hpcdist.checkpoint.Saver`, whose options these are.
    """

    def __init__(
        self,
        kept: Callable[[], Kept],
        dirname: str | Path,
        *,
        every: int | None = None,
        every_s: float | None = None,
        keep: int = 2,
        best: str = "min",
        on_nan: str | None = None,
        reader: Reading | None = None,
        compression: str | None = None,
        single_file: bool = False,
        publish: str | Path | None = None,
        publish_every: int | None = None,
        publish_keep: Mapping[str, Choice] | None = None,
        dense: OnnxModel | None = None,
    ) -> None:
        """``kept`` is asked what the loop keeps, as it is then."""
        for name, value, fits, expected in (
            ("every", every, every is None or is_whole(every, 1), "at least 1 step"),
            ("every_s", every_s, every_s is None or is_positive(every_s), "a time above 0"),
            ("keep", keep, is_whole(keep, 1), "at least 1 checkpoint"),
            ("best", best, best in ("min", "max"), "min or max"),
            ("on_nan", on_nan, on_nan in (None, "warn", "end"), "warn or end"),
        ):
            if not fits:
                raise CheckpointError(f"{name}: expected {expected}, got {value!r}")
        preemption.listen()
        self._kept = kept
        self._dirname = Path(dirname)
        self._every, self._every_s, self._keep = every, every_s, keep
        self._sign = 1.0 if best == "min" else -1.0
        self._best = math.inf  # the metric, times the sign, of the best checkpoint
        self._on_nan = on_nan or settings.ON_NAN.read()
        self._reader, self._compression, self._single_file = reader, compression, single_file
        self._publisher: TablePublisher | None = None
        facts = {"every": publish_every, "keep": publish_keep, "dense": dense}
        given = {name: value for name, value in facts.items() if value is not None}
        if publish is not None:
            self._publisher = self._publisher_to(publish, given)
        elif given:
            name = "dense" if "dense" in given else f"publish_{next(iter(given))}"
            raise CheckpointError(f"{name}: say where to: Saver(..., publish='published')")
        self._asks: bool | None = None  # whether trainers ask each other
        self._look_at = 1  # the step after which they do so next
        self._looked = (0, time.monotonic())
        self._saved = (0, time.monotonic())  # the step that is safe, or on its way, and since when
        self._can_save = False  # as far as is known
        self.step = 0

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.close()

    def restore(
        self, *, best: bool = False, partial: bool = False, rates: str = SAVED
    ) -> Restored | None:
        """Restore the latest checkpoint, after the startup program; None if there is none yet.

        With ``best`` that which `save_best` has saved. ``partial`` and ``rates`` as of `restore`.
        """
        self._best = self._best_so_far()
        directory = self._dirname / BEST if best else self._dirname
        kept = self._kept()
        resumed = restore(kept, directory, reader=self._reader, partial=partial, rates=rates)
        if resumed is None:
            return None
        now = time.monotonic()
        self.step = resumed.step
        self._look_at = resumed.step + 1
        self._looked = self._saved = (resumed.step, now)
        return replace(resumed, extra=resumed.extra["extra"]) if best else resumed

    def after_step(self, extra: object = None) -> None:
        """Count a step; save if it is time, and stop if all have been warned.

        ``extra``: plain data of trainer 0, given back by `restore`. Raises SystemExit(75) after the
        checkpoint of a warning, CheckpointError if one could not be saved.
        """
        self.step += 1
        if not self._can_save and (self._every is not None or self._every_s is not None):
            make(self._dirname)  # now, not after hours of training
            self._can_save = True
        if self._publisher is not None:
            self._publisher.after_step(self.step)
        stop, due = self._agreed_now()
        if stop:
            self.save(extra)
            raise SystemExit(preemption.AGAIN)
        if due or (self._every is not None and self.step % self._every == 0):
            self._save(self._dirname, self._keep, extra, asynchronous=True)

    def save(self, extra: object = None) -> None:
        """Save now, and return when the checkpoint is on disk. Every trainer calls this."""
        self._save(self._dirname, self._keep, extra, asynchronous=False)

    def save_best(self, metric: float, extra: object = None) -> bool:
        """Save, apart from the others, if trainer 0's ``metric`` is the best; tell whether it was.

        Every trainer calls this. What is best is known again after `restore`.
        """
        value = together(peers_here(), lambda: float(metric))[0]
        if not self._sign * value < self._best:  # NaN is never the best
            return False
        content = {"metric": value, "extra": extra}
        if not self._save(self._dirname / BEST, 1, content, asynchronous=True):
            return False
        self._best = self._sign * value
        return True

    def publish_base(self) -> None:
        """Publish all rows now, when the version before is complete. Every trainer calls this.

        CheckpointError if nothing is published: see ``publish``.
        """
        if self._publisher is None:
            raise CheckpointError("publish_base: say where to: Saver(..., publish='published')")
        self._publisher.wait()
        self._publisher.publish(self.step, base=True)

    def close(self, extra: object = None) -> None:
        """Save what has been trained since the last save; wait until all is on disk.

        What has changed since the last version is published.
        """
        if self.step > self._saved[0]:
            self.save(extra)
        if self._publisher is not None:
            self._publisher.close(self.step)
        wait()

    @property
    def directory(self) -> Path:
        """The directory of the checkpoints."""
        return self._dirname

    @property
    def publishes(self) -> bool:
        """Whether versions of the tables are published."""
        return self._publisher is not None

    def _publisher_to(self, dirname: str | Path, facts: Mapping[str, Any]) -> TablePublisher:
        from hpcdist.checkpoint.publisher import TablePublisher  # few jobs publish

        return TablePublisher(self._kept, dirname, **facts)

    def _save(self, directory: Path, keep: int, extra: object, *, asynchronous: bool) -> bool:
        """Save; tell whether that was done: NaN and infinity are not saved."""
        try:
            save(
                self._to_save(),
                directory,
                self.step,
                reader=self._reader,
                extra=extra,
                keep=keep,
                compression=self._compression,
                asynchronous=asynchronous and not self._single_file,
                single_file=self._single_file,
                finite=True,
            )
        except NotFiniteError as error:
            if self._on_nan == "end":
                raise
            logger.warning("step %d is not saved, older checkpoints stay: %s", self.step, error)
            return False
        if directory == self._dirname:
            self._saved = (self.step, time.monotonic())
        if not asynchronous:
            wait()
        return True

    def _to_save(self) -> Kept:
        """Return the shards to save now."""
        return self._kept()

    def _best_so_far(self) -> float:
        def read() -> float | None:
            path = latest(self._dirname / BEST) if peers_here().trainer == 0 else None
            if path is None:
                return None
            with Checkpoint(path) as checkpoint:
                extra = checkpoint.facts.extra
            if not isinstance(extra, dict) or not isinstance(extra.get("metric"), (int, float)):
                raise CheckpointError(f"{path}: was not saved by Saver.save_best")
            return float(extra["metric"])

        metric = together(peers_here(), read)[0]
        return math.inf if metric is None else self._sign * metric

    # -- what trainers decide together -----------------------------------------------------------
    @with_the_living
    def _agreed_now(self) -> tuple[bool, bool]:
        """Return whether to stop, and whether to save; all trainers decide so after the same step.

        One that has been warned may be a step ahead of one that has not: if it stopped, the other
        would wait for its gradients. So they ask each other, now and then.
        """
        peers = peers_here()
        if self._asks is None:
            asks = self._every_s is not None or self._kept().lockstep
            self._asks = peers.trainers > 1 and asks
        if not self._asks:
            return preemption.warned(), self._due()
        if self.step < self._look_at:
            return False, False
        gathered = together(
            peers, lambda: [preemption.warned(), self._until_next_look(), self._due()]
        )
        self._look_at = self.step + gathered[0][1]
        return any(warned for warned, _, _ in gathered), bool(gathered[0][2])

    def _due(self) -> bool:
        return self._every_s is not None and time.monotonic() - self._saved[1] >= self._every_s

    def _until_next_look(self) -> int:
        """Return how many steps make `LOOK_S`, as fast as the last ones were."""
        (before, then), now = self._looked, time.monotonic()
        self._looked = (self.step, now)
        return max(1, int((self.step - before) * LOOK_S / max(now - then, 1e-9)))

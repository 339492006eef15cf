"""Saving now and then, and when a job is told to stop: the checkpoints of a training loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hpcdist.checkpoint import preemption
from hpcdist.checkpoint.progress import Resumable
from hpcdist.checkpoint.ranks import peers_here, together, with_the_living
from hpcdist.checkpoint.restore import Restored, restore
from hpcdist.checkpoint.save import save, wait
from hpcdist.errors import CheckpointError
from hpcdist.executor.control import Peers
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program, default_main_program

LOOK_S = 0.5  # how often trainers in step ask each other whether one has been warned


class Saver:
    """The checkpoints of one training loop, which every trainer runs.

    ``restore`` takes up the latest checkpoint, ``after_step`` follows every step: it saves after
    every ``every`` steps, beside training, and keeps the ``keep`` newest. When the batch system
    warns (SIGUSR1, on all ranks), all trainers save after the same step and the script ends with
    exit code 75 (`preemption.AGAIN`), which asks to be started again. ``step`` counts the steps
    since the very beginning.
    """

    def __init__(
        self,
        executor: Executor,
        dirname: str | Path,
        *,
        every: int | None = None,
        keep: int = 2,
        reader: Resumable | None = None,
        main_program: Program | None = None,
        compression: str | None = None,
        single_file: bool = False,
        scope: Scope | None = None,
    ) -> None:
        """``every``: None saves only when warned. The others are those of `save`."""
        if every is not None and every < 1:
            raise CheckpointError(f"every: expected at least 1 step, got {every}")
        preemption.listen()
        self._executor = executor
        self._dirname = dirname
        self._every = every
        self._keep = keep
        self._reader = reader
        self._program = main_program
        self._compression = compression
        self._single_file = single_file
        self._scope = scope
        self._lockstep: bool | None = None
        self._look_at = 1  # the step after which trainers ask each other next
        self._looked = (0, time.monotonic())
        self.step = 0

    def restore(self) -> Restored | None:
        """Take up the latest checkpoint, after the startup program; None if there is none yet."""
        found = restore(
            self._executor,
            self._dirname,
            self._program,
            reader=self._reader,
            scope=self._scope,
        )
        if found is not None:
            self.step = found.step
            self._look_at = found.step + 1
            self._looked = (found.step, time.monotonic())
        return found

    def after_step(self, extra: Any = None) -> None:
        """Count a step; save if it is time, and stop if all have been warned.

        ``extra``: plain data of trainer 0, given back by `restore`. Raises SystemExit(75) after the
        checkpoint of a warning, CheckpointError if one could not be saved.
        """
        self.step += 1
        if self._must_stop():
            self._save(extra, asynchronous=False)
            raise SystemExit(preemption.AGAIN)
        if self._every is not None and self.step % self._every == 0:
            self._save(extra, asynchronous=True)

    def _save(self, extra: Any, *, asynchronous: bool) -> None:
        save(
            self._executor,
            self._dirname,
            self.step,
            self._program,
            reader=self._reader,
            extra=extra,
            keep=self._keep,
            compression=self._compression,
            asynchronous=asynchronous and not self._single_file,
            single_file=self._single_file,
            scope=self._scope,
        )
        if not asynchronous:
            wait()

    @with_the_living
    def _must_stop(self) -> bool:
        """Tell whether to stop after this step; trainers in step decide it for the same one.

        One that has been warned may be a step ahead of one that has not: if it stopped, the other
        would wait for its gradients. So they ask each other, now and then.
        """
        peers = peers_here()
        if self._lockstep is None:
            self._lockstep = peers.trainers > 1 and self._in_step(peers)
        if not self._lockstep:
            return preemption.warned()
        if self.step < self._look_at:
            return False
        told = together(peers, lambda: [preemption.warned(), self._until_next_look()])
        self._look_at = self.step + told[0][1]
        return any(warned for warned, _ in told)

    def _until_next_look(self) -> int:
        """Return how many steps make `LOOK_S`, as fast as the last ones were."""
        (before, then), now = self._looked, time.monotonic()
        self._looked = (self.step, now)
        return max(1, int((self.step - before) * LOOK_S / max(now - then, 1e-9)))

    def _in_step(self, peers: Peers) -> bool:
        program = peers.program(self._program or default_main_program())
        plan = program._trainer_plan
        return plan is None or plan.mode.lockstep

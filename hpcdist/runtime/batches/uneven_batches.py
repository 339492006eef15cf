"""Trainers with unequal numbers of batches: three ways to end an epoch together."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from hpcdist.base import settings
from hpcdist.base.errors import FeedError
from hpcdist.executor import control
from hpcdist.runtime.job.program_job import ProgramJob

Reader = Callable[[], Iterator[Any]]

MODES = ("pad", "cut", "join")
KEPT_BATCHES = 64  # batches of a pass that are kept, to be drawn from again


def even_batches(reader: Reader, how: str = "pad") -> Reader:
    """Return a reader of batches that gives every trainer of a job equally many.

    ``pad``: a trainer that has no more draws from its own again, until the last one is through.
    ``cut``: all end when the first one has no more. ``join``: a trainer that has no more gets
    ``[]`` and takes part without data: `Executor.run` with the feed ``{}`` adds nothing to the
    sums, and every step counts each row once, whoever has it.

    Every trainer must read its passes to their ends, in step with the others. In a process that
    trains alone, and where batches are shared, all have equally many anyway.
    """
    if how not in MODES:
        raise FeedError(f"even_batches: how must be one of {', '.join(MODES)}, got {how!r}")

    def batches() -> Iterator[Any]:
        job = control.installed()
        if not isinstance(job, ProgramJob):
            yield from reader()
            return
        if how == "join":
            job.join_uneven()
        yield from _evened(reader(), how, job)

    return batches


def _evened(reader: Iterator[Any], how: str, job: ProgramJob) -> Iterator[Any]:
    spare = _Spare(f"{settings.SEED.read()}:{job.role.index}")
    reader = iter(reader)
    while True:
        batch = next(reader, None)
        # 1: a batch; 0: none; below: none to repeat either, and by whom that is said.
        without = -1 - job.role.index if how == "pad" and not spare else 0
        have = job.gather(without if batch is None else 1)
        if 1 not in have or (how == "cut" and 0 in have):
            return
        if min(have) < 0:
            raise FeedError(
                f"trainer {-1 - min(have)} has no batch at all that could be repeated: give it "
                "some, or use even_batches(reader, how='join')"
            )
        if batch is not None:
            if how == "pad":
                spare.keep(batch)
            yield batch
        elif how == "pad":
            yield spare.draw()
        else:
            yield []


class _Spare:
    """Some of the batches seen, each with the same chance to be among them."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._spare_batches: list[Any] = []
        self._seen = 0

    def keep(self, batch: object) -> None:
        """See one more batch."""
        self._seen += 1
        if len(self._spare_batches) < KEPT_BATCHES:
            self._spare_batches.append(batch)
        elif (place := self._random.randrange(self._seen)) < KEPT_BATCHES:
            self._spare_batches[place] = batch

    def __len__(self) -> int:
        return len(self._spare_batches)

    def draw(self) -> Any:
        """Return one that was kept."""
        return self._random.choice(self._spare_batches)

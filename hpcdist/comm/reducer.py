"""Sums of buckets during the backward pass: when each starts, and when it is polled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hpcdist.base.errors import CommError
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.recorder import recorder
from hpcdist.comm.collective import Buffer, CollectiveOperations, Reduction

HELPED = 8  # sums that are helped along at once, the oldest: with very many, asking takes long


class BucketReducer:
    """The buckets of one training step, summed over all ranks in place.

    ``start(k)`` when bucket k is full, ``progress()`` between kernels, ``wait(k)`` before its
    first use, in any order of k. Sums begin in the order of the buckets on every rank, whatever
    the order in which a rank fills them: a bucket filled early waits for those before it.
    """

    def __init__(
        self,
        collectives: Sequence[CollectiveOperations],
        arrays: Sequence[Buffer],
        *,
        ordered: bool = False,
        describe: Callable[[int], str] | None = None,
    ) -> None:
        """Make the reductions; ``collectives`` take turns. Collective.

        ``describe(k)`` says in errors what bucket k holds.
        """
        self._describe = describe or (lambda k: f"bucket {k}")
        self._reductions: list[Reduction] = [
            collectives[k % len(collectives)].allreduce_init(
                array, ordered=ordered, describe=self._describer(k)
            )
            for k, array in enumerate(arrays)
        ]
        self._full = [False] * len(arrays)
        self._next = 0  # the first bucket whose sum has not begun
        self._under_way: list[Reduction] = []
        self._round = 1
        self._nbytes = [array.nbytes for array in arrays]
        self._began = [0] * len(arrays)  # monotonic clock, nanoseconds; 0: not noted

    def start(self, bucket: int) -> None:
        """Begin the sum of a bucket that is full, and of those that waited for it."""
        self._full[bucket] = True
        while self._next < len(self._full) and self._full[self._next]:
            reduction = self._reductions[self._next]
            if not self._round & recorder.mask:
                self._began[self._next] = time.monotonic_ns()
            reduction.start()
            if not getattr(reduction, "unaided", False):
                self._under_way.append(reduction)
            self._next += 1
        self.progress()

    def progress(self) -> None:
        """Help the sums under way along, and return at once."""
        waiting = self._under_way
        if not waiting:
            return
        if len(waiting) == 1:
            if waiting[0].test():
                waiting.clear()
            return
        waiting[:HELPED] = [r for r in waiting[:HELPED] if not r.test()]

    def wait(self, bucket: int) -> None:
        """Wait for the sum of one bucket; CommError if a bucket up to it was never started."""
        if bucket >= self._next:
            raise CommError(
                f"{self._describe(bucket)}: waited for before {self._describe(self._next)} is full"
            )
        self.progress()  # those after it continue while this one is waited for
        self._reductions[bucket].wait()
        if self._began[bucket]:
            self._note(bucket)

    def wait_all(self) -> None:
        """Wait for the sums of all buckets; then the next step may begin."""
        for bucket in range(len(self._reductions)):
            self.wait(bucket)
        self._full = [False] * len(self._full)
        self._next = 0
        self._round += 1
        self._under_way.clear()

    def _note(self, bucket: int) -> None:
        begin, self._began[bucket] = self._began[bucket], 0
        name, nbytes = recorder.name(f"sum of bucket {bucket}"), self._nbytes[bucket]
        end = time.monotonic_ns()
        recorder.record(EventKind.SUM, name, begin, end, nbytes, step=self._round)

    def _describer(self, bucket: int) -> Callable[[], str]:
        return lambda: self._describe(bucket)

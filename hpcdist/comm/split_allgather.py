"""A small allgather in two halves: data sent early in a step has arrived by its end.

Every rank starts a round with some bytes and a key, does other work, and waits. If ranks have
meanwhile completed another collective exchange, the round is done too: it costs no extra round
trip.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.base.trace.events import Cause
from hpcdist.comm.base import Array, SharedRows
from hpcdist.comm.collective import RankGroup

LINE = 64  # bytes: what different ranks write is not in one cache line


class SplitAllgather(Protocol):
    """Rounds: ``begin``, fill ``notes[at][rank]``, ``start``, ``wait``, read ``notes[at]``.

    ``notes[at]`` is uint8 [ranks, nbytes]; rounds alternate between the elements of ``notes``. All
    ranks make their rounds in the same order.
    """

    notes: Sequence[Array]
    at: int

    def begin(self) -> None:
        """Begin the next round: the notes of the last one are not read any more.

        Waits for that if nobody has.
        """

    def start(self, key: int) -> None:
        """Send the others ``key``, 64 bits, and this rank's note. Returns at once."""

    def wait(self) -> bool:
        """Wait until all have told theirs; return whether all keys are equal.

        Raises DeadlineError or CommError.
        """

    def keys(self) -> list[int]:
        """Return the ranks' keys in the round that was waited for."""


def split_allgather(group: RankGroup, nbytes: int, operation: Callable[[], str]) -> SplitAllgather:
    """Return rounds of notes of ``nbytes`` bytes, a multiple of 8. Collective.

    ``operation()`` says in errors what is waited for.
    """
    host = group.transport.on_host()
    region = host.share(_SharedAllgather.room(nbytes)) if host.size == group.size else None
    if region is not None:
        return _SharedAllgather(group, region, nbytes, operation)
    return _SummedAllgather(group, nbytes, operation)


class _SharedAllgather(SplitAllgather):
    """In memory that all ranks share. A note may be read until the next but one is written.

    Who writes that has ended the round between, so everyone had begun it, and read the one before.
    """

    def __init__(
        self, group: RankGroup, region: SharedRows, nbytes: int, operation: Callable[[], str]
    ) -> None:
        self._sync = region.sync
        self._rank, self._size = group.rank, group.size
        self._count = 0
        self._under_way = False
        self.at = 0
        flat = region.rows.reshape(-1)
        words = flat[: 2 * 16 * group.size].view(np.uint64).reshape(2, 2, -1)
        # Of each rank the number of its round, and its key; memoryviews are read faster so.
        self._rounds = [memoryview(numbers) for numbers in words[0]]
        self._keys = [memoryview(keys) for keys in words[1]]
        padded = round_up(nbytes, LINE)
        begin, end = LINE * group.size, (LINE + 2 * padded) * group.size
        self.notes: Sequence[Array] = list(
            flat[begin:end].reshape(2, group.size, padded)[:, :, :nbytes]
        )
        describe = group.lacking(operation, self._missing, Cause.ROUND)
        self._wait = group.transport.waiter(self._met, describe, group.deadline_s)

    @staticmethod
    def room(nbytes: int) -> int:
        """Return the bytes of each rank's part of the region."""
        return LINE + 2 * round_up(nbytes, LINE)

    def begin(self) -> None:
        if self._under_way:
            self.wait()
        self._count += 1
        self.at = self._count & 1

    def start(self, key: int) -> None:
        self._under_way = True
        self._keys[self.at][self._rank] = key
        self._sync()
        self._rounds[self.at][self._rank] = self._count

    def wait(self) -> bool:
        if self._rounds[self.at].tobytes() != self._count.to_bytes(8, sys.byteorder) * self._size:
            self._wait()
        self._under_way = False
        self._sync()
        keys = self._keys[self.at].tobytes()
        return keys == keys[:8] * self._size

    def keys(self) -> list[int]:
        return self._keys[self.at].tolist()

    def _met(self) -> bool:
        return min(self._rounds[self.at].tolist()) >= self._count

    def _missing(self) -> list[int]:
        rounds = self._rounds[self.at].tolist()
        return [peer for peer, count in enumerate(rounds) if count < self._count]


class _SummedAllgather(SplitAllgather):
    """By one sum of integers, to which every rank gives its own row, the others zeros."""

    def __init__(self, group: RankGroup, nbytes: int, operation: Callable[[], str]) -> None:
        # Nothing else may come between: a rank that ends starts a round that it does not wait for.
        self._transport = transport = group.transport.split(0, group.rank)
        self._rank = group.rank
        self._words = np.zeros((group.size, 1 + nbytes // 8), np.int64)
        self._keys = self._words[:, 0].view(np.uint64)
        self.notes: Sequence[Array] = [self._words[:, 1:].view(np.uint8)]
        self.at = 0
        self._under_way = False
        self._requests: list[Any] = [None]  # one list forever: the waiter is made once
        describe = group.lacking(operation, cause=Cause.ROUND)
        self._wait = transport.waiter_all(self._requests, describe, group.deadline_s)

    def begin(self) -> None:
        if self._under_way:
            self._wait()
        self._words.fill(0)

    def start(self, key: int) -> None:
        self._under_way = True
        self._keys[self._rank] = key
        self._requests[0] = self._transport.iallreduce(self._words)

    def wait(self) -> bool:
        self._wait()
        self._under_way = False
        return bool((self._keys == self._keys[self._rank]).all())

    def keys(self) -> list[int]:
        keys: list[int] = self._keys.tolist()
        return keys

"""Memory that the ranks of one host share, and how they meet there.

They meet in phases. In each, a rank writes its buffer, signals the others, waits until all have
written (`PhaseBarrier`), and reads theirs. Buffers take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from hpcdist.comm.base import SharedRows, Transport
from hpcdist.comm.futex import Futex
from hpcdist.torch.signature import agree

LINE = 4096  # before a rank's buffers: what it tells the others
BUFFERS = 4
CHUNK = 2**20  # bytes of a buffer
SLEPT = 3  # of what a rank tells: the latest phase in which it has slept
# Compiled loops poll about as long as Python does before they sleep.
SPINS_OF_KERNELS = 10


class HostMemory:
    """Memory shared by all ranks of a group on one host."""

    def __init__(self, transport: Transport, shared: SharedRows, names: tuple[int, ...]) -> None:
        """``shared`` has LINE + BUFFERS * CHUNK bytes of each rank's, the first of them zeros."""
        self.rank, self.size = transport.rank, transport.size
        self.sync = shared.sync
        # Of each rank: its count of phases, its latest two calls, and SLEPT.
        self.heads = [memoryview(row[:32]).cast("q") for row in shared.rows]
        self.others = [head for k, head in enumerate(self.heads) if k != self.rank]
        self.shared = shared.rows
        self.spins = transport.policy.spins * SPINS_OF_KERNELS
        self._names = names
        self._counts = [Futex(row[:8]) for row in shared.rows]
        buffers = torch.from_numpy(shared.rows)[:, LINE:].unflatten(1, (BUFFERS, CHUNK))
        self._buffers = buffers.transpose(0, 1)
        self.count = 0  # of the phases that this rank has told of
        self._calls = 0
        self._view = lru_cache(256)(self._slice)  # a script calls the same again and again

    def rows(self, dtype: torch.dtype, length: int, begin: int = 0) -> list[torch.Tensor]:
        """Return parts of all ranks' buffers of the phase that is to come.

        They have ``length`` elements and lie ``begin`` bytes from the buffers' beginnings.
        """
        return list(self._view(self.count % BUFFERS, dtype, length, begin))

    def meet(self) -> PhaseBarrier:
        """Publish that this rank has written; return the wait for all to have."""
        self.count = count = self.count + 1
        self.sync()
        self.heads[self.rank][0] = count
        self.sync()  # a rank about to sleep has noted it, or sees the count
        for head in self.others:
            if head[SLEPT] == count:
                self._counts[self.rank].wake()
                break
        return PhaseBarrier(self, count)

    def sleep(self, count: int, seconds: float) -> bool:
        """Sleep until a rank that is missing in phase ``count`` comes, ``seconds`` at most.

        Returns False, at once, where ranks cannot wake each other.
        """
        self.heads[self.rank][SLEPT] = count
        self.sync()
        for head, futex in zip(self.heads, self._counts, strict=True):
            seen = head[0]
            if seen < count:
                return futex.sleep(seen, seconds)
        return True

    def tell(self, call: int) -> None:
        """Publish what this rank calls, for the others to compare when they meet next."""
        self._calls += 1
        self.heads[self.rank][1 + self._calls % 2] = call

    def agree(self, call: int, number: int) -> None:
        """Refuse ranks that have told other calls before they met."""
        at = 1 + self._calls % 2
        codes = [head[at] for head in self.heads]
        agree(call, codes, self._names, self.rank, number)

    def _slice(
        self, turn: int, dtype: torch.dtype, length: int, begin: int
    ) -> tuple[torch.Tensor, ...]:
        end = begin + length * dtype.itemsize
        rows: tuple[torch.Tensor, ...] = self._buffers[turn, :, begin:end].view(dtype).unbind(0)
        return rows


class PhaseBarrier:
    """The wait until all ranks have come to a phase."""

    def __init__(self, memory: HostMemory, count: int) -> None:
        self._memory = memory
        self._others = memory.others
        self._count = count

    def ended(self) -> bool:
        """Return whether all ranks have come."""
        # A loop: it is asked again and again, and a generator would take longer.
        for head in self._others:
            if head[0] < self._count:
                return False
        self._memory.sync()
        return True

    def sleep(self, seconds: float) -> bool:
        """Sleep until a missing rank comes, ``seconds`` at most; False if no rank can wake it."""
        return self._memory.sleep(self._count, seconds)

    def missing(self) -> Sequence[int]:
        """Return the ranks that have not come, by their numbers in the group."""
        return [k for k, head in enumerate(self._memory.heads) if head[0] < self._count]


def host_memory(transport: Transport, names: tuple[int, ...]) -> HostMemory | None:
    """Return memory for a group, None if its ranks have none in common. Collective.

    ``names`` are what messages call its ranks.
    """
    if transport.size == 1 or transport.on_host().size < transport.size:
        return None
    shared = transport.share(LINE + BUFFERS * CHUNK)
    return None if shared is None else HostMemory(transport, shared, names)

"""Flat or hierarchical: whichever was faster on the real arrays, in the first steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from hpcdist.comm.collective import Buffer, Collective, Reduction
from hpcdist.comm.hierarchy import Nodes, OverFlat

NAMES = ("flat", "hierarchical")
ROUNDS = 4  # of each way; the first is not counted


class Hierarchical(Collective, Protocol):
    """A group that sums in two levels, over a flat one."""

    @property
    def flat(self) -> Collective: ...

    @property
    def nodes(self) -> Nodes: ...


class MeasuredCollective(OverFlat):
    """A group that sums in the way that turned out to be the faster one, the same on all ranks.

    While it measures, sums are waited for where they start, so nothing else is in the figures.
    A sum in fixed order is hierarchical from the start: what is measured differs between runs.
    """

    def __init__(
        self, hierarchical: Hierarchical, say: Callable[[str], None] | None = None
    ) -> None:
        """``say`` is called once, on rank 0, with the figures and the choice."""
        super().__init__(hierarchical.flat)
        self._hierarchical = hierarchical
        self._say = say
        self._measured: list[MeasuredReduction] = []
        self.choice: int | None = None  # of NAMES, once it is made

    def allreduce_init(
        self, array: Buffer, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        slow = self._hierarchical.allreduce_init(array, ordered=ordered, describe=describe)
        if ordered or not self._hierarchical.nodes.have_two_levels:
            return slow
        flat = self.flat.allreduce_init(array, describe=describe)
        self._measured.append(MeasuredReduction(self, (flat, slow), array.nbytes))
        return self._measured[-1]

    def decide(self) -> int:
        """Return the choice, made from what has been measured. Collective."""
        if self.choice is None:
            done = [m for m in self._measured if m.complete]
            seconds = np.array([sum(m.seconds(way) for m in done) for way in range(len(NAMES))])
            told = self.group.transport.allgather_bytes(seconds.tobytes(), self.group.deadline_s)
            # A sum has ended when it has ended everywhere.
            slowest = np.max([np.frombuffer(other) for other in told], axis=0)
            self.choice = int(slowest.argmin())
            if self.rank == 0 and self._say is not None:
                times = ", ".join(f"{n} {t * 1e3:.3g} ms" for n, t in zip(NAMES, slowest))
                self._say(
                    f"allreduce of {len(done)} buckets, {sum(m.nbytes for m in done) / 1e6:.3g} "
                    f"MB, on {self._hierarchical.nodes}: {times}; {NAMES[self.choice]} from now on"
                )
        return self.choice


class MeasuredReduction:
    """One array's sum in several ways: measured in turn, then the chosen one."""

    def __init__(self, group: MeasuredCollective, ways: tuple[Reduction, ...], nbytes: int) -> None:
        self._group = group
        self._ways = ways
        self._seconds: tuple[list[float], ...] = tuple([] for _ in ways)
        self._steps = 0
        self._chosen: Reduction | None = None
        self.nbytes = nbytes

    @property
    def complete(self) -> bool:
        """Whether every way has been measured often enough."""
        return self._steps >= ROUNDS * len(self._ways)

    def seconds(self, way: int) -> float:
        """Return how long one sum takes this way."""
        return statistics.median(self._seconds[way][1:])

    def start(self) -> None:
        if self._chosen is None and self.complete:
            self._chosen = self._ways[self._group.decide()]
        if self._chosen is not None:
            self._chosen.start()
        else:
            self._measure(self._steps % len(self._ways))

    def test(self) -> bool:
        return self._chosen is None or self._chosen.test()

    def wait(self) -> None:
        if self._chosen is not None:
            self._chosen.wait()

    def _measure(self, way: int) -> None:
        self._group.barrier()
        begin = time.perf_counter()
        self._ways[way].start()
        self._ways[way].wait()
        self._seconds[way].append(time.perf_counter() - begin)
        self._steps += 1

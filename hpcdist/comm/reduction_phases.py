"""The phases of a sum, in which ranks exchange shares of an array.

A phase is a Reduction too: started, tested, waited for; a rank is in one phase of a sum at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from hpcdist.comm.base import Array, Request
from hpcdist.comm.collective import RankGroup, Reduction

Action = Callable[[], object]


class Chain(Reduction):
    """Phases one after another, as one reduction."""

    def __init__(self, phases: Sequence[Reduction]) -> None:
        self._phases = phases
        self._at = len(phases)

    def start(self) -> None:
        self._at = 0
        self._phases[0].start()

    def test(self) -> bool:
        while self._at < len(self._phases):
            if not self._phases[self._at].test():
                return False
            self._advance()
        return True

    def wait(self) -> None:
        while self._at < len(self._phases):
            self._phases[self._at].wait()
            self._advance()

    def _advance(self) -> None:
        self._at += 1
        if self._at < len(self._phases):
            self._phases[self._at].start()


class Exchange(Reduction):
    """Every rank sends and receives arrays; when all have come, ``then`` is called."""

    def __init__(
        self,
        group: RankGroup,
        sends: Sequence[tuple[int, Array]],
        receives: Sequence[tuple[int, Array]],
        tag: int,
        operation: Callable[[], str],
        then: Action | None = None,
    ) -> None:
        """``sends`` and ``receives`` are pairs (peer, array); errors name ``operation()``."""
        self._transport = transport = group.transport
        self._receives = [(p, transport.recv_init(a, p, tag)) for p, a in receives if a.size]
        self._requests: list[Request] = [request for _, request in self._receives]
        self._requests += [transport.send_init(a, p, tag) for p, a in sends if a.size]
        self._then = then
        describe = group.lacking(operation, self._missing)
        self._wait = transport.waiter_all(self._requests, describe, group.deadline_s)

    def start(self) -> None:
        if self._requests:
            self._transport.start(self._requests)

    def test(self) -> bool:
        if self._requests and not self._transport.test_all(self._requests):
            return False
        self._end()
        return True

    def wait(self) -> None:
        if self._requests:
            self._wait()
        self._end()

    def close(self) -> None:
        """Free the requests. Collective."""
        self._transport.release(self._requests)

    def _end(self) -> None:
        if self._then is not None:
            self._then()

    def _missing(self) -> list[int]:
        return [peer for peer, request in self._receives if not self._transport.test_all([request])]


def cuts(length: int, parts: int, owners: int) -> list[int]:
    """Return where the shares of ``parts`` ranks begin, and the end.

    The first ``owners`` ranks have nearly equal shares of the ``length`` elements, the others none.
    """
    return [length * min(part, owners) // owners for part in range(parts + 1)]


def shares(flat: Array, bounds: Sequence[int]) -> list[Array]:
    """Return the shares of a vector, rank by rank.

    flat: [n]; bounds: ranks + 1 offsets. Returns views: rank k has bounds[k]:bounds[k + 1].
    """
    return [flat[begin:end] for begin, end in pairwise(bounds)]


def reduce_scatter(
    group: RankGroup, flat: Array, bounds: Sequence[int], tag: int, operation: Callable[[], str]
) -> Exchange:
    """Return the phase after which every rank's share of ``flat`` is the sum, in rank order."""
    from hpcdist.comm.ordered_sum import add_rows  # numba takes 0.3 s to import

    parts = shares(flat, bounds)
    part, peers = parts[group.rank], group.others
    rows: Any = np.empty((len(peers), part.size), flat.dtype)
    return Exchange(
        group,
        [(peer, parts[peer]) for peer in peers],
        list(zip(peers, rows, strict=True)),
        tag,
        operation,
        partial(add_rows, rows, part, group.rank, part) if part.size else None,
    )


def all_gather(
    group: RankGroup,
    flat: Array,
    bounds: Sequence[int],
    tag: int,
    operation: Callable[[], str],
    then: Action | None = None,
) -> Exchange:
    """Return the phase after which every rank has the shares of ``flat`` of all."""
    parts = shares(flat, bounds)
    return Exchange(
        group,
        [(peer, parts[group.rank]) for peer in group.others],
        [(peer, parts[peer]) for peer in group.others],
        tag,
        operation,
        then,
    )


def exchange_all(
    group: RankGroup,
    flat: Array,
    tag: int,
    operation: Callable[[], str],
    then: Action | None = None,
) -> Exchange:
    """Return one phase after which ``flat`` is the sum, in rank order: every rank adds all rows.

    More bytes than in two phases if there are more than two ranks, but nothing waits half-way.
    """
    from hpcdist.comm.ordered_sum import add_rows  # numba takes 0.3 s to import

    peers = group.others
    rows: Any = np.empty((len(peers), flat.size), flat.dtype)

    def add() -> None:
        add_rows(rows, flat, group.rank, flat)
        if then is not None:
            then()

    received = list(zip(peers, rows, strict=True))
    return Exchange(group, [(peer, flat) for peer in peers], received, tag, operation, add)

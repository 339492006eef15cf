"""Trainers that share batches and die: threads, and a stand-in for server 0."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from hpcdist.comm import loopback
from hpcdist.comm.loopback import LoopbackTransport
from hpcdist.ps.death_consensus import Verdicts, Witness, parse_witness
from hpcdist.runtime.job.membership import Membership
from tests.support.threads import LIMIT_S, run_threads


def test_a_verdict_waits_for_all_that_are_left():
    verdicts = Verdicts()
    assert verdicts.reached({0, 2}) is None
    verdicts.hear(0, Witness(frozenset({1}), 7, ((7, 1, "YQ=="),)))
    assert verdicts.reached({0, 2}) is None
    verdicts.hear(2, Witness(frozenset({1, 3}), 8, ((7, 3, "Yg=="),)))
    verdict, told = verdicts.reached({0, 2})
    assert verdict == Witness(frozenset({1}), 8, ((7, 1, "YQ=="),))
    assert told == (0, 2)
    assert verdicts.reached({0, 2}) is None


def test_who_dies_is_not_waited_for():
    verdicts = Verdicts()
    verdicts.hear(0, Witness(frozenset({1}), 3, ()))
    verdicts.hear(2, Witness(frozenset({1}), 3, ()))
    verdicts.forget(2)
    assert verdicts.reached({0}) == (Witness(frozenset({1}), 3, ()), (0,))


def test_a_witness_travels_as_json():
    witness = Witness(frozenset({2, 1}), 5, ((5, 1, "YQ=="),))
    assert parse_witness(witness.payload()) == witness


class Court:
    """Server 0 for threads: tells all that are left the same."""

    def __init__(self, world: list[LoopbackTransport]) -> None:
        self._world = world
        self._changed = threading.Condition()
        self._verdicts = Verdicts()
        self._told: dict[int, Witness] = {}

    def settle(self, me: int, witness: Witness) -> Witness:
        with self._changed:
            self._verdicts.hear(me, witness)
            left = set(range(len(self._world))) - self._world[me].failed()
            if found := self._verdicts.reached(left):
                self._told |= dict.fromkeys(found[1], found[0])
                self._changed.notify_all()
            assert self._changed.wait_for(lambda: me in self._told, LIMIT_S)
            return self._told.pop(me)


def run(trainers: int, last: int, half: bool) -> dict[int, list[tuple[int, list[bytes | None]]]]:
    """Have trainer 1 die in batch ``last``: before it gives its value, or after.

    Return what the others have joined, with how many shared the batch.
    """
    world = loopback.world(trainers)
    court, rounds = Court(world), Rounds()
    joined: dict[int, list[tuple[int, list[bytes | None]]]] = {}

    def body(t: LoopbackTransport) -> None:
        me = t.rank
        living = LivingLoopback(t, rounds)
        membership = Membership(living, lambda w: court.settle(me, w), LIMIT_S, range(trainers))
        living.while_waiting = membership.look
        for batch in range(1, 7):
            among = membership.begin_batch()
            if me == 1 and batch == last and not half:
                t.die()
                return
            came = membership.join(f"{me}:{batch}".encode(), "values")
            if me == 1 and batch == last:
                t.die()
                return
            if me != 1:
                joined.setdefault(me, []).append((len(among), came))

    run_threads([lambda t=t: body(t) for t in world])
    return joined


class Rounds:
    """What the ranks that live have given, by the number of the allgather and the rank."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: defaultdict[int, dict[int, bytes]] = defaultdict(dict)


class LivingLoopback:
    """A loopback transport whose allgather leaves out the dead, as ULFM's does."""

    def __init__(self, transport: LoopbackTransport, rounds: Rounds) -> None:
        self._rounds = rounds
        self.rank, self.size = transport.rank, transport.size
        self.failed = transport.failed
        self._round = 0
        self.while_waiting: Callable[[], None] = lambda: None

    def allgather_living(
        self, data: bytes, deadline_s: float | None, what: str
    ) -> list[bytes | None]:
        changed = self._rounds.changed
        with changed:
            values = self._rounds.values[self._round]
            self._round += 1
            values[self.rank] = data
            changed.notify_all()

        def all_here() -> bool:
            return all(k in values or k in self.failed() for k in range(self.size))

        for _ in range(100 * LIMIT_S):
            with changed:
                if changed.wait_for(all_here, 0.01):
                    return [values.get(k) for k in range(self.size)]
            self.while_waiting()
        raise AssertionError(f"trainer {self.rank} waits in vain for {values}")


@pytest.mark.parametrize("trainers", [2, 3, 4])
@pytest.mark.parametrize("half", [False, True])
def test_all_that_live_join_the_same_and_cut_the_same(trainers, half):
    joined = run(trainers, last=3, half=half)
    assert sorted(joined) == [k for k in range(trainers) if k != 1]
    (first, *others) = joined.values()
    assert all(other == first for other in others)
    shared = [count for count, _ in first]
    assert shared[0] == trainers
    assert shared[-1] == trainers - 1
    for batch, (count, came) in enumerate(first, start=1):
        if count == trainers:
            assert all(came[k] == f"{k}:{batch}".encode() for k in range(trainers) if k != 1)
            assert came[1] in (None, f"1:{batch}".encode())
            assert came[1] is not None or batch >= 3
        else:
            assert came == [f"{k}:{batch}".encode() for k in range(trainers) if k != 1]

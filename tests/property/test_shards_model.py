"""SyncShards, and packets, against models that are too simple to be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.ps.packets import VarSpec, layout, plan_packets
from hpcdist.ps.shards import DuePacket, SyncShards


class Trainer:
    """What one trainer may do next, given which answers it has: it never overtakes a step."""

    def __init__(self, steps: int, last: frozenset[int], packets: int) -> None:
        self.steps = steps  # whole steps, then ``last``: the packets of a step left in the middle
        self.last = last
        self.step = 0
        self.unsent = set(range(packets)) if steps else set(last)
        self.unanswered = set(range(packets)) if steps else set(last)
        self.packets = packets
        self.flying: list[int] = []
        self.told = False
        self.taken: list[int] | None = None  # once it is dead: what had been applied by then

    @property
    def counts(self) -> list[int]:
        if self.taken is not None:
            return self.taken
        return [self.steps + (p in self.last) for p in range(self.packets)]

    @property
    def may_close(self) -> bool:
        return not self.told and self.step == self.steps and not self.unsent

    def die(self, applied: list[int]) -> None:
        self.taken = [min(n, m) for n, m in zip(self.counts, applied)]
        self.unsent.clear()
        self.flying.clear()
        self.told = True

    def answer(self, packet: int) -> None:
        self.unanswered.remove(packet)
        if not self.unanswered and self.step < self.steps:
            self.step += 1
            wanted = set(range(self.packets)) if self.step < self.steps else set(self.last)
            self.unsent, self.unanswered = wanted, set(wanted)


@st.composite
def worlds(draw):
    trainers = draw(st.integers(1, 4))
    packets = draw(st.integers(1, 3))
    whole = st.integers(0, 4)
    part = st.frozensets(st.integers(0, packets - 1), max_size=packets - 1)
    dying = draw(st.integers(0, trainers))
    return packets, [Trainer(draw(whole), draw(part), packets) for _ in range(trainers)], dying


@settings(max_examples=500, deadline=None)
@given(worlds(), st.data())
def test_any_order_of_arrival_and_death_gives_the_updates_of_the_model(world, data):
    packets, trainers, dying = world
    shards = SyncShards(len(trainers), packets)
    updates: list[tuple[int, DuePacket]] = []  # with their steps
    applied = [0] * packets

    def take(due: list[DuePacket]) -> None:
        for update in due:
            updates.append((applied[update.packet], update))
            applied[update.packet] += 1
            for k in update.contributors:
                trainers[k].answer(update.packet)

    while True:
        moves = [("send", k, p) for k, t in enumerate(trainers) for p in sorted(t.unsent)]
        moves += [("arrive", k, p) for k, t in enumerate(trainers) for p in t.flying]
        moves += [("close", k, 0) for k, t in enumerate(trainers) if t.may_close]
        if dying:
            moves += [("die", k, 0) for k, t in enumerate(trainers) if t.taken is None]
        if not moves or shards.finished:
            break
        move, k, packet = data.draw(st.sampled_from(moves))
        trainer = trainers[k]
        if move == "send":
            trainer.unsent.remove(packet)
            trainer.flying.append(packet)
        elif move == "arrive":  # in any order: also after the CLOSE that was sent later
            trainer.flying.remove(packet)
            due = shards.arrived(k, packet)
            take([due] if due else [])
        elif move == "die":
            dying -= 1
            trainer.die(applied)
            take(shards.died(k))
        else:
            trainer.told = True
            take(shards.closed(k, trainer.counts))
        for p in range(packets):
            assert shards.reached(0, p, applied[p]) and not shards.reached(0, p, applied[p] + 1)
        assert shards.step == max(applied) - 1
        if shards.readable and not shards.finished:
            assert len(set(applied)) == 1
        taken = [min(map(min, t.counts, applied)) for t in trainers]
        assert [shards.steps_of(k) for k in range(len(trainers))] == taken

    assert shards.finished
    assert not any(t.unsent or t.flying for t in trainers)
    assert not shards.begun
    everyones = [t.counts for t in trainers]
    expected = {
        (step, p): tuple(k for k, counts in enumerate(everyones) if counts[p] > step)
        for p in range(packets)
        for step in range(max(counts[p] for counts in everyones))
    }
    assert {(step, u.packet): u.contributors for step, u in updates} == expected
    assert len(updates) == len(expected)
    steps = [step for step, _ in updates]
    assert steps == sorted(steps)
    begun = [step for step, u in updates if u.begins_step]
    assert begun == sorted(set(steps))
    for before, (after, update) in zip([-1, *steps], updates, strict=False):
        assert update.begins_step == (after > before)


variables = st.lists(
    st.tuples(
        st.lists(st.integers(1, 30), min_size=1, max_size=3),
        st.sampled_from(["float32", "float64", "int64", "uint8"]),
    ),
    max_size=12,
)


@given(variables, st.integers(1, 5000))
def test_packets_hold_every_variable_once_and_apart(shapes, small):
    specs = [VarSpec(f"v{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(shapes)]
    packets = plan_packets(specs, small=small)
    assert packets == plan_packets(specs, small=small)
    assert sorted(s.name for p in packets for s in p.variables) == sorted(s.name for s in specs)
    assert [p.tag for p in packets] == list(range(len(packets)))
    last = [max(specs.index(s) for s in p.variables) for p in packets]
    assert last == sorted(last)  # packets are ready in their order
    assert sum(any(s.nbytes < small for s in p.variables) for p in packets) <= 1

    begins, nbytes = layout(packets)
    arena = np.zeros(nbytes, np.uint8)
    for packet, begin in zip(packets, begins, strict=True):
        for view in packet.views(arena[begin : begin + packet.nbytes]).values():
            assert not view.any()  # nobody else's bytes
            view[...] = 1
            view.reshape(-1).view(np.uint8)[:] = 255
    assert sum(s.nbytes for s in specs) == np.count_nonzero(arena)

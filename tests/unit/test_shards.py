from __future__ import annotations

import pytest

from hpcdist.errors import CommError
from hpcdist.ps.async_shards import AsyncShards
from hpcdist.ps.replies import Answers
from hpcdist.ps.shards import DuePacket, SyncShards


def due(packet, contributors, begins_step):
    """Return the update that answers whom it comes from."""
    return DuePacket(packet, contributors, begins_step, ((packet, contributors),))


def test_a_packet_is_due_when_all_trainers_sent_it():
    shards = SyncShards(trainers=2, packets=2)
    assert shards.readable
    assert not shards.begun
    assert shards.arrived(1, 0) is None
    assert shards.begun
    assert shards.readable
    assert shards.missing() == (0, 0, (0,))
    assert shards.arrived(0, 0) == due(0, (0, 1), True)
    assert not shards.readable
    assert shards.missing() == (0, 1, (0, 1))
    assert shards.arrived(0, 1) is None
    assert shards.missing() == (0, 1, (1,))
    assert shards.arrived(1, 1) == due(1, (0, 1), False)
    assert shards.readable
    assert not shards.begun
    assert not shards.finished


def test_a_trainer_is_settled_once_all_that_it_sent_is_applied():
    shards = SyncShards(trainers=2, packets=1)
    assert shards.settled(0)
    assert shards.arrived(0, 0) is None
    assert shards.readable and not shards.settled(0) and shards.settled(1)
    assert shards.arrived(1, 0) == due(0, (0, 1), True)
    assert shards.settled(0) and shards.settled(1)
    shards.arrived(0, 0)
    shards.closed(1, [1])  # nobody is left to wait for
    assert shards.settled(0)


def test_a_request_waits_until_its_trainer_may_be_answered(monkeypatch):
    answered = []
    answers = Answers(None, [0, 1], "server 0", {}, 1.0, on_checkpoint=None)
    monkeypatch.setattr(answers, "reply", lambda trainer, *told: answered.append(trainer))
    answers.add_checkpoint(0, 1, {})
    answers.add_checkpoint(1, 1, {})
    assert answers.next({1}.__contains__)
    assert not answers.next({1}.__contains__) and answers.awaited == {0}
    assert answers.next({0}.__contains__)
    assert answered == [1, 0]


def test_whoever_closed_takes_part_in_the_steps_it_sent():
    shards = SyncShards(3, 1)
    assert shards.closed(2, [1]) == []  # its packet of step 0 is still on the way
    assert shards.arrived(0, 0) is None
    assert shards.arrived(1, 0) is None
    assert shards.missing() == (0, 0, (2,))
    assert shards.arrived(2, 0) == due(0, (0, 1, 2), True)
    assert shards.arrived(0, 0) is None
    assert shards.arrived(1, 0) == due(0, (0, 1), True)


def test_closing_completes_what_waited_for_the_one_that_left():
    shards = SyncShards(2, 2)
    shards.arrived(0, 0)
    shards.arrived(0, 1)
    assert shards.closed(1, [0, 0]) == [due(0, (0,), True), due(1, (0,), False)]
    assert not shards.finished
    assert shards.closed(0, [1, 1]) == []
    assert shards.finished


def test_all_closed_is_not_finished_before_everything_sent_is_applied():
    shards = SyncShards(2, 1)
    shards.closed(0, [1])
    shards.closed(1, [0])
    assert not shards.finished
    assert shards.arrived(0, 0) == due(0, (0,), True)
    assert shards.finished


def test_a_server_without_packets_ends_with_its_trainers():
    shards = SyncShards(2, 0)
    assert shards.readable
    assert not shards.begun
    assert shards.closed(0, []) == []
    assert not shards.finished
    shards.closed(1, [])
    assert shards.finished


def test_what_cannot_be_is_refused():
    shards = SyncShards(2, 1)
    shards.arrived(0, 0)
    with pytest.raises(CommError, match="trainer 0 sent packet 0 twice in step 0"):
        shards.arrived(0, 0)
    shards.closed(1, [0])
    with pytest.raises(CommError, match=r"trainer 1 sent packet 0 .*after closing"):
        shards.arrived(1, 0)
    with pytest.raises(CommError, match="trainer 1 closed twice"):
        shards.closed(1, [0])
    with pytest.raises(CommError, match="2 packet counts, expected 1"):
        shards.closed(0, [1, 1])


def test_programs_in_turns_have_steps_of_their_own():
    shards = SyncShards(2, 3, turns=(0, 0, 1))

    def arrive(packet):
        assert shards.arrived(0, packet) is None
        return shards.arrived(1, packet)

    assert arrive(2) == due(2, (0, 1), True)
    assert shards.readable and shards.step == 0
    assert arrive(1) == due(1, (0, 1), True)
    assert not shards.readable and shards.missing() == (0, 0, (0, 1))
    assert arrive(0) == due(0, (0, 1), False)
    assert shards.readable and shards.step == 1
    assert shards.arrived(0, 2) is None
    assert shards.waits(0) and not shards.waits(1)
    assert [shards.steps_of(k) for k in (0, 1)] == [2, 2]
    assert shards.closed(1, [1, 1, 1]) == [due(2, (0,), True)]
    assert shards.closed(0, [1, 1, 2]) == [] and shards.finished


@pytest.mark.parametrize("max_staleness", [None, 3])
def test_what_answers_its_own_sender_comes_again_as_the_same_object(max_staleness):
    shards = AsyncShards(2, 2, max_staleness)
    first = [shards.arrived(k, p) for k in range(2) for p in range(2)]
    again = [shards.arrived(k, p) for k in range(2) for p in range(2)]
    assert first == [DuePacket(p, (k,), False, ((p, (k,)),)) for k in range(2) for p in range(2)]
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert shards.staleness == [1, 1] and not shards.begun

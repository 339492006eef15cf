"""Operations of lanes, among ranks that are threads."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np
import pytest

from hpcdist.comm.collective import RankGroup
from hpcdist.comm.lane_thread import LaneThread
from hpcdist.comm.lanes import Lane, Messages, Operation, Wait, close_all, origin
from hpcdist.comm.loopback import world
from hpcdist.comm.progress import CROWDED
from hpcdist.errors import CommError, DeadlineError
from tests.support.threads import run_threads


def swap(transport, given, got, peer, tag=0):
    yield Messages(transport, tag, [(peer, given)], [(peer, got)])


def operation(transport, steps, deadline_s=60.0, on_end=None):
    group = RankGroup(transport, tuple(range(transport.size)), deadline_s)
    return Operation(group, steps, lambda: "a swap", deadline_s, on_end)


def test_who_waits_moves_the_lane():
    def body(t):
        mover, lane = LaneThread(), Lane()
        got = [np.zeros(2), np.zeros(2)]
        ops = [
            operation(t, swap(t, np.full(2, float(t.rank + k)), got[k], 1 - t.rank)) for k in (0, 1)
        ]
        for op in ops:
            lane.add(op)
        mover.wait(lane, ops[1], None)
        assert ops[0].done
        assert [list(g) for g in got] == [[1 - t.rank] * 2, [2 - t.rank] * 2]

    run_threads([partial(body, t) for t in world(2)])


def test_a_patient_mover_leaves_an_operation_to_who_helps():
    movers = set()

    def steps(event):
        movers.add(threading.current_thread().name)
        yield event
        movers.add(threading.current_thread().name)

    (t,) = world(1)
    mover, lane, event = LaneThread(patience_s=600), Lane(), Told()
    op = operation(t, steps(event))
    lane.add(op)
    mover.watch(lane, patiently=True)
    event.event.set()
    assert not mover.is_idle(0.1) and not op.done
    mover.help(lane, op, time.monotonic() + 600)
    assert op.done and mover.is_idle(5)
    assert movers == {"MainThread"}
    mover.close()


@pytest.mark.parametrize("urgent", [False, True])
def test_a_patient_mover_begins_in_the_end_or_when_somebody_waits(urgent):
    def steps(event):
        yield event

    (t,) = world(1)
    mover, lane, ended = LaneThread(patience_s=600 if urgent else 0.01), Lane(), threading.Event()
    op = operation(t, steps(Told()), on_end=ended.set)
    lane.add(op)
    mover.watch(lane, patiently=True)
    if urgent:
        mover.watch(lane)
    assert ended.wait(60) and mover.is_idle(60)
    mover.close()


def test_who_helps_goes_on_in_the_end():
    def steps(event):
        yield event

    (t,) = world(1)
    mover, lane, event = LaneThread(), Lane(), Opened()
    op = operation(t, steps(event))
    lane.add(op)
    mover.help(lane, op, time.monotonic() + 0.05)
    assert not op.done
    mover.watch(lane)
    event.open = True
    assert mover.is_idle(60) and op.done
    mover.close()


def test_who_helps_leaves_the_failure_to_the_future():
    def steps():
        yield Told()
        raise CommError("it fails")

    (t,) = world(1)
    mover, lane = LaneThread(patience_s=600), Lane()
    op = operation(t, steps())
    lane.add(op)
    mover.watch(lane, patiently=True)
    mover.help(lane, op, time.monotonic() + 600)
    assert op.done and str(op.error) == "it fails"
    mover.close()


class Opened(Wait):
    """A wait that ends when the test says so."""

    open = False

    def ended(self):
        return self.open

    def missing(self):
        return ()


class Told:
    """The wait for an event, which wakes whoever sleeps."""

    def __init__(self):
        self.event = threading.Event()
        self.slept = []

    def ended(self):
        return self.event.is_set()

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.event.set()
        return True

    def missing(self):
        return ()


@pytest.mark.parametrize("by_thread", [False, True])
def test_waits_that_can_be_told_are_slept_through(by_thread):
    (t,) = world(1)
    mover, lane, told, ended = LaneThread(), Lane(), Told(), threading.Event()
    op = operation(t, iter_of(told), on_end=ended.set)
    lane.add(op)
    if by_thread:
        mover.watch(lane)
        assert ended.wait(60)
    else:
        mover.wait(lane, op, None)
    assert told.slept == [CROWDED.max_sleep_s]
    mover.close()


def test_the_thread_moves_lanes_that_nobody_waits_for():
    def body(t):
        mover, lane, ended = LaneThread(), Lane(), threading.Event()
        got = np.zeros(1)
        lane.add(operation(t, swap(t, np.ones(1), got, 1 - t.rank), on_end=ended.set))
        mover.watch(lane)
        assert ended.wait(60)
        assert got[0] == 1
        mover.close()

    run_threads([partial(body, t) for t in world(2)])


def test_who_is_told_of_an_end_may_wait_for_the_next_one():
    (t,) = world(1)
    mover, lane = LaneThread(), Lane()
    second = operation(t, iter_of())

    def wait_for_second():
        mover.wait(lane, second, None)

    first = operation(t, iter_of(), on_end=wait_for_second)
    lane.add(first)
    lane.add(second)
    assert not lane.move()
    assert second.done


def test_an_end_may_be_told_while_another_lane_is_watched():
    """Who is told takes a lock under which another thread hands a lane to the mover."""
    (t,) = world(1)
    mover, guard, told = LaneThread(), threading.Lock(), threading.Event()

    def tell():
        with guard:
            told.set()

    for _ in range(300):
        told.clear()
        lane = Lane()
        lane.add(operation(t, iter_of(), on_end=tell))
        with guard:
            mover.watch(lane)
            mover.watch(Lane())
        assert told.wait(60)
    mover.close()


def test_an_end_told_by_the_thread_may_wait_for_what_it_has_begun():
    (t,) = world(1)
    mover, lane, ended, told = LaneThread(), Lane(), threading.Event(), threading.Event()

    def begin_and_wait():  # as hooks do that wait for futures, which move nothing
        lane.add(operation(t, iter_of(), on_end=ended.set))
        mover.watch(lane)
        if ended.wait(60):
            told.set()

    lane.add(operation(t, iter_of(), on_end=begin_and_wait))
    mover.watch(lane)
    assert told.wait(100)
    mover.close()


def iter_of(*waits):
    yield from waits


def test_lengths_that_differ_are_an_error_and_break_the_lane():
    def body(t):
        mover, lane = LaneThread(), Lane()
        got, given = np.zeros(3), np.zeros(3 if t.rank else 2)
        first = operation(t, swap(t, given, got, 1 - t.rank))
        second = operation(t, iter_of())
        lane.add(first)
        lane.add(second)
        if t.rank:
            with pytest.raises(CommError, match="rank 0 of the group sent 16 bytes, expected 24"):
                mover.wait(lane, first, None)
            with pytest.raises(CommError, match="an earlier operation failed"):
                mover.wait(lane, second, None)
        else:
            mover.wait(lane, second, None)

    run_threads([partial(body, t) for t in world(2)])


def test_what_is_interrupted_has_failed():
    def steps():
        yield Told()
        raise KeyboardInterrupt

    (t,) = world(1)
    mover, lane = LaneThread(), Lane()
    first, second = operation(t, steps()), operation(t, iter_of())
    lane.add(first)
    lane.add(second)
    with pytest.raises(KeyboardInterrupt):
        mover.wait(lane, first, None)
    with pytest.raises(CommError, match="a swap: interrupted by KeyboardInterrupt"):
        mover.wait(lane, first, None)
    with pytest.raises(CommError, match="an earlier operation failed"):
        mover.wait(lane, second, None)


def test_nothing_begins_between_a_failure_and_its_end(monkeypatch):
    """Another thread moves the lane as soon as it can."""
    (t,) = world(1)
    lane, guard, begun = Lane(), threading.Lock(), []

    class Released:
        acquire = guard.acquire

        def release(self):
            guard.release()
            monkeypatch.setattr(lane, "_moving", guard)  # private: when it is held decides
            lane.move()

    def fails():
        yield from ()
        raise CommError("it fails")

    def begins():
        begun.append(True)
        yield from ()

    lane.add(operation(t, fails()))
    lane.add(operation(t, begins()))
    monkeypatch.setattr(lane, "_moving", Released())  # private: see above
    lane.move()
    assert lane.is_empty() and not begun


def test_a_deadline_names_who_is_missing():
    t = world(3)[1]
    mover, lane = LaneThread(), Lane()
    late = operation(t, swap(t, np.zeros(1), np.zeros(1), 2), deadline_s=0.01)
    lane.add(late)
    with pytest.raises(DeadlineError, match="rank 1 waiting for a swap, from rank 2") as caught:
        mover.wait(lane, late, None)
    assert caught.value.missing == (2,)
    assert origin(RuntimeError(f"in C++: {caught.value}")) is caught.value
    other = RuntimeError("something else")
    assert origin(other) is other


def test_at_the_end_of_the_job_what_a_thread_waits_for_fails_and_what_it_calls_then():
    t = world(2)[0]
    mover, lane, errors = LaneThread(), Lane(), []
    never = operation(t, swap(t, np.zeros(1), np.zeros(1), 1))
    lane.add(never)

    def wait(what):
        with pytest.raises(CommError) as caught:
            mover.wait(lane, what, None)
        errors.append(str(caught.value))

    thread = threading.Thread(target=wait, args=[never])
    thread.start()
    close_all()
    thread.join()
    later = operation(t, swap(t, np.zeros(1), np.zeros(1), 1))
    lane.add(later)
    wait(later)
    assert errors[0] == "rank 0 waiting for a swap, from rank 1: the job has ended"
    assert errors[1] == "rank 0 waiting for a swap: the job has ended"

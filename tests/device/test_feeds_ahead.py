"""Feeds that go up on a stream of their own, beside the kernels of a step. Over the stand-in."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base import device
from tests.support.device import MODULE, install
from tests.support.streams import LIMIT_S, MACHINE

ROWS = 40


@pytest.fixture(autouse=True, params=[0, 1, 2, 3])
def cupy(monkeypatch, request):
    monkeypatch.setattr(device, "AHEAD", 1)
    monkeypatch.setattr(device, "CHUNK", 64)  # so that a feed goes up in several pieces
    return install(monkeypatch, seed=request.param)


class Summing:
    """A Program that adds up what it is fed, in the order of the steps."""

    def __init__(self, loader=False):
        self.main, startup, self.scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.unique_name.guard(), fluid.program_guard(self.main, startup):
            x = fluid.data("x", [None, 3], "float32")
            self.loader = (
                fluid.io.DataLoader.from_generator([x], 8, iterable=False) if loader else None
            )
            total = fluid.layers.create_global_var([3], 0, "float32", True, name="total")
            doubled = fluid.layers.scale(total, 2.0)
            summed = fluid.layers.reduce_sum(x, 0)
            fluid.layers.assign(fluid.layers.elementwise_add(doubled, summed), total)
        self.exe = fluid.Executor(fluid.CUDAPlace(0))
        self.exe.run(startup, scope=self.scope)

    def step(self, rows=None, fetches=()):
        feed = {} if rows is None else {"x": rows}
        return self.exe.run(self.main, feed, list(fetches), scope=self.scope)


def batch(number, rows=ROWS):
    return np.full((rows, 3), number, np.float32)


def expected(numbers, rows=ROWS):
    total = 0.0
    for number in numbers:
        total = 2 * total + rows * number
    return [total] * 3


def held_up(stream):
    """Keep a stream from its work until the event returned is asked to end."""
    gate = []
    stream.push(lambda: bool(gate))
    return lambda: gate.append(True)


def copies_done():
    """Let all streams do what they can without anybody who waits."""
    for _ in range(3000):
        MACHINE.turn()


def test_steps_read_their_own_feeds_whichever_stream_is_ahead():
    summing, numbers = Summing(), [3, 1, 4, 1, 5, 9, 2]
    for number in numbers:
        rows = batch(number)
        summing.step(rows)
        rows[:] = -1  # the host's array may be changed at once
    assert summing.step(batch(6), ["total"])[0].tolist() == expected([*numbers, 6])


def test_a_feed_is_copied_while_the_step_before_computes(monkeypatch):
    summing, arrays, empty = Summing(), [], MODULE.empty
    monkeypatch.setattr(MODULE, "empty", lambda *of: arrays.append(empty(*of)) or arrays[-1])
    summing.step(batch(1))
    release = held_up(MACHINE.default())  # kernels that take long
    MACHINE.counts.clear()
    summing.step(batch(2))
    copies_done()
    assert MACHINE.counts.waits == 0 and MACHINE.default().tasks
    (landed,) = (a.view(np.float32) for a in arrays if a.nbytes == batch(2).nbytes)
    values = landed._view  # without waiting for the GPU
    assert (values == 2).all(), "the copy has waited for kernels of the step before"
    release()
    assert summing.step(batch(3), ["total"])[0].tolist() == expected([1, 2, 3])


def test_batches_of_other_sizes_take_turns():
    summing, sizes = Summing(), [5, 40, 9, 40, 41, 3]
    total = np.zeros(3)
    for number, rows in enumerate(sizes, 1):
        total = 2 * total + rows * number
        (found,) = summing.step(batch(number, rows), ["total"])
        assert (found == total).all()


def test_a_small_feed_goes_up_on_the_computing_stream(monkeypatch):
    monkeypatch.setattr(device, "AHEAD", 12 * ROWS + 1)
    summing = Summing()
    summing.step(batch(1))
    MACHINE.default().synchronize()
    MACHINE.counts.clear()
    summing.step(batch(2))
    small = MACHINE.counts.launches
    monkeypatch.setattr(device, "AHEAD", 12 * ROWS)
    MACHINE.default().synchronize()
    MACHINE.counts.clear()
    summing.step(batch(3))
    assert MACHINE.counts.launches == small + 1 and MACHINE.counts.waits == 0


def started(numbers):
    """Return a Program with a reader, of which the first step has started the thread that reads."""
    summing = Summing(loader=True)
    given = [batch(number) for number in numbers]
    summing.loader.set_batch_generator(lambda: ([rows] for rows in given))
    summing.loader.start()
    assert summing.step(fetches=["total"])[0].tolist() == expected(numbers[:1])
    end = time.monotonic() + LIMIT_S
    while summing.loader.queue.size() < len(numbers) - 1:
        assert time.monotonic() < end
        time.sleep(1e-4)
    return summing


def test_the_next_batch_of_a_reader_goes_up_before_the_host_waits_for_values():
    numbers, uploads = [2, 7, 1, 8, 2], []
    summing = started(numbers)
    for k in range(2, len(numbers) + 1):
        MACHINE.counts.clear()
        assert summing.step(fetches=["total"])[0].tolist() == expected(numbers[:k])
        uploads.append(MACHINE.counts.uploads)
    one = -(-batch(0).nbytes // device.CHUNK)
    assert uploads[1:] == [one, one, 0]  # the next one's, and no more one's own
    with pytest.raises(fluid.core.EOFException):
        summing.step(fetches=["total"])


def test_a_batch_that_was_begun_and_is_not_fed_is_not_used():
    summing = started([1, 2, 3])
    summing.step(fetches=["total"])
    summing.loader.reset()
    summing.loader.set_batch_generator(lambda: ([batch(number)] for number in (5, 6)))
    summing.loader.start()
    assert summing.step(fetches=["total"])[0].tolist() == expected([1, 2, 5])
    assert summing.step(fetches=["total"])[0].tolist() == expected([1, 2, 5, 6])


def values(number, count):
    return np.full(count, number, np.float32)


def test_memory_of_feeds_is_taken_over_in_order():
    """One that becomes larger, and one that another has after it, while kernels read the old."""
    small, large, other = (MODULE.empty(n, np.float32) for n in (8, 64, 64))
    with MODULE.cuda.using_allocator(MODULE.cuda.MemoryPool().malloc):
        landing, release = device.Landing(MODULE), held_up(MACHINE.default())
        landing.fill(small, values(1, 8))
        landing.fill(large, values(2, 64))
        del landing
        following = device.Landing(MODULE)
        following.fill(other, values(3, 64))
        copies_done()
        release()
        found = [array.get().tolist() for array in (small, large, other)]
    assert found == [[1] * 8, [2] * 64, [3] * 64]


def test_after_a_wrong_guess_nothing_is_begun():
    landing, array = device.Landing(MODULE), MODULE.empty(8, np.float32)
    for number, uploads in ((1, 2), (2, 1), (3, 1)):
        MACHINE.counts.clear()
        landing.begin(values(-1, 8))
        landing.fill(array, values(number, 8))
        assert array.get().tolist() == [number] * 8 and MACHINE.counts.uploads == uploads

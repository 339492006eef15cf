"""Sleeping on counts in memory, by threads instead of processes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hpcdist.comm import futex
from hpcdist.comm.futex import Futex

pytestmark = pytest.mark.skipif(futex.CALL_NUMBER is None, reason="no futex here: Linux has them")


def test_a_count_that_has_grown_is_not_slept_on():
    memory = np.zeros(8, np.uint8)
    memory.view(np.int64)[0] = 2**32 + 5
    assert Futex(memory).sleep(2**32 + 4, 60)


def test_who_sleeps_is_woken():
    memory = np.zeros(8, np.uint8)
    count, sleeper = memory.view(np.int64), Futex(memory)

    def sleep():
        while not count[0]:
            assert sleeper.sleep(0, 60)

    thread = threading.Thread(target=sleep, daemon=True)
    begin = time.monotonic()
    thread.start()
    count[0] = 1
    Futex(memory).wake()
    thread.join(60)
    assert not thread.is_alive() and time.monotonic() - begin < 30


def test_a_sleep_ends_when_its_time_is_over():
    memory = np.zeros(8, np.uint8)
    begin = time.monotonic()
    assert Futex(memory).sleep(0, 0.01)
    assert time.monotonic() - begin >= 0.01


def test_where_there_is_no_such_call_nobody_sleeps(monkeypatch):
    monkeypatch.setattr(futex, "CALL_NUMBER", None)
    nobody = Futex(np.zeros(8, np.uint8))
    assert not nobody.sleep(0, 60)
    nobody.wake()

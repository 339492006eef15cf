from __future__ import annotations

import threading
import time

import pytest

from hpcdist.comm.progress import (
    CROWDED,
    ROOMY,
    Clock,
    WaitPolicy,
    policy_for,
    waiter,
    waiting_cause,
    waiting_for,
    waits_for,
)
from hpcdist.errors import CommError, DeadlineError
from tests.support.threads import LIMIT_S


def describe() -> str:
    return "trainer 1 waiting for w"


def test_a_core_for_every_rank_or_not():
    assert policy_for(2, 2) is ROOMY
    assert policy_for(4, 2) is CROWDED


@pytest.mark.parametrize("polls", [1, 3, 30, 300])
def test_the_first_true_result_is_returned(polls):
    results = iter([0] * (polls - 1) + [polls])
    wait = waiter(lambda: next(results), WaitPolicy(5, 1e-4), describe, 20, ArithmeticError)
    assert wait() == polls


def test_deadline():
    wait = waiter(lambda: False, CROWDED, describe, 0.05, ArithmeticError)
    begin = time.monotonic()
    with pytest.raises(DeadlineError, match=r"trainer 1 waiting for w: .* within 0\.05 s"):
        wait()
    assert time.monotonic() - begin >= 0.05


def test_no_deadline():
    end = time.monotonic() + 0.1
    waiter(lambda: time.monotonic() > end, CROWDED, describe, None, ArithmeticError)()


def test_who_can_be_told_sleeps_and_neither_yields_nor_naps():
    clock, slept = FakeClock(), []

    def sleep(seconds: float) -> bool:
        slept.append(seconds)
        return True

    policy = WaitPolicy(5, yield_s=1)
    poll = lambda: len(slept) == 3  # noqa: E731
    waiter(poll, policy, describe, None, (), clock=clock, sleep=sleep)()
    assert slept == [policy.max_sleep_s] * 3
    assert not clock.slept_s


def test_failure_of_the_transport_names_what_was_waited_for():
    def poll() -> bool:
        raise ArithmeticError("truncated")

    with pytest.raises(CommError, match="trainer 1 waiting for w: truncated"):
        waiter(poll, CROWDED, describe, 1, ArithmeticError)()


def test_progress_for_nothing():
    with pytest.raises(CommError, match="none of the requests has been started"):
        waiter(lambda: None, CROWDED, describe, 1, ArithmeticError)()


class FakeClock(Clock):
    """A look at the clock takes 1 us, and only ``sleep`` leaves the core."""

    def __init__(self) -> None:
        self.now_s = self.slept_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@pytest.mark.parametrize("policy", [CROWDED, ROOMY])
def test_a_long_wait_sleeps(policy):
    clock = FakeClock()
    with pytest.raises(DeadlineError):
        waiter(lambda: False, policy, describe, 1.0, ArithmeticError, clock=clock)()
    assert 0.9 < clock.slept_s < clock.now_s < 1.1


def test_a_wait_that_ends_leaves_those_of_other_threads():
    """Whichever ends first; the main thread's own wait tells most, then the last begun."""
    begun, ends = {}, {}

    def wait(name):
        with waits_for(lambda: name):
            begun[name].set()
            assert ends[name].wait(LIMIT_S)

    def begin(name):
        begun[name], ends[name] = threading.Event(), threading.Event()
        threads[name] = threading.Thread(target=wait, args=[name], daemon=True)
        threads[name].start()
        assert begun[name].wait(LIMIT_S)

    def end(name):
        ends[name].set()
        threads[name].join(LIMIT_S)

    threads = {}
    for name in ("a", "b", "c"):
        begin(name)
        assert waiting_for() == name
    with waits_for(lambda: "main"):
        assert waiting_for() == "main"
        with waits_for(lambda: "inner"):
            assert waiting_for() == "inner"
        end("b")
        assert waiting_for() == "main"
    assert waiting_for() == "c"
    end("c")
    assert waiting_for() == "a"
    end("a")
    assert waiting_for() == "" and waiting_cause() is None

"""A rank of a test's job ends when another one fails, wherever the signal finds it."""

import os
import signal
import time

import pytest

from tests.support import job as support_job
from tests.support.job import SIGNAL, Aborted, abortable


class KillsInFinalizer:
    def __del__(self):
        os.kill(os.getpid(), SIGNAL)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_within_a_finalizer_still_ends_the_rank(monkeypatch):
    monkeypatch.setattr(support_job, "AGAIN_S", 0.05)
    with pytest.raises(Aborted), abortable():
        KillsInFinalizer()
        time.sleep(60)


def test_a_signal_that_was_held_back_before_ends_the_rank():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    try:
        with pytest.raises(Aborted), abortable():
            os.kill(os.getpid(), SIGNAL)
            pytest.fail("the signal was still held back")
        assert SIGNAL in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

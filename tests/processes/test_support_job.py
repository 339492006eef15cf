"""A rank of a test's job ends when another one fails, wherever the signal finds it."""

import os
import time

import pytest

from tests.support_job import SIGNAL, Aborted, abortable


class KillsInFinalizer:
    def __del__(self):
        os.kill(os.getpid(), SIGNAL)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_within_a_finalizer_still_ends_the_rank():
    with pytest.raises(Aborted), abortable():
        KillsInFinalizer()
        time.sleep(60)

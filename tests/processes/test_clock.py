"""The clock of ranks that are threads, itself."""

from __future__ import annotations

import time

import numpy as np
import pytest

from hpcdist.errors import DeadlineError
from tests.support.threads import run_in_world


def test_a_deadline_takes_no_time_and_comes_while_all_wait():
    def body(transport):
        if transport.rank == 0:
            with pytest.raises(DeadlineError, match="within 3600 s"):
                transport.wait_all([transport.irecv(np.zeros(1), 1, 7)], lambda: "w", 3600)

    run_in_world(2, body)


def test_who_works_is_not_late():
    """However long it takes: the clock stands while somebody does not wait."""

    def body(transport):
        value = np.zeros(1)
        if transport.rank == 1:
            time.sleep(0.1)
            transport.wait_all([transport.isend(value + 5, 0, 7)], lambda: "w", 0.01)
        else:
            transport.wait_all([transport.irecv(value, 1, 7)], lambda: "w", 0.01)
            assert value == 5

    run_in_world(2, body)


def test_the_earlier_of_two_deadlines_comes_first():
    order = []

    def body(transport):
        with pytest.raises(DeadlineError):
            transport.wait_all(
                [transport.irecv(np.zeros(1), 1 - transport.rank, 7)],
                lambda: "w",
                20 - 10 * transport.rank,
            )
        order.append(transport.rank)

    run_in_world(2, body)
    assert order == [1, 0]

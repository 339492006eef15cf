"""Calls that wait without a deadline, which another thread ends."""

from __future__ import annotations

import threading

import pytest

from hpcdist.comm import watchdog
from hpcdist.comm.watchdog import bounded, end_job_by


@pytest.fixture(autouse=True)
def nobody_ends_the_job_yet(monkeypatch):
    monkeypatch.setattr(watchdog, "_ends_job", [])  # private: the process has one


def told_of_a_late_call():
    """Return what the last resort is told of a call that ends when it has been told."""
    told, ended = [], threading.Event()

    def abort(error):
        told.append(str(error))
        ended.set()

    with bounded(lambda: "rank 0 waiting for all", abort, deadline_s=0.05):
        assert ended.wait(60)
    return told


def test_a_late_call_ends_the_job():
    (words,) = told_of_a_late_call()
    assert words.startswith("rank 0 waiting for all: nothing came within 0.05 s")


def test_what_ends_the_job_is_tried_before_the_last_resort():
    tried = []

    def fails(error):
        tried.append(error)
        raise ValueError("not in this thread")

    end_job_by(fails)
    assert len(told_of_a_late_call()) == len(tried) == 1

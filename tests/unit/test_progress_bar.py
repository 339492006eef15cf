"""fluid.progress in a terminal, in a notebook, under mpirun, and on other ranks."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import rich.console
import rich.progress

import hpcdist as fluid

# The module of this name is hidden by the function in the facade.
MODULE = sys.modules["hpcdist.base.trace.progress"]


@pytest.fixture
def clock(monkeypatch):
    """Time that passes by 4 s whenever it is looked at."""
    seconds = iter(range(0, 10**6, 4))
    monkeypatch.setattr(MODULE.time, "monotonic", lambda: float(next(seconds)))


def test_without_a_terminal_a_line_comes_now_and_then(monkeypatch, capsys, clock):
    monkeypatch.delenv("HPCDIST_RANK", raising=False)
    assert list(fluid.progress(range(7))) == list(range(7))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "hpcdist: 3 of 7 (43%), 0.25 per second",
        "hpcdist: 6 of 7 (86%), 0.25 per second",
    ]
    assert list(fluid.progress(iter(range(4)))) == list(range(4))
    assert capsys.readouterr().err == "hpcdist: 3, 0.25 per second\n"


def test_other_ranks_say_nothing(monkeypatch, capsys, clock):
    monkeypatch.setenv("HPCDIST_RANK", "1")
    assert list(fluid.progress(range(7))) == list(range(7))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seen", [(True, False), (False, True)])
def test_a_terminal_and_a_notebook_have_a_bar(monkeypatch, seen):
    monkeypatch.delenv("HPCDIST_RANK", raising=False)
    console = SimpleNamespace(is_terminal=seen[0], is_jupyter=seen[1])
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console)
    shown = []

    def track(items, description, total, console):
        shown.append((total, console))
        yield from items

    monkeypatch.setattr(rich.progress, "track", track)
    assert list(fluid.progress(range(7))) == list(range(7))
    assert shown == [(7, console)]

"""Curves that a script of Fluid draws."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hpcdist.compat import aspaddle
from hpcdist.errors import HpcdistError


@pytest.fixture
def ploter(monkeypatch):
    aspaddle.install()
    from paddle.utils.plot import Ploter

    yield Ploter("Train cost", "Test cost")
    aspaddle.uninstall()


@pytest.fixture
def drawn(monkeypatch):
    calls = []
    plt = SimpleNamespace(
        plot=lambda steps, values: calls.append((steps, values)),
        legend=lambda titles, loc: calls.append(titles),
        savefig=calls.append,
        gcf=lambda: SimpleNamespace(clear=lambda: calls.append("cleared")),
    )
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace(pyplot=plt))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", plt)
    return calls


def test_curves_with_points_are_drawn_into_a_file(ploter, drawn):
    ploter.append("Train cost", 0, 2.5)
    ploter.append("Train cost", 10, 1.5)
    ploter.plot("costs.png")
    assert drawn == [([0, 10], [2.5, 1.5]), ["Train cost"], "costs.png", "cleared"]
    ploter.reset()
    ploter.plot("none.png")
    assert drawn[4:] == [[], "none.png", "cleared"]


@pytest.mark.parametrize(
    "env", [{"DISABLE_PLOT": "True"}, {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}]
)
def test_nothing_is_drawn_where_it_is_disabled_or_by_other_ranks(ploter, drawn, env, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    ploter.append("Train cost", 0, 2.5)
    ploter.plot("costs.png")
    assert drawn == []


def test_a_ploter_says_what_is_missing(ploter, monkeypatch):
    with pytest.raises(HpcdistError, match="no curve 'cost'; there are .*'Test cost'"):
        ploter.append("cost", 0, 1.0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HpcdistError, match="made by matplotlib.*DISABLE_PLOT=True"):
        ploter.plot("costs.png")

"""A job that refuses to start ends without mpirun's explanations, if all its ranks are here."""

from __future__ import annotations

import pytest

from hpcdist.comm import pmix, process_manager
from hpcdist.launch import quiet_end

OF_MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_RANK": "0",
}


@pytest.fixture
def asked(monkeypatch):
    """Return what is asked of the launcher, process 1, whose ranks end when they are killed."""
    asked, ranks = [], [10, 11, 12]
    for name, value in OF_MPIRUN.items():
        monkeypatch.setenv(name, value)

    def kill(others):
        asked.append(("kill", others))
        del ranks[1:]
        return True

    monkeypatch.setattr(quiet_end, "SETTLES_S", 0)
    monkeypatch.setattr(quiet_end, "mpirun_here", lambda: 1)
    monkeypatch.setattr(quiet_end, "children", lambda pid: ranks)
    monkeypatch.setattr(pmix, "begin", lambda launcher: asked.append(("begin", launcher)) or True)
    monkeypatch.setattr(pmix, "kill", kill)
    monkeypatch.setattr(pmix, "finalize", lambda: asked.append(("finalize", len(ranks))))
    return asked


def test_rank_0_ends_the_others_and_leaves_in_order(asked):
    quiet_end.end_refused(60)
    assert asked == [("begin", 1), ("kill", [1, 2]), ("finalize", 1)]


@pytest.mark.parametrize("local", ["2", ""])
def test_ranks_on_other_hosts_are_left_to_mpirun(asked, local, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", local)
    quiet_end.end_refused(60)
    assert asked == []


def test_other_launchers_are_asked_for_nothing(asked, monkeypatch):
    monkeypatch.setattr(quiet_end, "mpirun_here", lambda: None)
    quiet_end.end_refused(60)
    assert asked == []


def test_without_a_launcher_there_is_no_library_to_begin_with():
    assert process_manager.pmix_process({}) is None
    assert process_manager.launched_here({}) is False
    assert process_manager.launched_here(OF_MPIRUN) is True

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcdist.base.temporary import path_of, unnamed_file
from hpcdist.launch.facts import Fact
from hpcdist.launch.host_board import HostBoard
from tests.support.threads import run_in_world


@pytest.fixture(params=["in memory", "on disk"])
def folder(request, tmp_path, monkeypatch):
    """The folder of temporary files, for Pythons with and without memfd_create."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if request.param == "on disk":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    return tmp_path


def test_a_file_is_read_by_its_path_and_has_no_name(folder):
    descriptor = unnamed_file(b"rows")
    assert path_of(descriptor).read_bytes() == b"rows"
    assert not list(folder.iterdir())
    os.close(descriptor)
    assert not path_of(descriptor).exists()


def test_the_ranks_of_a_host_share_a_board_without_a_name(folder, monkeypatch):
    def body(transport):
        for name in ("allgather_bytes", "barrier"):  # where the death of another rank ends this one
            monkeypatch.setattr(transport, name, looked(getattr(transport, name)))
        host = {0, 1} if transport.rank < 2 else {2}
        board = boards[transport.rank] = HostBoard(transport, host)
        board.note(Fact.NAMED, transport.rank)
        transport.barrier()
        noted = [rank for rank in range(3) if board.all(Fact.NAMED, rank)]
        assert noted == sorted(host)

    def looked(collective):
        def call(*arguments):
            assert not list(folder.iterdir())
            return collective(*arguments)

        return call

    boards = {}
    run_in_world(3, body)
    files = [os.fstat(boards[rank].file).st_ino for rank in range(3)]
    assert files[0] == files[1] != files[2]


def test_ranks_that_do_not_see_each_other_have_boards_of_their_own(monkeypatch):
    monkeypatch.setattr(
        "hpcdist.launch.host_board.path_of", lambda file: Path(f"/proc/0/fd/{file}")
    )

    def body(transport):
        board = HostBoard(transport, {0, 1})
        assert board.claim(Fact.REPORTS)
        assert os.write(board.file, b"") == 0
        alone.append(len(board.all(Fact.REPORTS)))

    alone = []
    run_in_world(2, body)
    assert alone == [1, 1]

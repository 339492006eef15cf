from __future__ import annotations

import os

import pytest

from hpcdist.comm.world import mpi_world
from hpcdist.launch.facts import Fact
from hpcdist.launch.host_board import HostBoard
from hpcdist.launch.processes import lives
from hpcdist.launch.roles import RankFacts, decide
from tests.support.assertions import parallel_assert

pytestmark = pytest.mark.mpi


def test_one_rank_reports_and_all_read_what_each_noted(tmp_path, monkeypatch):
    world = mpi_world()
    shared = world.broadcast_bytes(str(tmp_path).encode(), 0).decode()
    monkeypatch.setattr("tempfile.tempdir", shared)
    board = HostBoard(world, range(world.size))
    mine = [board.claim(Fact.REPORTS), board.claim(Fact.REPORTS)]
    claims = world.allgather_bytes(bytes(mine))
    board.note(Fact.NAMED, world.rank)
    pids = world.allgather_bytes(os.getpid().to_bytes(8, "little"))
    noted = [board.all(Fact.NAMED, rank) for rank in range(world.size)]
    unknown = board.code()
    world.barrier()
    if mine[0]:
        board.note(Fact.ENDS, 3)
    world.barrier()

    def check():
        assert sorted(claims) == [b"\0\0"] * (world.size - 1) + [b"\1\1"]
        assert unknown is None and board.code() == 3
        assert noted == [[int.from_bytes(pid, "little")] for pid in pids]
        assert board.all(Fact.GONE) == board.all(Fact.NAMED) == []
        assert not list(tmp_path.parent.glob("hpcdist-*"))
        assert not list(tmp_path.glob("hpcdist-*"))

    parallel_assert(world, check)


@pytest.mark.mpi(min_size=2)
def test_every_rank_decides_the_same_roles():
    world = mpi_world()
    mine = RankFacts(f"n{world.rank % 2}", world.rank, None, "node:n1=1", {})
    cluster = decide([RankFacts.decode(d) for d in world.allgather_bytes(mine.encode())])
    decided = world.allgather_bytes(repr(cluster).encode())

    def check():
        assert len(set(decided)) == 1
        assert cluster.servers == (3 if world.size >= 4 else 1,)

    parallel_assert(world, check)


@pytest.mark.mpi(min_size=2)
def test_a_failing_check_fails_on_every_rank_with_its_message():
    world = mpi_world()

    def check():
        assert world.rank != 1, "I am one"

    with pytest.raises(AssertionError, match="rank 1: AssertionError: I am one"):
        parallel_assert(world, check)


def test_the_living_live():
    world = mpi_world()
    pids = [int(p) for p in world.allgather_bytes(str(os.getpid()).encode())]

    def check():
        assert all(map(lives, pids))
        assert not lives(2**22 + 1)  # above the largest process id of Linux

    parallel_assert(world, check)

from __future__ import annotations

import os

import pytest

from hpcdist.comm.mpi import MpiTransport
from hpcdist.launch.abort import LastWord, lives
from hpcdist.launch.roles import RankFacts, decide
from tests.support import parallel_assert

pytestmark = pytest.mark.mpi


def test_one_rank_has_the_last_word(tmp_path, monkeypatch):
    world = MpiTransport.world()
    shared = world.broadcast_bytes(str(tmp_path).encode(), 0).decode()
    monkeypatch.setattr("tempfile.tempdir", shared)
    word = LastWord(world)
    mine = [word.taken(), word.taken()]
    claims = world.allgather_bytes(bytes(mine))

    def check():
        assert sorted(claims) == [b"\0\0"] * (world.size - 1) + [b"\1\1"]
        assert not list(tmp_path.parent.glob("hpcdist-*"))
        assert not list(tmp_path.glob("hpcdist-*"))

    parallel_assert(world, check)


@pytest.mark.mpi(min_size=2)
def test_every_rank_decides_the_same_roles():
    world = MpiTransport.world()
    mine = RankFacts(f"n{world.rank % 2}", world.rank, None, "node:n1=1", {})
    cluster = decide([RankFacts.decode(d) for d in world.allgather_bytes(mine.encode())])
    decided = world.allgather_bytes(repr(cluster).encode())

    def check():
        assert len(set(decided)) == 1
        assert cluster.servers == (3 if world.size >= 4 else 1,)

    parallel_assert(world, check)


@pytest.mark.mpi(min_size=2)
def test_a_failing_check_fails_on_every_rank_with_its_message():
    world = MpiTransport.world()

    def check():
        assert world.rank != 1, "I am one"

    with pytest.raises(AssertionError, match="rank 1: AssertionError: I am one"):
        parallel_assert(world, check)


def test_the_living_live():
    world = MpiTransport.world()
    pids = [int(p) for p in world.allgather_bytes(str(os.getpid()).encode())]

    def check():
        assert all(map(lives, pids))
        assert not lives(2**22 + 1)  # above the largest process id of Linux

    parallel_assert(world, check)

"""Ranks of MPI, for tests run under mpirun."""

from __future__ import annotations

import traceback

import pytest

from hpcdist.comm.mpi import MpiTransport
from hpcdist.comm.world import mpi_world
from tests.cases.transport import Body
from tests.support.ranks_used import job_sizes


def give_back(part: MpiTransport) -> None:
    """Free the communicators of a test that ended well, where there are few. Collective.

    MPICH has 2,048 in all. Open MPI has more than the tests make, and there this has hung once, in
    a barrier behind messages that nobody had received.
    """
    from mpi4py import MPI

    if "MPICH" in MPI.Get_library_version():
        part.free()


def run_ranks(size: int, body: Body) -> None:
    """Run ``body`` on the first ``size`` ranks, as a world of their own; raise on every rank."""
    world = mpi_world()
    job_sizes.append(size)
    if world.size < size:
        pytest.skip(f"needs {size} ranks, got {world.size}")
    part = world.split(int(world.rank >= size), world.rank)
    error = b""
    if world.rank < size:
        try:
            body(part)
        except BaseException:
            # Printed at once too: the other ranks may now wait for this one.
            traceback.print_exc()
            error = traceback.format_exc().encode()
    failures = {k: e.decode() for k, e in enumerate(world.allgather_bytes(error)) if e}
    if not failures:
        give_back(part)
    else:
        pytest.fail("\n".join(f"rank {k}: {text}" for k, text in failures.items()))

"""The transport of all ranks: plain MPI, or MPI that goes on when a rank has died."""

from __future__ import annotations

from functools import cache

from hpcdist.comm import ulfm
from hpcdist.comm.mpi import MpiTransport, start


@cache
def mpi_world() -> MpiTransport:
    """Return the transport of all ranks; the first call starts MPI. Collective."""
    comm, policy = start()
    if ulfm.offered(comm):
        return ulfm.UlfmTransport(comm, policy)
    return MpiTransport(comm, policy)

"""The transport of all ranks: plain MPI, or MPI that survives dead ranks."""

from __future__ import annotations

from functools import cache

from hpcdist.base.errors import LaunchError
from hpcdist.comm import ulfm
from hpcdist.comm.mpi import NO_LIBRARY, MpiTransport, start


@cache
def mpi_world() -> MpiTransport:
    """Return the transport of all ranks; the first call starts MPI. Collective.

    LaunchError if python cannot load an MPI library.
    """
    try:
        comm, policy = start()
    except (ImportError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise LaunchError(NO_LIBRARY.format(reason=reason)) from error
    if ulfm.offered(comm):
        return ulfm.UlfmTransport(comm, policy)
    return MpiTransport(comm, policy)

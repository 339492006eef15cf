"""The transport of all ranks: plain MPI, or MPI that survives dead ranks."""

from __future__ import annotations

from functools import cache

from hpcdist.base.errors import LaunchError
from hpcdist.comm import ulfm
from hpcdist.comm.mpi import MpiTransport, start
from hpcdist.comm.process_manager import dead_servers


@cache
def mpi_world() -> MpiTransport:
    """Return the transport of all ranks; the first call starts MPI. Collective.

    LaunchError if python cannot load an MPI library, or the launcher's address is of an ended job.
    """
    if dead := dead_servers():
        raise LaunchError(
            f"{dead[0]} names the launcher of a job that has ended: this shell was started by it, "
            f"or has its environment: unset ${{!PMIX_@}} ${{!OMPI_@}}, or use another shell"
        )
    try:
        comm, policy = start()
    except (ImportError, RuntimeError) as error:
        from hpcdist.comm.mpi_library import no_library  # in a job that runs, a module less

        reason = f"{type(error).__name__}: {error}"
        raise LaunchError(no_library(reason)) from error
    if ulfm.offered(comm):
        return ulfm.UlfmTransport(comm, policy)
    return MpiTransport(comm, policy)

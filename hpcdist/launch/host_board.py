"""What the ranks of one host have noted of themselves: it can be read when they are dead."""

from __future__ import annotations

import os
import struct
import tempfile
from enum import IntEnum
from pathlib import Path

from hpcdist.comm.base import Transport

_RECORD = struct.Struct("<QQq")  # process id, fact, rank


class Fact(IntEnum):
    """What a process may note; a fact about a rank also names that rank."""

    REPORTS = 1  # it alone reports the end of the job
    TERMINATED = 2  # SIGTERM came
    DONE = 3  # its script has ended, and it has left the servers
    GONE = 4  # it has left MPI: from here on its end is no death
    NAMED = 5  # it tells the death of a rank
    WRITTEN = 6  # what it did last
    EXITS = 7  # its script has called os._exit with a code other than 0


class HostBoard:
    """Facts in the order in which the ranks of this host noted them.

    All append to one file. It has lost its name before the script begins, so nothing is left behind
    however the job ends.
    """

    def __init__(self, transport: Transport) -> None:
        """Collective."""
        token = os.urandom(8).hex().encode() if transport.rank == 0 else None
        token = transport.broadcast_bytes(token, 0)
        path = Path(tempfile.gettempdir(), f"hpcdist-{token.decode()}")
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        transport.barrier()
        path.unlink(missing_ok=True)

    def note(self, fact: Fact, rank: int = -1) -> None:
        """Note a fact of this process."""
        os.write(self._file, _RECORD.pack(os.getpid(), fact, rank))

    def all(self, fact: Fact, rank: int = -1) -> list[int]:
        """Return the processes that have noted this, first come first."""
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        whole = data[: len(data) // _RECORD.size * _RECORD.size]
        return [pid for pid, *noted in _RECORD.iter_unpack(whole) if noted == [fact, rank]]

    def claim(self, fact: Fact, rank: int = -1) -> bool:
        """Note a fact that one process only can have; return whether it is this one."""
        if not self.all(fact, rank):
            self.note(fact, rank)
        return self.all(fact, rank)[0] == os.getpid()

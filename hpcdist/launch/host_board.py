"""A file shared by the ranks of a host, readable after a rank has died."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from hpcdist.comm.base import Transport
from hpcdist.launch.stuck_launcher import RECORD


class Fact(IntEnum):
    """What a process may note; a fact about a rank also names that rank, ENDS the code."""

    REPORTS = 1  # it alone reports the end of the job
    TERMINATED = 2  # SIGTERM came
    DONE = 3  # its script has ended, and it has left the servers
    GONE = 4  # it has left MPI: from here on its end is no death
    NAMED = 5  # it tells the death of a rank
    WRITTEN = 6  # what it did last
    EXITS = 7  # its script has called os._exit
    FAILS = 8  # it is about to end with a code other than 0
    ENDS = 9  # it ends the job with a code


# A process that notes none of these was killed, or crashed.
LAST_WORDS = (Fact.REPORTS, Fact.DONE, Fact.GONE, Fact.EXITS, Fact.FAILS)


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
        self.file = os.open(path, flags, 0o600)  # of records
        transport.barrier()
        path.unlink(missing_ok=True)

    def note(self, fact: Fact, rank: int = -1) -> None:
        """Note a fact of this process."""
        os.write(self.file, RECORD.pack(os.getpid(), fact, rank))

    def all(self, fact: Fact, rank: int = -1) -> list[int]:
        """Return the processes that have noted this, first come first."""
        return [pid for pid, *noted in self._records() if noted == [fact, rank]]

    def code(self) -> int | None:
        """Return the code with which a process of this host ends the job, None if none does."""
        codes = [code for _, fact, code in self._records() if fact == Fact.ENDS]
        return codes[0] if codes else None

    def _records(self) -> Iterator[tuple[int, ...]]:
        data = os.pread(self.file, os.fstat(self.file).st_size, 0)
        return RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])

    def claim(self, fact: Fact, rank: int = -1) -> bool:
        """Note a fact that one process only can have; return whether it is this one."""
        if not self.all(fact, rank):
            self.note(fact, rank)
        return self.all(fact, rank)[0] == os.getpid()

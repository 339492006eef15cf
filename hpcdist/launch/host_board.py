"""A file shared by the ranks of a host, readable after a rank has died."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection

from hpcdist.base.temporary import path_of, unnamed_file
from hpcdist.comm.base import Transport
from hpcdist.launch import facts
from hpcdist.launch.facts import Fact


class HostBoard:
    """Facts in the order in which the ranks of this host noted them.

    All append to one file. It never has a name, so nothing is left behind however the job ends.
    """

    def __init__(self, transport: Transport, here: Collection[int]) -> None:
        """``here`` are the ranks of this host. Collective."""
        own = unnamed_file()
        status = os.fstat(own)
        offer = json.dumps([str(path_of(own)), status.st_dev, status.st_ino])
        offers = transport.allgather_bytes(offer.encode())
        files = (_open(*json.loads(offers[rank])) for rank in sorted(here))
        # Ranks in containers of their own see no others.
        self.file = next((file for file in files if file is not None), own)
        fcntl.fcntl(self.file, fcntl.F_SETFL, os.O_APPEND)
        transport.barrier()  # all have opened it
        if self.file != own:
            os.close(own)

    def note(self, fact: Fact, rank: int = -1) -> None:
        """Note a fact of this process."""
        facts.note(self.file, os.getpid(), fact, rank)

    def all(self, fact: Fact, rank: int = -1) -> list[int]:
        """Return the processes that have noted this, first come first."""
        return [pid for pid, *noted in facts.records(self.file) if noted == [fact, rank]]

    def code(self) -> int | None:
        """Return the code with which a process of this host ends the job, None if none does."""
        codes = [code for _, fact, code in facts.records(self.file) if fact == Fact.ENDS]
        return codes[0] if codes else None

    def claim(self, fact: Fact, rank: int = -1) -> bool:
        """Note a fact that one process only can have; return whether it is this one."""
        if not self.all(fact, rank):
            self.note(fact, rank)
        return self.all(fact, rank)[0] == os.getpid()


def _open(path: str, device: int, inode: int) -> int | None:
    """Open the file that a rank offers; None if it is not to be seen from here."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(file)
    if (status.st_dev, status.st_ino) == (device, inode):
        return file
    os.close(file)
    return None

"""A file shared by the ranks of a host, readable after a rank has died."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hpcdist.comm.base import Transport
from hpcdist.launch import facts
from hpcdist.launch.facts import Fact


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
        self.file = _open(path)
        transport.barrier()
        path.unlink(missing_ok=True)

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


def _open(path: Path) -> int:
    """Make the file, or open the one that another rank, of this user, has made."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        file = os.open(path, flags)
    if os.fstat(file).st_uid != os.geteuid():
        raise PermissionError(f"{path} is another user's")
    return file

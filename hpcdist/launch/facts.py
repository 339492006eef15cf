"""What ranks note for the others of their host, and for what watches them.

Programs that watch ranks import this file: it needs the standard library only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from enum import IntEnum

_RECORD = struct.Struct("<QQq")  # process id, fact, rank


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
    AWAITS = 10  # its script has ended: it waits for the others' ends
    LEAVES = 11  # all scripts have ended: what is registered with atexit runs
    FINALIZES = 12  # it waits for the others in MPI's end


# A process that notes none of these was killed, or crashed.
LAST_WORDS = (Fact.REPORTS, Fact.DONE, Fact.GONE, Fact.EXITS, Fact.FAILS)


def note(file: int, pid: int, fact: int, rank: int = -1) -> None:
    """Append a fact to the file of a host."""
    os.write(file, _RECORD.pack(pid, fact, rank))


def records(file: int) -> Iterator[tuple[int, ...]]:
    """Return (process id, fact, rank) of all facts in the file of a host, first come first."""
    data = os.pread(file, os.fstat(file).st_size, 0)
    whole = data[: len(data) // _RECORD.size * _RECORD.size]
    yield from _RECORD.iter_unpack(whole)

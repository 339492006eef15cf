"""Keeps a launcher from ending the others of a host before one of them has told of a death.

Open MPI's mpirun acts on the end of a process when it has read all that this has written, and then
ends the others at once, without reading what they say. So what watches a host holds the pipes to
it open, until one of the others has spoken.

The process that watches a host (`host_watcher`) imports this file: it needs the standard library
only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence

SPEAKS_S = 3.0  # how long it may take to tell of a death, on a busy machine
PASSED_ON_S = 0.3  # how long a launcher may take to read that
LOOK_S = 0.05  # how often to look whether it was told


def pipes_of(pids: Iterable[int]) -> list[int]:
    """Open the pipes that are the standard errors of these processes, where they are pipes."""
    opened = []
    for pid in pids:
        path = f"/proc/{pid}/fd/2"
        with contextlib.suppress(OSError):  # it has none, or is another user's
            if stat.S_ISFIFO(os.stat(path).st_mode):
                opened.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    return opened


class HeldOutputs:
    """Pipes to let go when a death has been told, or nobody tells of it."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = list(files)
        self._until_s: float | None = None
        self._told = False

    @property
    def pending(self) -> bool:
        """Whether a death waits to be told."""
        return self._until_s is not None and bool(self._files)

    def note_death(self, now_s: float) -> None:
        """Take note that a rank has died; the first one counts."""
        if self._until_s is None:
            self._until_s = now_s + SPEAKS_S

    def look(self, now_s: float, told: bool) -> None:
        """Release them if it is time; ``told``: a rank has reported the end of the job."""
        if self._until_s is None:
            return
        if told and not self._told:
            self._told = True
            self._until_s = min(self._until_s, now_s + PASSED_ON_S)
        if now_s >= self._until_s:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            while self._files:
                os.dup2(nowhere, self._files.pop())

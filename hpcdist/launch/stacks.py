"""The Python stacks of other ranks of this host, even of those that are stuck inside a C call.

On a signal, Python's faulthandler in every rank writes its stacks into a file in memory, which
the other ranks of the same user can read.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import signal
import time
from pathlib import Path

_NAME = "hpcdist-stacks"
_SIGNAL = signal.SIGUSR2
_STATES = {"T": "is stopped (SIGSTOP)", "t": "is stopped by a debugger", "D": "waits for a device"}
PATIENCE_S = 5.0  # until its first line: it may have to wait for a core
QUIET_S = 0.2  # without another line, that was all
MOST_LINES = 30
_OURS = ("in _await_the_end", "in _end_without_mpi")  # threads that watch
_WAIT = "hpcdist/comm/progress.py"
_LAUNCHERS = (
    'File "<frozen runpy>"',
    f'File "{runpy.__file__}"',  # the same before Python 3.11
    f'File "{Path(__file__).parent}/',
    "hpcdist/__main__.py",
)
_files: list[int] = []  # this process's, once it listens


def listen() -> None:
    """Answer other ranks' requests for the stacks of this process, from a thread."""
    if not _files and hasattr(os, "memfd_create"):
        _files.append(os.memfd_create(_NAME))
        faulthandler.register(_SIGNAL, file=_files[0], all_threads=True)


def stacks_of(pid: int) -> str:
    """Return where a process of this host is in its Python code, or why that cannot be said."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "Tt":
            return f"it {_STATES[state]}"
        stack = _ask(pid)
    except OSError as error:
        return f"its stack cannot be read: {error.strerror}"
    if not stack:
        return f"it {_STATES.get(state, 'does not answer')}: no stack"
    return "\n".join(_shortened(stack))


def waits(stack: str) -> bool:
    """Return whether what `stacks_of` returned is of a rank that waits for others itself.

    So does one of which only the launcher's frames were left out: its own wait has just ended.
    """
    if stack.lstrip().startswith(("Current thread", "Thread")) and 'File "' not in stack:
        return True
    return any(f'{_WAIT}", line' in line and "in linger" in line for line in stack.splitlines())


def _ask(pid: int) -> str:
    files = [f for f in Path(f"/proc/{pid}/fd").iterdir() if _NAME in _target(f)]
    if not files or not _answers(pid):
        return ""
    with open(files[0], "rb") as file:
        file.seek(0, os.SEEK_END)
        os.kill(pid, _SIGNAL)
        text, end = b"", time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            time.sleep(0.02)
            if more := file.read():
                text, end = text + more, time.monotonic() + QUIET_S
    return text.decode(errors="replace")


def _answers(pid: int) -> bool:
    """Return whether the signal asks that process; one whose interpreter has ended dies of it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (_SIGNAL - 1) & 1)


def _target(file: Path) -> str:
    with contextlib.suppress(OSError):  # closed meanwhile
        return os.readlink(file)
    return ""


def _shortened(text: str) -> list[str]:
    """Return the lines of a report that are the user's or our training's, not the launcher's."""
    threads = text.strip().split("\n\n")
    threads = [block for block in threads if not any(ours in block for ours in _OURS)]
    lines = "\n".join(threads).splitlines()
    lines = [line for line in lines if not any(frame in line for frame in _LAUNCHERS)]
    shown = lines[:MOST_LINES]
    return shown + [f"  ({len(lines) - MOST_LINES} more lines)"] * (len(lines) > MOST_LINES)

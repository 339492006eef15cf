"""Where each rank's output goes: a file per rank, the terminal for rank 0."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from pathlib import Path
from typing import TextIO

from hpcdist.base.errors import LaunchError
from hpcdist.comm.cluster import PSERVER, RankRole


class Tee(io.TextIOBase):
    """A text stream that writes to a terminal and to a log.

    The terminal comes first: on a full disk it hears why the log cannot be written.
    """

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self._terminal, self._log = terminal, log

    def write(self, text: str) -> int:
        written = self._terminal.write(text)
        self._log.write(text)
        return written

    def flush(self) -> None:
        self._terminal.flush()
        self._log.flush()

    def isatty(self) -> bool:
        return self._terminal.isatty()

    def fileno(self) -> int:
        return self._terminal.fileno()


def log_name(role: RankRole) -> str:
    """Return a rank's file name, as Fluid's launchers name it."""
    return f"{'serverlog' if role.kind == PSERVER else 'workerlog'}.{role.index}"


def problem_with(purpose: str, directory: str) -> str:
    """Make a directory; return why that cannot be, or nobody may write there; else nothing."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"cannot make the {purpose} {directory!r}: {error.strerror}"
    writable = os.access(directory, os.W_OK | os.X_OK)
    return "" if writable else f"cannot write into the {purpose} {directory!r}"


class Output:
    """This rank's stdout and stderr, and the terminal that hpcdist's own errors must reach."""

    def __init__(self) -> None:
        self._terminal: TextIO | None = None  # stderr as it was, once it has been sent elsewhere

    def direct(self, rank: int, role: RankRole, directory: str | None, *, all_output: bool) -> None:
        """Redirect this rank's output until the process ends.

        With a directory: stdout and stderr to the rank's file there, rank 0's to the terminal as
        well. Without: the other ranks' stdout goes nowhere unless ``all_output``; stderr stays.
        """
        if directory is not None:
            log = _open_log(Path(directory, log_name(role)))
            if rank == 0:
                sys.stdout, sys.stderr = Tee(sys.stdout, log), Tee(sys.stderr, log)
            else:
                flush()
                self._terminal = os.fdopen(
                    os.dup(2),
                    "w",
                    buffering=1,
                    errors="backslashreplace",  # as Python's own
                )
                # Whole descriptors: what C libraries write belongs to the log too.
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
        elif rank != 0 and not all_output:
            flush()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.close(nowhere)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)

    def announce(self, text: str) -> None:
        """Write an error of hpcdist's to the terminal, and to this rank's log where it has one."""
        for stream in filter(None, (sys.stderr, self._terminal)):
            # One write, so that ranks sharing a terminal do not mix their lines.
            with contextlib.suppress(OSError, ValueError):
                stream.write(f"hpcdist: {text}\n")
        flush()


class _Messages(logging.Handler):
    """Prints what hpcdist logs to whatever stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"hpcdist: {record.getMessage()}", file=sys.stderr, flush=True)


def show_messages(level: int, everything: int | None) -> None:
    """Print what hpcdist logs at ``level`` or above; with ``everything``, all that anybody logs.

    ``everything`` is a level for Python's own logging, which then prints hpcdist's messages too.
    """
    if everything is not None:
        logging.basicConfig(level=everything)
        return
    logger = logging.getLogger("hpcdist")
    logger.setLevel(level)
    logger.addHandler(_Messages())
    logger.propagate = False


def _open_log(path: Path) -> TextIO:
    try:
        return path.open("w", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise LaunchError(f"cannot write the log file {path}: {error}") from error


def flush() -> None:
    """Push out what is buffered; a reader that has gone away is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()

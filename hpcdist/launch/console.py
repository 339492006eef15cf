"""The console of commands that show tables: a terminal, or a file that reads well."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from hpcdist.launch.stuck_launcher import launcher_of

if TYPE_CHECKING:
    from rich.console import Console

_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def console_of(width: int) -> Console:
    """Return a console on stdout: a terminal's, or ``width`` columns without colours."""
    from rich.console import Console

    seen = None if on_terminal() else False
    return Console(width=seen if seen is None else width, force_terminal=seen, highlight=False)


def on_terminal() -> bool:
    """Return whether a terminal shows what this process prints.

    mpirun lets its ranks see a terminal, also where it writes what they print to a file.
    """
    launcher = launcher_of(os.getppid())
    if launcher is None or not sys.stdout.isatty():
        return sys.stdout.isatty()
    try:
        return os.readlink(f"/proc/{launcher}/fd/1").startswith(_TERMINALS)
    except OSError:  # another user's, or it has ended
        return True

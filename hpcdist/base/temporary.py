"""Temporary files, of which nothing is left behind, whatever kills their process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = ".hpcdist-tmp-"  # how the names of temporary folders begin


def unnamed_file(content: bytes = b"") -> int:
    """Create a file without a name; it lives as long as a process has it open.

    Returns its descriptor.
    """
    if hasattr(os, "memfd_create"):  # some builds of Python lack it
        descriptor = os.memfd_create("hpcdist")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor


def path_of(descriptor: int) -> Path:
    """Return a path by which this user's processes of this host can open it while this one does."""
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder, which is removed at the end, or by the next job if this one is killed."""
    with tempfile.TemporaryDirectory(prefix=FOLDER) as name:
        held = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # as long as it is in use
        try:
            yield Path(name)
        finally:
            os.close(held)

"""Opening files that others may have written: plain files only, no links, nothing outside.

Everything that checkpoints and ``fluid.io`` read is opened here.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from hpcdist.base.errors import CheckpointError

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe shall not block
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_plain(path: Path) -> Any:
    """Open a file for reading, unbuffered; see `open_below`."""
    return open_below(path.parent, path.name)


def open_below(directory: Path, name: str) -> Any:
    """Open the file ``name``, a path of plain names below ``directory``, for reading, unbuffered.

    Raises CheckpointError if it cannot be read, is not a regular file, or if ``name`` leads out of
    the directory, be it by ``..`` or by a symbolic link.
    """
    path = directory / name
    *folders, last = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in (*folders, last)):
        raise CheckpointError(f"{directory}: {name!r} is not the name of a file in it")
    try:
        parent = os.open(directory, _FOLDER)
        try:
            for folder in folders:
                inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
                parent = inner
            descriptor = os.open(last, _FILE, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CheckpointError(
                f"{path}: is a symbolic link, which is not followed: give the file itself"
            ) from None
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # a name that the system cannot have
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path}: is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_into(file: Any, view: memoryview) -> bool:
    """Fill ``view``, bytes, from where an unbuffered file stands; tell whether it had as many.

    The system gives 2 GiB at a time at most.
    """
    while len(view):
        got = file.readinto(view)
        if not got:
            return False
        view = view[got:]
    return True


def read_whole(path: Path, limit: int) -> bytes:
    """Return the content of a file of at most ``limit`` bytes; CheckpointError for others."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise CheckpointError(f"{path}: {size} bytes, expected at most {limit}")
        try:
            return bytes(file.read(limit + 1))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None

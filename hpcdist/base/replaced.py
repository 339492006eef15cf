"""Files that appear whole and on disk, or not at all: every file that replaces one is written here.

A file is written under a name that nobody can guess, and takes its place by renaming. If the disk
refuses the new name, the old file is put back: who is told of an error finds what was there before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = r"\.[0-9a-f]{16}\.tmp"  # after the name of a file that is not complete yet
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # never what a link leads to
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Answers of file systems that cannot bring a directory to disk by itself (CIFS, FUSE, 9p):
# names in it get there without being asked for, or cannot.
_NO_DIRECTORIES = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def temporary_of(path: Path) -> Path:
    """Return a name beside ``path`` for a file that is to replace it; nobody can guess it."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")


def create_beside(path: Path) -> tuple[Path, int]:
    """Create a file that is to replace ``path``; return its name, and its descriptor."""
    temporary = temporary_of(path)
    return temporary, os.open(temporary, _NEW, 0o666)


@contextmanager
def in_place_of(path: Path, *, durable: bool = True) -> Iterator[int]:
    """Yield the descriptor of a new file, which becomes ``path`` when the `with` has ended.

    If that raises, or anything cannot be written, ``path`` is what it was. ``durable``: file and
    name are on disk before this returns, and what crashes have left of earlier attempts is removed.
    """
    temporary, descriptor = create_beside(path)
    try:
        try:
            if durable:
                _hold(descriptor)
                _remove_left(path, temporary)
            yield descriptor
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if durable:
            take_place(temporary, path)
        else:
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes | str, *, durable: bool = False) -> None:
    """Write a file at once, text as UTF-8; it is complete, or as it was before.

    Names of files that are no UTF-8 here, which Python reads as surrogates, are written escaped.
    """
    content = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    with in_place_of(path, durable=durable) as new, open(new, "wb", closefd=False) as file:
        file.write(content)


def take_place(temporary: Path, path: Path) -> None:
    """Rename a file whose content is on disk to ``path``, and bring the name to disk.

    If that fails, ``path`` is what it was.
    """
    kept = _Kept(path)
    try:
        os.replace(temporary, path)
        try:
            sync_directory(path.parent)
        except OSError:
            kept.put_back()
            raise
    finally:
        kept.drop()


def sync_directory(directory: Path) -> None:
    """Bring names in a directory to disk, where the file system can be asked to."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # names may be made there, but not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORIES:
            raise
    finally:
        os.close(descriptor)


def make_folders(directory: Path) -> None:
    """Make a directory, and those above it, on disk; if that fails, those made here are removed."""
    missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for folder in reversed(missing):
            sync_directory(folder.parent)
    except OSError:
        for folder in missing:
            with suppress(OSError):  # others have put something into it
                folder.rmdir()
        raise


def _remove_left(path: Path, mine: Path) -> None:
    """Remove what processes that died have left of files that were to replace ``path``."""
    name = re.compile(re.escape(path.name) + TEMPORARY)
    for left in path.parent.iterdir():
        if name.fullmatch(left.name) and left != mine and _nobody_writes(left):
            left.unlink(missing_ok=True)


def _hold(descriptor: int) -> None:
    """Show other processes that this file is being written, where the file system can."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _nobody_writes(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


class _Kept:
    """What stands under a path, kept until another file has safely taken its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._link: Path | None = None
        self._descriptor: int | None = None
        if not os.path.lexists(path):
            return
        link = temporary_of(path)
        try:
            os.link(path, link, follow_symlinks=False)
            self._link = link
        except OSError:  # a file system without links
            self._descriptor = os.open(path, _OLD)

    def put_back(self) -> None:
        """Restore the previous file, or none if there was none."""
        if self._link is not None:
            os.replace(self._link, self._path)
        elif self._descriptor is not None:
            with in_place_of(self._path, durable=False) as copy:
                _copy(self._descriptor, copy)
        else:
            self._path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Keep it no longer."""
        if self._link is not None:
            self._link.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)


def _copy(source: int, target: int) -> None:
    os.fchmod(target, stat.S_IMODE(os.fstat(source).st_mode))
    with open(source, "rb", closefd=False) as old, open(target, "wb", closefd=False) as new:
        old.seek(0)
        shutil.copyfileobj(old, new, 1 << 20)

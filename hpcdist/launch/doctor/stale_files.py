"""What killed ranks have left behind: files in shared memory, and our temporary folders.

It is stale if it is one that MPI libraries make for a job, or hpcdist, belongs to this user, and no
process of this machine has it open or mapped. Its owner has it open or mapped from its creation on,
so what was listed before the processes, and that none of them uses, has no owner.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.temporary import FOLDER

SHARED = Path("/dev/shm")
PROCESSES = Path("/proc")
# Open MPI's segments and windows, MPICH's, UCX's; ours.
OF_JOBS = re.compile(
    r"(vader_segment\.|sm_segment\.|osc_\w+\.|mpich_sh(ar_tmp|m_)|ucx_shm_posix_|hpcdist-)"
)
OLD_S = 60.0  # younger ones are left alone at the start of a job, without a look at processes
FIRST_NAMESPACE = "pid:[4026531836]"  # of processes: there all of a machine can be seen

File = tuple[int, int]  # device, inode


@dataclass(frozen=True)
class StaleFile:
    """A file or folder whose owner is dead."""

    path: Path
    nbytes: int
    of: File


def sees_all(processes: Path = PROCESSES) -> bool:
    """Return whether this process sees all that may use the machine's shared memory.

    One in a container does not if the container shares that with others.
    """
    with contextlib.suppress(OSError):
        return os.readlink(processes / "self/ns/pid") == FIRST_NAMESPACE
    return False


def find(
    shared: Path = SHARED, processes: Path = PROCESSES, older_s: float = 0.0
) -> list[StaleFile]:
    """Return the stale files of this user, by name; only those ``older_s`` seconds old or more."""
    return _unused(_owned(shared, OF_JOBS, stat.S_ISREG, older_s), processes)


def find_folders(temporary: Path | None = None, older_s: float = 0.0) -> list[StaleFile]:
    """Return the stale temporary folders of this user, by name; see `find`."""
    place = temporary or Path(tempfile.gettempdir())
    return _unused(_owned(place, re.compile(re.escape(FOLDER)), stat.S_ISDIR, older_s), PROCESSES)


def remove(files: Iterable[StaleFile]) -> list[StaleFile]:
    """Remove stale files and folders, unless others have taken the name; return those removed."""
    removed = []
    for file in files:
        with contextlib.suppress(OSError):
            status = file.path.lstat()
            if (status.st_dev, status.st_ino) == file.of:
                if stat.S_ISDIR(status.st_mode):
                    shutil.rmtree(file.path)
                else:
                    file.path.unlink()
                removed.append(file)
    return removed


def _unused(files: Iterable[StaleFile], processes: Path) -> list[StaleFile]:
    by_name = sorted(files, key=lambda file: file.path)
    if not by_name:
        return []
    in_use = _files_in_use(processes, {file.of for file in by_name})
    return [file for file in by_name if file.of not in in_use]


def _owned(
    folder: Path, names: re.Pattern[str], is_kind: Callable[[int], bool], older_s: float
) -> Iterable[StaleFile]:
    before = time.time() - older_s
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not names.match(entry.name):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_ours = status.st_uid == os.getuid() and is_kind(status.st_mode)
                if is_ours and status.st_mtime <= before:
                    size = status.st_blocks * 512
                    yield StaleFile(Path(entry.path), size, (status.st_dev, status.st_ino))


def _files_in_use(processes: Path, files: set[File]) -> set[File]:
    """Return which of these files some process has open or mapped.

    Those of other users cannot be looked at; they cannot open this user's files either, which only
    their owner may read. Where a process of our own cannot be looked at, all files count as held.
    """
    in_use: set[File] = set()
    for process in processes.iterdir():
        if not process.name.isdigit():
            continue
        try:
            is_ours = process.stat().st_uid == os.getuid()
            in_use |= files & open_files(process)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            if is_ours and process.name != "1" and not _has_ended(process):
                return files
    return in_use


def _has_ended(process: Path) -> bool:
    """Return whether only an entry for its parent is left of a process ("zombie"; see proc(5))."""
    with contextlib.suppress(OSError):
        return (process / "stat").read_text(errors="replace").rpartition(") ")[2][:1] in ("Z", "X")
    return True


def open_files(process: Path) -> set[File]:
    """Return the files that a process, a folder of /proc, has open or mapped."""
    files: set[File] = set()
    for line in (process / "maps").read_text(errors="replace").splitlines():
        _, _, _, device, inode, *_ = line.split(maxsplit=5)
        if inode != "0":
            major, minor = (int(part, 16) for part in device.split(":"))
            files.add((os.makedev(major, minor), int(inode)))
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = link.stat()
            files.add((status.st_dev, status.st_ino))
    return files

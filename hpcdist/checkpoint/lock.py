"""A lock file that lets one job at a time save into a directory, with a heartbeat.

The owner touches the file regularly. A job on the same machine checks whether the owner's process
exists; one on another machine watches the file for a while.
"""

from __future__ import annotations

import atexit
import errno
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcdist.base.errors import CheckpointError
from hpcdist.base.plain_data import typed
from hpcdist.base.replaced import make_folders
from hpcdist.checkpoint.files import open_plain, read_whole
from hpcdist.comm.process_manager import slurm_job

NAME = ".lock"
BEAT_S = 5.0  # between two signs of life
DEAD_S = 30.0  # without one, and the owner is taken for dead
POLL_S = 1.0
MAX_BYTES = 4096

logger = logging.getLogger("hpcdist.checkpoint")


@dataclass(frozen=True)
class Owner:
    """A process that saves: trainer 0 of the job ``job``.

    ``machine`` differs wherever process ids mean other processes; ``began`` is when the process
    was started, in ticks since the machine was. ``slurm`` is (job, restart), 0 without Slurm.
    """

    job: str
    host: str
    machine: str
    pid: int
    began: int
    slurm: tuple[int, ...]


def this_process(job: str) -> Owner:
    """Return this process as the owner that a job's lock names."""
    return Owner(
        job=job,
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        began=_began(os.getpid()) or 0,
        slurm=slurm_job(),
    )


def _machine() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return uuid.uuid4().hex  # unknown: nobody is on the same machine


def _began(pid: int) -> int | None:
    """Return when a process of this machine was started; None if there is none, or it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


# -- the locks of this process ---------------------------------------------------------------------
_locked: set[Path] = set()
_beating = threading.Lock()
_heart: threading.Thread | None = None
_job = ""


def job_name(agreed: str | None = None) -> str:
    """Return this job's name; ``agreed``: that which trainer 0 has given it, once."""
    global _job
    _job = agreed or _job or uuid.uuid4().hex
    return _job


def take(directory: Path) -> None:
    """Reserve the directory for saves of this job, until it ends.

    Raises CheckpointError if another does. One that has died is replaced; if it ran on another
    machine, this takes `DEAD_S` seconds to find out.
    """
    owner = this_process(job_name())
    make(directory)
    path = directory.resolve() / NAME
    while not _created(path, owner):
        holder = _read(path)
        dead = _dead(path, holder, owner)
        if not dead and holder is not None and holder.job == owner.job:
            break  # another process of this job, or this one
        if not dead:
            raise CheckpointError(
                f"{directory}: {_words(holder)} saves into this directory: give each job its own, "
                f"or end that one (if you are sure that it has ended, delete {path})"
            )
        if holder is None or holder.job != owner.job:
            logger.warning("%s: taking over from %s, which has died", directory, _words(holder))
        _remove(path, holder)
    with _beating:
        _locked.add(path)
    _start_heart()


def make(directory: Path) -> None:
    """Make a directory for checkpoints; CheckpointError if it cannot be, or cannot be written to.

    What a file system forbids is seen, not that it is full.
    """
    try:
        make_folders(directory)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "it cannot be written to")
    except OSError as error:
        why = "a file has this name" if isinstance(error, FileExistsError) else error.strerror
        raise CheckpointError(
            f"the directory {directory} for checkpoints cannot be made: {why}; name one in which "
            "this job may write"
        ) from None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory for one save, or, if this job has it, as before."""
    path = directory.resolve() / NAME
    before = path in _locked
    take(directory)
    try:
        yield
    finally:
        if not before:
            _release(path)


def check(directory: Path) -> None:
    """Raise CheckpointError if this job had the lock of a directory and has lost it."""
    path = directory.resolve() / NAME
    holder = _read(path)
    if path in _locked and (holder is None or holder.job != job_name()):
        _locked.discard(path)
        raise CheckpointError(
            f"{directory}: {_words(holder)} has taken over this directory, as this job gave "
            f"no sign of life for {DEAD_S:g} s"
        )


def _created(path: Path, owner: Owner) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileExistsError:
        return False
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be made: {error.strerror}") from None
    try:
        os.write(descriptor, json.dumps(asdict(owner)).encode())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> Owner | None:
    """Return the owner that a lock names; None if it names none, or is gone."""
    try:
        owner: Owner = typed(Owner, json.loads(read_whole(path, MAX_BYTES)))
    except (CheckpointError, KeyError, ValueError, RecursionError):
        return None
    return owner if owner.host.isprintable() and owner.job.isalnum() else None


def _remove(path: Path, owner: Owner | None) -> None:
    """Remove the lock of a dead owner, unless others have done so and it is theirs now."""
    aside = path.with_name(f"{NAME}.{uuid.uuid4().hex}")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be removed: {error.strerror}") from None
    theirs = _read(aside)
    if theirs != owner:
        with suppress(OSError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)


def _dead(path: Path, holder: Owner | None, mine: Owner) -> bool:
    if holder == mine:
        return False
    if holder is not None and holder.machine == mine.machine:
        return _began(holder.pid) != holder.began
    if holder is not None and holder.job == mine.job:
        return True  # this was trainer 0 of this job
    if (
        holder is not None
        and mine.slurm[:1] == holder.slurm[:1] != (0,)
        and mine.slurm > holder.slurm
    ):
        return True  # Slurm has ended it before it started this one
    logger.warning("%s names %s: waiting %g s for a sign of life", path, _words(holder), DEAD_S)
    first, until = _sign_of_life(path), time.monotonic() + DEAD_S
    while time.monotonic() < until:
        time.sleep(POLL_S)
        if _sign_of_life(path) != first:
            return False
    return True


def _sign_of_life(path: Path) -> tuple[int, int]:
    """Return a value that changes with every sign of life; opening makes NFS ask its server."""
    try:
        with open_plain(path) as file:
            status = os.fstat(file.fileno())
            return status.st_mtime_ns, status.st_ino
    except CheckpointError:
        return 0, 0


def _words(owner: Owner | None) -> str:
    if owner is None:
        return "another job"
    slurm = f", Slurm job {owner.slurm[0]}" if owner.slurm[:1] > (0,) else ""
    return f"the job of process {owner.pid} on {owner.host}{slurm}"


def _start_heart() -> None:
    global _heart
    if _heart is None or not _heart.is_alive():  # in a forked process it is not
        _heart = threading.Thread(target=_beat, name="hpcdist-lock", daemon=True)
        _heart.start()


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        with _beating:
            for path in _locked:
                with suppress(OSError):
                    os.utime(path)


def _release(path: Path) -> None:
    with _beating:
        _locked.discard(path)
    owner = _read(path)
    if owner is not None and owner == this_process(job_name()):
        path.unlink(missing_ok=True)


@atexit.register
def _release_all() -> None:
    for path in list(_locked):
        _release(path)

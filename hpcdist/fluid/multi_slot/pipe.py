"""Files through pipe commands, in chunks of complete lines."""

from __future__ import annotations

import functools
import os
import select
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from gzip import GzipFile
from typing import IO

from hpcdist.base.errors import DataError
from hpcdist.base.plain_data import MAX_LINE_BYTES

CHUNK_BYTES = 1 << 20  # at once: enough that the work around a chunk does not count
# Without a seed hash("text") is another number for each file, and on each trainer.
# `python` is the one that trains, also where its environment was not activated.
_BEFORE = (
    "set -o pipefail; export PYTHONHASHSEED=${PYTHONHASHSEED:-0} "
    f"PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH"
)
_STOPPED = 128 + signal.SIGPIPE  # what comes behind has read enough, and has not failed
_END_S = 5.0  # for a command to end after SIGTERM


def lines_of(path: str, command: str, within_s: float | None = None) -> Iterator[bytes]:
    """Yield what ``bash -c command`` makes of a file, in chunks that end with a line.

    ``cat`` starts no process. Files that end in .gz are unpacked before. Raises DataError if the
    file cannot be read or becomes shorter meanwhile, if the command does not end with exit code 0,
    and if it writes nothing ``within_s`` seconds.
    """
    try:
        with _opened(path, within_s) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            packed = path.endswith(".gz")
            if packed and not size and stat.S_ISREG(status.st_mode):
                raise DataError(f"{path}: not a gzip file: it is empty")

            def at_end() -> None:
                if os.fstat(file.fileno()).st_size < size:
                    raise DataError(f"{path}: became shorter while it was read")

            if command.strip() not in ("", "cat"):
                yield from _piped(file, path, command, within_s, at_end)
            elif packed:
                with GzipFile(fileobj=file) as unpacked:
                    yield from _complete_lines(lambda: unpacked.read(CHUNK_BYTES), path, at_end)
            else:
                yield from _complete_lines(lambda: _read(file, path, "it", within_s), path, at_end)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _opened(path: str, within_s: float | None) -> IO[bytes]:
    # Whoever opens a fifo waits for its writer, else.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    try:
        if not _is_ready(file, within_s):
            raise DataError(f"{path}: it sent nothing for {within_s:g} s")
        os.set_blocking(file.fileno(), True)
    except BaseException:
        file.close()
        raise
    return file


def _piped(
    file: IO[bytes],
    path: str,
    command: str,
    within_s: float | None,
    at_end: Callable[[], None],
) -> Iterator[bytes]:
    packed = path.endswith(".gz")
    called = f"the pipe command {command!r}"
    script = f"gzip -dc | {{ {command}\n}}" if packed else command
    with subprocess.Popen(
        ["bash", "-c", f"{_BEFORE}; {script}"], stdin=file, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        output = process.stdout

        def command_ended() -> None:
            if process.wait() not in (0, _STOPPED):
                before = " (.gz files are unpacked before it reads them)" if packed else ""
                raise DataError(
                    f"{path}: {called} ended with exit code {process.returncode}{before}; what it "
                    "says stands above, or with --log-dir in the log of this rank"
                )
            at_end()

        try:
            chunks = functools.partial(_read, output, path, called, within_s)
            yield from _complete_lines(chunks, path, command_ended)
        except BaseException:  # the rest is not read
            output.close()
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _is_ready(file: IO[bytes], within_s: float | None) -> bool:
    """Wait until there is something to read, or the end; False: not in time."""
    waiting = select.poll()  # takes files of any number, unlike select()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(None if within_s is None else within_s * 1000))


def _read(file: IO[bytes], path: str, called: str, within_s: float | None) -> bytes:
    """Return up to CHUNK_BYTES, fewer only at the end; DataError if nothing comes in time."""
    pieces: list[bytes] = []  # one, of a regular file, which join() does not copy
    missing = CHUNK_BYTES
    while missing:
        if not _is_ready(file, within_s):
            raise DataError(
                f"{path}: {called} wrote nothing for {within_s:g} s; --deadline sets how long to "
                "wait"
            )
        piece = file.read(missing)
        if not piece:
            break
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _complete_lines(
    read: Callable[[], bytes], path: str, at_end: Callable[[], None]
) -> Iterator[bytes]:
    """Yield what is read as complete lines; ``at_end`` says first whether the last one is whole.

    DataError for a line of more than MAX_LINE_BYTES.
    """
    begun: list[bytes] = []  # of a line whose end is to come
    length = 0
    while chunk := read():
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join((*begun, chunk[:end]))
            begun, length = [chunk[end:]], len(chunk) - end
        else:
            begun.append(chunk)
            length += len(chunk)
        if length > MAX_LINE_BYTES:
            raise DataError(
                f"{path}: a line has more than {MAX_LINE_BYTES >> 20} MiB: is it a text file?"
            )
    at_end()
    if rest := b"".join(begun):
        yield rest

"""Files through pipe commands, in chunks of whole lines."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from gzip import GzipFile
from typing import IO, Any

from hpcdist.errors import DataError

CHUNK_BYTES = 1 << 20  # at once: enough that the work around a chunk does not count
# Without a seed hash("text") is another number for each file, and on each trainer.
_BEFORE = "set -o pipefail; export PYTHONHASHSEED=${PYTHONHASHSEED:-0}"
_STOPPED = 128 + signal.SIGPIPE  # what comes behind has read enough, and has not failed
_END_S = 5.0  # for a command that is told to end


def lines_of(path: str, command: str) -> Iterator[bytes]:
    """Yield what ``bash -c command`` makes of a file, in chunks that end with a line.

    ``cat`` starts no process. Files that end in .gz are unpacked before. Raises DataError if the
    file cannot be read, or the command does not end with exit code 0.
    """
    try:
        with open(path, "rb") as file:
            if command.strip() in ("", "cat"):
                plain: Any = GzipFile(fileobj=file) if path.endswith(".gz") else file
                yield from _whole_lines(plain)
            else:
                yield from _piped(file, path, command)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None


def _piped(file: IO[bytes], path: str, command: str) -> Iterator[bytes]:
    if path.endswith(".gz"):
        command = f"gzip -dc | {{ {command}\n}}"
    with subprocess.Popen(
        ["bash", "-c", f"{_BEFORE}; {command}"], stdin=file, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield from _whole_lines(process.stdout)
        except BaseException:  # nobody reads on
            process.stdout.close()
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    if process.returncode not in (0, _STOPPED):
        raise DataError(
            f"{path}: the pipe command {command!r} ended with exit code {process.returncode}; "
            "what it says is in the log of this rank"
        )


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    begun = b""  # of a line whose end is to come
    while chunk := file.read(CHUNK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield begun + chunk[:end]
            begun = chunk[end:]
        else:
            begun += chunk
    if begun:
        yield begun

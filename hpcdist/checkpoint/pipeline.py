"""Writing a file in three lanes: sealing chunks, writing those before them, bringing those to disk.

One thread seals, the caller's writes, another waits for the disk: so a file takes as long as the
slowest of the three, not as long as all of them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hpcdist.checkpoint.background import Worker
from hpcdist.checkpoint.fletcher import seal

AHEAD = 4  # chunks that are sealed before it is their turn: 4 MiB, which stay in caches
SYNC_BYTES = 64 << 20  # that are written before the disk is waited for


class Sealer:
    """Seals chunks in a thread, a few ahead of who writes them.

    ``chunks`` are (bytes of the array, size in the file).
    """

    def __init__(self, chunks: Iterable[tuple[np.ndarray, int]]) -> None:
        self._chunks = iter(chunks)
        # Kept from chunk to chunk: new pages cost time.
        self._buffers: deque[np.ndarray] = deque(np.empty(0, np.uint8) for _ in range(AHEAD))
        self._ahead: deque[Future[tuple[np.ndarray, str]]] = deque()
        self._worker = Worker("hpcdist-seal")

    def __enter__(self) -> Sealer:
        return self

    def __exit__(self, *_: Any) -> None:
        self._worker.close()

    def next(self) -> tuple[np.ndarray, str]:
        """Return the next chunk as it is stored, and its checksum; the one before is void then."""
        while len(self._ahead) < AHEAD and (chunk := next(self._chunks, None)) is not None:
            source, size = chunk
            if len(self._buffers[0]) < size:
                self._buffers[0] = np.empty(size, np.uint8)
            self._ahead.append(self._worker.submit(_sealed, source, self._buffers[0][:size]))
            self._buffers.rotate(-1)
        return self._ahead.popleft().result()


def _sealed(source: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray, str]:
    seal(source, chunk)
    return chunk, xxhash.xxh3_64_hexdigest(memoryview(chunk))  # type: ignore[arg-type]


class WriteBack:
    """Brings a file to disk while it is being written, so that the last fsync finds little to do.

    Errors of the disk are raised by `wrote` and when it is closed.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._bytes = 0  # written since the disk was last asked
        self._pending: Future[None] | None = None
        self._worker = Worker("hpcdist-sync")

    def __enter__(self) -> WriteBack:
        return self

    def __exit__(self, *_: Any) -> None:
        self._worker.close()
        os.close(self._descriptor)
        if self._pending is not None:
            self._pending.result()

    def wrote(self, nbytes: int) -> None:
        """Be told that the file has grown."""
        self._bytes += nbytes
        if self._bytes >= SYNC_BYTES and (self._pending is None or self._pending.done()):
            if self._pending is not None:
                self._pending.result()
            self._pending = self._worker.submit(os.fdatasync, self._descriptor)
            self._bytes = 0

"""The host's side of a GPU: asynchronous copies, and errors that are detected later.

A kernel cannot raise. The host checks for errors of kernels, and for missing messages, when it
waits for the GPU anyway: before it returns any value (`download`).
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any, Protocol

import numpy as np

CHUNK = 1 << 22  # bytes that go up at once
SLOTS = 64  # pieces on their way: more than a step feeds
# Bytes from which a feed goes up on a separate stream: a smaller one takes no longer to copy than
# the copy within the GPU that moves it from there to where a step reads it.
AHEAD = 1 << 18


class Late(Protocol):
    """Something launched whose outcome is known later."""

    def settle(self) -> None:
        """Wait for what other ranks must do, or raise why they do not."""

    def look(self) -> None:
        """Raise what was found wrong; all kernels launched so far have ended."""


_here = threading.local()  # what this thread launched, it is told of


def tell_later(late: Late) -> None:
    """Register a pending outcome, which this thread's next `download` or `finish` checks."""
    pending: list[Late] = _here.__dict__.setdefault("pending", [])
    if late not in pending:
        pending.append(late)


def download(array: Any) -> np.ndarray:
    """Return a host copy of an array of a GPU; raises what was found wrong until here."""
    pending = _settled()
    with array.device:
        host: np.ndarray = array.get()
        for late in pending:
            late.look()
    return host


def on_host(array: Any) -> np.ndarray:
    """Return a host array itself, of one on a GPU a copy."""
    return array if isinstance(array, np.ndarray) else download(array)


def assign(array: Any, host: np.ndarray) -> None:
    """Overwrite an array, wherever it lies, with host values of its shape and type."""
    if isinstance(array, np.ndarray):
        array[...] = host
    else:
        upload(array, host)


def finish(cupy: Any) -> None:
    """Wait for a GPU's kernels and raise what was found wrong, if anything waits to be told."""
    pending = _settled()
    if pending:
        cupy.cuda.get_current_stream().synchronize()
    for late in pending:
        late.look()


def _settled() -> list[Late]:
    pending: list[Late] = _here.__dict__.get("pending", [])
    _here.pending = []
    for late in pending:
        late.settle()
    return pending


def upload(array: Any, host: np.ndarray) -> None:
    """Copy a host array into one of a GPU, of the same shape and type, after its kernels.

    The host array may be changed or freed at once: the copy is made from separate memory.
    """
    with array.device:
        cupy = importlib.import_module("cupy")
        if array.flags.c_contiguous:
            _ring(cupy, array.device.id).upload(array, host)
        else:
            array[...] = cupy.asarray(host)


class Landing:
    """Memory of a GPU that one feed goes up into, on a copying stream, while a step computes.

    From there the computing stream moves it to where the steps read it, which is one place, as the
    replays of a CUDA graph need it. The next copy waits until it has been moved, so that it runs
    beside all kernels of the step.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._memory = cupy.empty(0, cupy.uint8)
        self._copied, self._moved = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._begun: np.ndarray | None = None  # what is on its way before a step asks for it
        self._guessed_wrong = False

    def begin(self, host: np.ndarray) -> None:
        """Copy what the next step is fed, by the looks of it; until then it stays as it is.

        Once another array is fed in its place, as where ranks take their rows of a batch, nothing
        is begun any more.
        """
        if self._begun is not host and not self._guessed_wrong:
            self._copy(host)
            self._begun = host

    def fill(self, array: Any, host: np.ndarray) -> None:
        """Overwrite an array, as `upload` does."""
        begun, self._begun = self._begun, None
        if begun is not host:
            self._guessed_wrong |= begun is not None
            self._copy(host)
        stream = self._cupy.cuda.get_current_stream()
        stream.wait_event(self._copied)
        self._cupy.copyto(array, self._view(host))
        self._moved.record(stream)

    def _copy(self, host: np.ndarray) -> None:
        ring = _ring(self._cupy, self._cupy.cuda.Device().id)
        grows = len(self._memory) < host.nbytes
        if grows:
            self._moved.record()  # whoever had the memory may have kernels that still read it
        ring.stream.wait_event(self._moved)
        with ring.stream:  # a later owner's copies then come after these
            if grows:
                self._memory = self._cupy.empty(host.nbytes, self._cupy.uint8)
            ring.upload(self._view(host), host)
            self._copied.record()

    def _view(self, host: np.ndarray) -> Any:
        return self._memory[: host.nbytes].view(host.dtype).reshape(host.shape)


class _Ring:
    """Pinned memory of the host that a GPU copies from, piece by piece in turn."""

    def __init__(self, cupy: Any) -> None:
        self._pinned = importlib.import_module("cupyx").empty_pinned
        self._slots = [
            (self._pinned(0, np.uint8), cupy.cuda.Event(disable_timing=True)) for _ in range(SLOTS)
        ]
        self._turn = 0
        self._lock = threading.Lock()
        self.stream = cupy.cuda.Stream(non_blocking=True)  # for copies beside kernels

    def upload(self, array: Any, host: np.ndarray) -> None:
        if host.nbytes <= CHUNK:
            self._piece(array, host)
            return
        flat, source = array.reshape(-1), np.ascontiguousarray(host).reshape(-1)
        length = CHUNK // host.itemsize
        for begin in range(0, source.size, length):
            self._piece(flat[begin : begin + length], source[begin : begin + length])

    def _piece(self, array: Any, host: np.ndarray) -> None:
        if not host.nbytes:
            return
        with self._lock:
            memory, copied = self._slots[self._turn]
            copied.synchronize()  # at once, unless a whole turn is still under way
            if len(memory) < host.nbytes:
                memory = self._pinned(1 << (host.nbytes - 1).bit_length(), np.uint8)
                self._slots[self._turn] = memory, copied
            staged = memory[: host.nbytes].view(host.dtype).reshape(host.shape)
            staged[...] = host
            array.set(staged)
            copied.record()
            self._turn = (self._turn + 1) % SLOTS


@functools.cache
def _ring(cupy: Any, device_id: int) -> _Ring:
    return _Ring(cupy)

"""A stand-in for NCCL between threads, over the stand-in for cupy.

A communication is done only once every rank's stream has come to it, and the communicator of none
was aborted. Arguments are as strict as those of `cupy_backends/cuda/libs/nccl.pyx`. It cannot show
that NCCL agrees.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import types
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.device import DeviceArray, Module, asarray
from tests.support.device import install as install_device
from tests.support.streams import LIMIT_S, MACHINE, Stream

DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
_numbers = itertools.count(1)
_here = threading.local()


class NcclError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"NCCL_ERROR_{status}: the stand-in failed")


class Clique:
    """What the communicators of one id share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ranks: set[int] = set()
        self.rounds: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.sent: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.error: int | None = None


class Nccl(types.SimpleNamespace):
    """The module ``cupy.cuda.nccl`` of a major version of CuPy, with its communicators."""

    available = True
    NCCL_SUM = 0
    NcclError = NcclError

    def __init__(self, cupy_major: int = 14, version: int = 23007) -> None:
        super().__init__()
        for number, name in enumerate(DTYPES):
            setattr(self, f"NCCL_{name.upper()}", number)
        self.major, self.version = cupy_major, version
        self.cliques: dict[bytes, Clique] = {}
        self.made: list[Communicator] = []

    def get_version(self) -> int:
        return self.version

    def get_unique_id(self) -> Any:
        token = np.random.default_rng(next(_numbers)).integers(0, 256, 128).astype(np.uint8)
        return token.tobytes() if self.major >= 14 else tuple(token.astype(np.int8).tolist())

    def groupStart(self) -> None:
        _here.grouped = []

    def groupEnd(self) -> None:
        parts, _here.grouped = _here.grouped, None
        for stream in {stream for stream, _ in parts}:
            waiting = [part for at, part in parts if at is stream]

            def whole(waiting: list[Any] = waiting) -> bool:
                waiting[:] = [part for part in waiting if not part()]
                return not waiting

            stream.push(whole)

    def NcclCommunicator(self, ndev: int, commId: Any, rank: int) -> Communicator:
        expected = bytes if self.major >= 14 else tuple
        if type(commId) is not expected:
            raise TypeError(f"Argument 'commId' has incorrect type (expected {expected.__name__})")
        assert len(commId) == 128
        if expected is tuple:
            assert all(-128 <= part <= 127 for part in commId)
            commId = np.array(commId, np.int8).tobytes()
        clique = self.cliques.setdefault(commId, Clique())  # atomic, as defaultdict is not
        with clique.lock:
            assert rank not in clique.ranks
            clique.ranks.add(rank)
        end = time.monotonic() + LIMIT_S
        while len(clique.ranks) < ndev:  # as ncclCommInitRank: all ranks or none
            if time.monotonic() > end:
                raise NcclError(2)
            time.sleep(1e-4)
        self.made.append(Communicator(clique, ndev, rank))
        return self.made[-1]


class Communicator:
    """One rank's end of a clique."""

    def __init__(self, clique: Clique, size: int, rank: int) -> None:
        self._clique, self._size, self._rank = clique, size, rank
        self._count = 0
        self.device = MACHINE.device
        self.aborted = self.destroyed = False

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ):
        def act(args: list[Any]) -> None:
            rows = [memory(a[0], count, datatype).copy() for a in args]
            total = rows[-1]
            for row in rows[-2::-1]:  # NCCL's order is its own
                total = total + row
            for a in args:
                memory(a[1], count, datatype)[:] = total

        self._collective(("allReduce", count, datatype, op), (sendbuf, recvbuf), act, stream)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ):
        def act(args: list[Any]) -> None:
            total = sum(memory(a[0], count, datatype).copy() for a in args)
            memory(args[root][1], count, datatype)[:] = total

        self._collective(("reduce", count, datatype, op, root), (sendbuf, recvbuf), act, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ):
        def act(args: list[Any]) -> None:
            value = memory(args[root][0], count, datatype).copy()
            for a in args:
                memory(a[1], count, datatype)[:] = value

        self._collective(("broadcast", count, datatype, root), (sendbuff, recvbuff), act, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int):
        def act(args: list[Any]) -> None:
            value = np.concatenate([memory(a[0], count, datatype) for a in args])
            for a in args:
                memory(a[1], count * self._size, datatype)[:] = value

        self._collective(("allGather", count, datatype), (sendbuf, recvbuf), act, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int):
        self._usable()
        channel = self._clique.sent[self._rank, peer]
        begun: list[Any] = []

        def task() -> bool:
            if self.aborted:
                return True
            with self._clique.lock:
                if not begun:
                    begun.append(memory(sendbuf, count, datatype).copy())
                    channel.append(begun[0])
                    return False
                return all(waiting is not begun[0] for waiting in channel)

        _push(stream, task)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int):
        self._usable()
        channel = self._clique.sent[peer, self._rank]

        def task() -> bool:
            if self.aborted:
                return True
            with self._clique.lock:
                if not channel:
                    return False
                memory(recvbuf, count, datatype)[:] = channel.popleft()
            return True

        _push(stream, task)

    def check_async_error(self) -> None:
        self._usable()
        if self._clique.error is not None:
            raise NcclError(self._clique.error)

    def abort(self) -> None:
        """End its kernels where they are; those of other ranks go on waiting."""
        self.aborted = True

    def destroy(self) -> None:
        self.destroyed = True

    def _collective(
        self,
        facts: tuple[Any, ...],
        pointers: tuple[int, int],
        act: Callable[[list[Any]], None],
        stream: int,
    ) -> None:
        self._usable()
        assert all(type(p) is int and len(memory(p, facts[1], facts[2])) for p in pointers)
        number, self._count = self._count, self._count + 1
        clique = self._clique
        ended: list[bool] = []

        def task() -> bool:
            if self.aborted:  # what it was to write is poison
                _, count, datatype = facts[:3]
                MACHINE.at(pointers[1], count * np.dtype(DTYPES[datatype]).itemsize)[:] = 0xFF
                return True
            with clique.lock:
                arrived = clique.rounds[number]
                if self._rank not in arrived:
                    arrived[self._rank] = (self, facts, pointers, ended)
                    lost = any(other.aborted for other, *_ in arrived.values())
                    if len(arrived) == self._size and not lost:
                        if len({other for _, other, *_ in arrived.values()}) > 1:
                            clique.error = 4
                        else:
                            act([arrived[rank][2] for rank in range(self._size)])
                            for *_, flag in arrived.values():
                                flag.append(True)
            return bool(ended)

        _push(stream, task)

    def _usable(self) -> None:
        assert self.device == MACHINE.device, "a communicator is used on another GPU"
        assert not self.aborted and not self.destroyed, "a communicator is used after its end"


def memory(ptr: int, count: int, datatype: int) -> np.ndarray:
    dtype = np.dtype(DTYPES[datatype])
    return MACHINE.at(ptr, count * dtype.itemsize).view(dtype)


def _push(ptr: int, task: Callable[[], bool]) -> None:
    grouped: list[tuple[Stream, Callable[[], bool]]] | None = getattr(_here, "grouped", None)
    if grouped is not None:
        grouped.append((MACHINE.streams[ptr], task))
    else:
        MACHINE.streams[ptr].push(task)


class NcclModule(Module):
    """The module ``cupy`` with NCCL, on a machine where every rank has a GPU."""

    def __init__(self, cupy_major: int = 14, version: int = 23007, gpus: int = 8) -> None:
        super().__init__(gpus)
        self.nccl = Nccl(cupy_major, version)  # `cupy.cuda.nccl` is there only once imported


def to_device(array: np.ndarray) -> DeviceArray:
    """Return a copy on this thread's GPU."""
    return asarray(array)


def install(monkeypatch: Any, seed: int = 0, **facts: Any) -> NcclModule:
    """Have `import` find a stand-in made from ``facts``."""
    module = NcclModule(**facts)
    install_device(monkeypatch, module, seed)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", module.nccl)
    return module

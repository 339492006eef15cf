"""Transport between threads of one process, for tests and for worlds of one.

Stricter than MPI may be: a send ends only when its receive has been posted, so a program that
counts on buffered sends hangs here first.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.comm.base import ANY, Array, contiguous, writable
from hpcdist.comm.waiting import DEADLINE_S, deadline_message
from hpcdist.errors import CommError, DeadlineError


class _Request:
    """One message's end at one rank: the bytes, who it pairs with, and how far it is."""

    def __init__(self, array: Array, source: int, target: int, tag: int, sends: bool) -> None:
        self.bytes = array.reshape(-1).view(np.uint8)
        self.channel = (source, target, tag)
        self.sends = sends
        self.active = False
        self.ended = True
        self.error: str | None = None


class _World:
    """What the ranks of one world share, all of it guarded by ``changed``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.sends: dict[tuple[int, int, int], deque[_Request]] = defaultdict(deque)
        self.receives: dict[tuple[int, int, int], deque[_Request]] = defaultdict(deque)
        self.rounds: dict[int, dict[int, Any]] = defaultdict(dict)
        self.aborted: str | None = None


def world(size: int) -> list[LoopbackTransport]:
    """Return the transports of a new world, one for each of ``size`` threads."""
    shared = _World(size)
    return [LoopbackTransport(shared, rank) for rank in range(size)]


class LoopbackTransport:
    """Messages between the threads of one process; each thread uses its own transport."""

    def __init__(self, shared: _World, rank: int) -> None:
        self._world = shared
        self._round = 0
        self.rank = rank
        self.size = shared.size

    # -- point to point --

    def send_init(self, array: Array, peer: int, tag: int) -> _Request:
        return _Request(contiguous(array), self.rank, self._checked(peer), tag, sends=True)

    def recv_init(self, array: Array, peer: int, tag: int) -> _Request:
        return _Request(writable(array), self._checked(peer), self.rank, tag, sends=False)

    def start(self, requests: list[_Request]) -> None:
        with self._world.changed:
            for request in requests:
                if request.active:
                    raise CommError(f"rank {self.rank}: request {request.channel} started twice")
                request.active, request.ended = True, False
                self._match(request)
            self._world.changed.notify_all()

    def starter(self, requests: list[_Request]) -> Callable[[], None]:
        return lambda: self.start(requests)

    def release(self, requests: Sequence[_Request]) -> None:
        with self._world.changed:
            for request in requests:
                if not request.ended:
                    self._queue(request).remove(request)
                request.active, request.ended = False, True

    def isend(self, array: Array, peer: int, tag: int) -> _Request:
        request = self.send_init(array, peer, tag)
        self.start([request])
        return request

    def irecv(self, array: Array, peer: int, tag: int) -> _Request:
        request = self.recv_init(array, peer, tag)
        self.start([request])
        return request

    def test_all(self, requests: Sequence[_Request]) -> bool:
        with self._world.changed:
            self._check_abort()
            return self._all_ended(requests)

    def test_some(self, requests: Sequence[_Request]) -> list[int]:
        with self._world.changed:
            self._check_abort()
            return self._newly_ended(requests)

    def waiter_all(
        self, requests: Sequence[_Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], None]:
        return lambda: self.wait_all(requests, describe, deadline_s)

    def waiter_some(
        self, requests: Sequence[_Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], list[int]]:
        return lambda: self.wait_some(requests, describe, deadline_s)

    def wait_all(
        self,
        requests: Sequence[_Request],
        describe: Callable[[], str],
        deadline_s: float | None = DEADLINE_S,
    ) -> None:
        self._wait(lambda: self._all_ended(requests), describe, deadline_s)

    def wait_some(
        self,
        requests: Sequence[_Request],
        describe: Callable[[], str],
        deadline_s: float | None = DEADLINE_S,
    ) -> list[int]:
        if not any(request.active for request in requests):
            raise CommError(f"{describe()}: none of the requests has been started")
        done: list[int] = []

        def some_ended() -> bool:
            done.extend(self._newly_ended(requests))
            return bool(done)

        self._wait(some_ended, describe, deadline_s)
        return done

    def iprobe(self, peer: int, tag: int) -> tuple[int, int] | None:
        with self._world.changed:
            self._check_abort()
            for source in range(self.size) if peer == ANY else [self._checked(peer)]:
                waiting = self._world.sends.get((source, self.rank, tag))
                if waiting:
                    return source, waiting[0].bytes.size
        return None

    # -- collectives --

    def barrier(self, deadline_s: float | None = DEADLINE_S) -> None:
        self._everyones(None, "a barrier", deadline_s)

    def allgather_bytes(
        self,
        data: bytes,
        deadline_s: float | None = DEADLINE_S,
        what: str = "the others' data",
    ) -> list[bytes]:
        return self._everyones(data, what, deadline_s)

    def broadcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        if self.rank == root and data is None:
            raise CommError(f"rank {root} is the root of a broadcast and must give its data")
        received: bytes = self._everyones(data, f"the data of rank {root}")[root]
        return received

    def broadcast(self, array: Array, root: int = 0) -> None:
        target = writable(array)
        copies = self._everyones(target.copy(), f"the data of rank {root}")
        if self.rank != root:
            target[...] = copies[root]

    def allreduce(self, array: Array) -> Array:
        rows = self._everyones(contiguous(array).copy(), "arrays to add")
        total: Array = rows[0].copy()
        for row in rows[1:]:
            total += row
        return total

    def split(self, color: int, key: int) -> LoopbackTransport:
        everyone = self._everyones((color, key, self.rank), "a split")
        group = [rank for c, _, rank in sorted(everyone) if c == color]
        fresh = _World(len(group)) if group[0] == self.rank else None
        shared: _World = self._everyones(fresh, "a split")[group[0]]
        return LoopbackTransport(shared, group.index(self.rank))

    def abort(self, code: int) -> None:
        with self._world.changed:
            self._world.aborted = f"rank {self.rank} aborted the job with code {code}"
            self._world.changed.notify_all()

    # -- inside; the names with ``changed`` held: _match, _queue, _all_ended, _newly_ended --

    def _queue(self, request: _Request) -> deque[_Request]:
        queues = self._world.sends if request.sends else self._world.receives
        return queues[request.channel]

    def _match(self, request: _Request) -> None:
        opposite = self._world.receives if request.sends else self._world.sends
        if not opposite[request.channel]:
            self._queue(request).append(request)
            return
        other = opposite[request.channel].popleft()
        send, receive = (request, other) if request.sends else (other, request)
        if send.bytes.size > receive.bytes.size:
            receive.error = (
                f"message {send.channel} truncated: {send.bytes.size} bytes came, the receiver "
                f"has room for {receive.bytes.size}"
            )
        else:
            receive.bytes[: send.bytes.size] = send.bytes
        send.ended = receive.ended = True

    def _all_ended(self, requests: Sequence[_Request]) -> bool:
        if not all(request.ended for request in requests):
            return False
        self._newly_ended(requests)
        return True

    def _newly_ended(self, requests: Sequence[_Request]) -> list[int]:
        done = [i for i, request in enumerate(requests) if request.active and request.ended]
        for i in done:
            requests[i].active = False
            if requests[i].error:
                raise CommError(f"rank {self.rank}: {requests[i].error}")
        return done

    def _everyones(self, value: Any, what: str, deadline_s: float | None = DEADLINE_S) -> list[Any]:
        number, self._round = self._round, self._round + 1
        with self._world.changed:
            values = self._world.rounds[number]
            values[self.rank] = value
            if len(values) == self.size:
                del self._world.rounds[number]
            self._world.changed.notify_all()
        describe = f"rank {self.rank} waiting for {what}"
        self._wait(lambda: len(values) == self.size, lambda: describe, deadline_s)
        return [values[rank] for rank in range(self.size)]

    def _wait(
        self, ready: Callable[[], bool], describe: Callable[[], str], deadline_s: float | None
    ) -> None:
        with self._world.changed:
            ended = self._world.changed.wait_for(
                lambda: self._world.aborted is not None or ready(), deadline_s
            )
            self._check_abort()
        if not ended:
            raise DeadlineError(deadline_message(describe(), deadline_s or 0.0))

    def _check_abort(self) -> None:
        if self._world.aborted:
            raise CommError(self._world.aborted)

    def _checked(self, peer: int) -> int:
        if not 0 <= peer < self.size:
            raise CommError(f"rank {self.rank}: no rank {peer} in a world of {self.size}")
        return peer

"""Transport between threads of one process, for tests and for jobs of one rank.

Stricter than MPI may be: a send ends only when its receive has been posted, so a program that
counts on buffered sends hangs here first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import CommError, RankFailure
from hpcdist.comm.base import (
    ANY,
    Array,
    SharedRows,
    Transport,
    contiguous,
    rank_of_peer,
    summable,
    writable,
)
from hpcdist.comm.progress import CLOCK, CROWDED, DEADLINE_S, Clock, deadline_error, waiter


class _Request:
    """One message's end at one rank: the bytes, who it pairs with, and how far it is."""

    def __init__(self, array: Array, source: int, target: int, tag: int, sends: bool) -> None:
        self.flat = array.reshape(-1)
        self.bytes = self.flat.view(np.uint8)
        self.channel = (source, target, tag)
        self.sends = sends
        self.active = False
        self.ended = True
        self.came = 0  # bytes received
        self.error: str | None = None


class _Job:
    """What all worlds of a job share: how it ended, and who is to be told."""

    def __init__(self) -> None:
        self.aborted: str | None = None
        self.worlds: list[_World] = []


class _World:
    """What the ranks of one world share, all of it guarded by ``changed``."""

    def __init__(self, hosts: Sequence[int], job: _Job, clock: Clock) -> None:
        self.clock = clock
        self.size = len(hosts)
        self.job = job
        job.worlds.append(self)
        self.hosts = hosts
        self.changed = clock.condition()
        self.sends: dict[tuple[int, int, int], deque[_Request]] = defaultdict(deque)
        self.receives: dict[tuple[int, int, int], deque[_Request]] = defaultdict(deque)
        self.rounds: dict[int, dict[int, Any]] = defaultdict(dict)
        self.sums: dict[int, dict[int, _Request]] = defaultdict(dict)
        self.subsets: dict[tuple[Any, ...], tuple[_World, set[int]]] = {}
        self.dead: set[int] = set()


def world(
    size: int, hosts: Sequence[int] | None = None, clock: Clock = CLOCK
) -> list[LoopbackTransport]:
    """Return the transports of a new world, one for each of ``size`` threads.

    ``hosts`` says for each rank on which host it is to believe itself; None: all on one.
    Deadlines are measured by ``clock``.
    """
    shared = _World(hosts or [0] * size, _Job(), clock)
    return [LoopbackTransport(shared, rank) for rank in range(size)]


class LoopbackTransport(Transport):
    """Messages between the threads of one process; each thread uses its own transport."""

    def __init__(self, shared: _World, rank: int) -> None:
        self._world = shared
        self._round = self._sum = 0
        self.rank = rank
        self.size = shared.size
        self.concurrent = True
        self.tolerant = True
        self.native = None
        self.policy = CROWDED
        self.most_tag = 2**31 - 1

    # -- point to point --

    def send_init(self, array: Array, peer: int, tag: int) -> _Request:
        return _Request(contiguous(array), self.rank, rank_of_peer(self, peer), tag, sends=True)

    def recv_init(self, array: Array, peer: int, tag: int) -> _Request:
        return _Request(writable(array), rank_of_peer(self, peer), self.rank, tag, sends=False)

    def _start(self, requests: list[_Request]) -> None:
        with self._world.changed:
            for request in requests:
                if request.active:
                    raise CommError(f"rank {self.rank}: request {request.channel} started twice")
                request.active, request.ended = True, False
                self._match(request)
            self._world.changed.notify_all()

    def starter(self, requests: list[_Request]) -> Callable[[], None]:
        return lambda: self._start(requests)

    def release(self, requests: Sequence[_Request]) -> None:
        with self._world.changed:
            for request in requests:
                if not request.ended:
                    self._queue(request).remove(request)
                request.active, request.ended = False, True

    def isend(self, array: Array, peer: int, tag: int) -> _Request:
        request = self.send_init(array, peer, tag)
        self._start([request])
        return request

    def irecv(self, array: Array, peer: int, tag: int) -> _Request:
        request = self.recv_init(array, peer, tag)
        self._start([request])
        return request

    def arrival(self, request: _Request) -> int | None:
        return request.came if self.test_all([request]) else None

    def test_all(self, requests: Sequence[_Request]) -> bool:
        with self._world.changed:
            self._check_abort()
            return self._all_ended(requests)

    def waiter_all(
        self, requests: Sequence[_Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], None]:
        return lambda: self._wait(lambda: self._all_ended(requests), describe, deadline_s)

    def waiter_some(
        self, requests: Sequence[_Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], list[int]]:
        def wait() -> list[int]:
            if not any(request.active for request in requests):
                raise CommError(f"{describe()}: none of the requests has been started")
            done: list[int] = []

            def some_ended() -> bool:
                done.extend(self._newly_ended(requests))
                return bool(done)

            self._wait(some_ended, describe, deadline_s)
            return done

        return wait

    def iprobe(self, peer: int, tag: int) -> tuple[int, int] | None:
        with self._world.changed:
            self._check_abort()
            for source in range(self.size) if peer == ANY else [rank_of_peer(self, peer)]:
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
        awaited: str = "the others' data",
    ) -> list[bytes]:
        return self._everyones(data, awaited, deadline_s)

    def broadcast(self, array: Array, root: int = 0) -> None:
        target = writable(array)
        copies = self._everyones(target.copy(), f"the data of rank {root}")
        if self.rank != root:
            target[...] = copies[root]

    def iallreduce(self, array: Array) -> _Request:
        request = _Request(summable(array), self.rank, self.rank, ANY, sends=True)
        request.active, request.ended = True, False
        number, self._sum = self._sum, self._sum + 1
        with self._world.changed:
            requests = self._world.sums[number]
            requests[self.rank] = request
            if len(requests) == self.size:
                del self._world.sums[number]
                self._add(requests)
                self._world.changed.notify_all()
        return request

    def waiter(
        self, poll: Callable[[], bool], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], bool]:
        def checked() -> bool:
            self._check_abort()
            return poll()

        return waiter(checked, CROWDED, describe, deadline_s, (), clock=self._world.clock)

    def on_host(self) -> LoopbackTransport:
        return self.split(self._world.hosts[self.rank], self.rank)

    def share(self, nbytes: int) -> SharedRows | None:
        memory = np.zeros((self.size, nbytes), np.uint8) if self.rank == 0 else None
        rows = self._everyones(memory, "memory to share")[0]
        return SharedRows(rows, sync=lambda: None, free=lambda: None)

    def split(self, color: int, key: int) -> LoopbackTransport:
        everyone = self._everyones((color, key, self.rank), "a split")
        group = [rank for c, _, rank in sorted(everyone) if c == color]
        hosts = [self._world.hosts[rank] for rank in group]
        fresh = _World(hosts, self._world.job, self._world.clock) if group[0] == self.rank else None
        shared: _World = self._everyones(fresh, "a split")[group[0]]
        return LoopbackTransport(shared, group.index(self.rank))

    def subset(self, ranks: Sequence[int], tag: int) -> LoopbackTransport:
        key = (tag, *ranks)
        with self._world.changed:
            if key not in self._world.subsets:
                hosts = [self._world.hosts[rank] for rank in ranks]
                fresh = _World(hosts, self._world.job, self._world.clock)
                self._world.subsets[key] = fresh, set()
            shared, members = self._world.subsets[key]
            members.add(self.rank)
            if len(members) == len(ranks):
                del self._world.subsets[key]
        return LoopbackTransport(shared, [*ranks].index(self.rank))

    def die(self) -> None:
        """Simulate this rank's death: what nobody has received is lost."""
        with self._world.changed:
            self._world.dead.add(self.rank)
            for (source, _, _), waiting in self._world.sends.items():
                if source == self.rank:
                    waiting.clear()
            self._world.changed.notify_all()

    def failed(self) -> frozenset[int]:
        return frozenset(self._world.dead)

    def abort(self, code: int) -> None:
        job = self._world.job
        job.aborted = f"rank {self.rank} aborted the job with code {code}"
        for world in list(job.worlds):
            with world.changed:
                world.changed.notify_all()

    # -- inside; with ``changed`` held: _add, _match, _queue, _all_ended, _newly_ended, _fail_.. --

    def _add(self, requests: dict[int, _Request]) -> None:
        total = requests[0].flat.copy()
        for rank in range(1, self.size):
            total += requests[rank].flat
        for request in requests.values():
            request.flat[...] = total
            request.ended = True

    def _queue(self, request: _Request) -> deque[_Request]:
        queues = self._world.sends if request.sends else self._world.receives
        return queues[request.channel]

    def _match(self, request: _Request) -> None:
        opposite = self._world.receives if request.sends else self._world.sends
        if not opposite[request.channel]:
            self._queue(request).append(request)
            return
        matching = opposite[request.channel].popleft()
        send, receive = (request, matching) if request.sends else (matching, request)
        if send.bytes.size > receive.bytes.size:
            receive.error = (
                f"message {send.channel} truncated: {send.bytes.size} bytes came, the receiver "
                f"has room for {receive.bytes.size}"
            )
        else:
            receive.bytes[: send.bytes.size] = send.bytes
            receive.came = send.bytes.size
        send.ended = receive.ended = True

    def _all_ended(self, requests: Sequence[_Request]) -> bool:
        self._fail_the_lost(requests, [])
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
        self._fail_the_lost(requests, done)
        return done

    def _fail_the_lost(self, requests: Sequence[_Request], ended: Sequence[int]) -> None:
        """End requests whose other end is dead, and raise for them."""
        dead = self._world.dead
        lost = [r for r in requests if dead and not r.ended and dead.intersection(r.channel[:2])]
        for request in lost:
            self._queue(request).remove(request)
            request.active, request.ended = False, True
        if lost:
            raise RankFailure(f"rank {self.rank}", tuple(sorted(dead)), tuple(ended))

    def _everyones(
        self, value: object, awaited: str, deadline_s: float | None = DEADLINE_S
    ) -> list[Any]:
        number, self._round = self._round, self._round + 1
        with self._world.changed:
            values = self._world.rounds[number]
            values[self.rank] = value
            if len(values) == self.size:
                del self._world.rounds[number]
            self._world.changed.notify_all()
        describe = f"rank {self.rank} waiting for {awaited}"
        self._wait(lambda: len(values) == self.size, lambda: describe, deadline_s)
        return [values[rank] for rank in range(self.size)]

    def _wait(
        self, ready: Callable[[], bool], describe: Callable[[], str], deadline_s: float | None
    ) -> None:
        with self._world.changed:
            ended = self._world.changed.wait_for(
                lambda: self._world.job.aborted is not None or ready(), deadline_s
            )
            self._check_abort()
        if not ended:
            raise deadline_error(describe, deadline_s or 0.0)

    def _check_abort(self) -> None:
        if self._world.job.aborted:
            raise CommError(self._world.job.aborted)

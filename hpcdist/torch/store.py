"""torch's key-value store over MPI: rank 0 keeps it (`StoreTable`), the others send requests.

A request is one message to rank 0, its answer one message back with a unique tag, so that several
threads of a rank may send requests at the same time. No port is opened.
"""

from __future__ import annotations

import json
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from hpcdist.base.errors import CommError, DeadlineError, RankFailure
from hpcdist.comm.base import ANY, Transport
from hpcdist.comm.collective import RankGroup
from hpcdist.torch.rank_process import RankProcess
from hpcdist.torch.store_table import LATE, REFUSED, Request, StoreTable

KEEPER = 0
REQUEST_TAG = 1
FIRST_ANSWER_TAG, ANSWER_TAGS = 2, 2**14
# How long the keeper sleeps between looks for requests: short after one, longer when none come.
LEAST_NAP_S, MOST_NAP_S, NAP_GROWTH = 50e-6, 20e-3, 1.2
ANSWER_S = 1.0  # in which an answer must come when a request's time is over
# Time-outs that a script has not set: torch's own, of stores and of the groups that use them.
TORCH_DEFAULTS = (timedelta(seconds=300), default_pg_timeout)


class StoreTimeout(DeadlineError, dist.DistStoreError):
    """Keys that the store was asked for have not been set in time."""


class Keeper:
    """Rank 0's thread that answers requests, those of its own threads too."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._table = StoreTable()
        self._guard = threading.Lock()  # of the table
        self._sends: list[tuple[Any, Any]] = []  # requests under way with their buffers
        self._closed = False
        self._broken: Exception | None = None  # why it answers no more
        self._thread = threading.Thread(target=self._run, name="hpcdist-store", daemon=True)
        self._thread.start()

    def ask(self, request: Request) -> None:
        """Take a request of a thread of this rank, or of a message; answer what can be answered.

        CommError if its messages have failed, which those of a tolerant MPI do when a rank dies.
        """
        if isinstance(self._broken, RankFailure):
            raise self._broken.again(f"the store on rank {KEEPER} to answer")
        if self._broken is not None:
            raise CommError(f"the store on rank {KEEPER} has ended: {self._broken}")
        with self._guard:
            self._answer(self._table.ask(request))

    def close(self) -> None:
        """End the thread; requests that wait get no answer."""
        self._closed = True
        self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # of MPI's: the threads that wait for other ranks tell of it
            self._broken = error

    def _serve(self) -> None:
        nap = LEAST_NAP_S
        while not self._closed:
            if message := self._transport.iprobe(ANY, REQUEST_TAG):
                self._take(*message)
                nap = LEAST_NAP_S
                continue
            with self._guard:
                self._answer(self._table.expire(time.monotonic()))
                self._sends = [s for s in self._sends if not self._transport.test_all([s[0]])]
            time.sleep(nap)
            nap = min(nap * NAP_GROWTH, MOST_NAP_S)

    def _take(self, peer: int, nbytes: int) -> None:
        data = np.empty(nbytes, np.uint8)
        request = self._transport.irecv(data, peer, REQUEST_TAG)
        self._transport.wait_all([request], lambda: f"a request of rank {peer} to the store")
        tag, wait_s, operation, arguments = json.loads(data.tobytes())
        late = time.monotonic() + wait_s
        self.ask(Request((peer, tag), operation, tuple(arguments), late))

    def _answer(self, answers: Sequence[tuple[Any, str, Any]]) -> None:
        for asker, kind, value in answers:
            if callable(asker):  # of this rank
                asker(kind, value)
                continue
            peer, tag = asker
            data = np.frombuffer(json.dumps([kind, value]).encode(), np.uint8)
            self._sends.append((self._transport.isend(data, peer, tag), data))


class MpiStore(dist.Store):
    """A store for `init_process_group`: keys are seen by all ranks of the job."""

    def __init__(
        self,
        transport: Transport,
        keeper: Keeper | None,
        deadline_s: float,
        names: Sequence[int] | None = None,
    ) -> None:
        """``keeper`` is given on rank 0.

        ``deadline_s`` bounds waits for which the script has set no time-out. ``names`` are what
        messages call the ranks; None: as in ``transport``.
        """
        super().__init__()
        self._transport = transport
        self._keeper = keeper
        self._deadline_s = deadline_s
        names = range(transport.size) if names is None else names
        self._group = RankGroup(transport, tuple(names), deadline_s)
        self.process = RankProcess(names[transport.rank])
        # Of answers. Who gives up waiting for one does not give its tag back: it may still come.
        self._tags = deque(range(FIRST_ANSWER_TAG, FIRST_ANSWER_TAG + ANSWER_TAGS))
        self._closed = False
        self._users = 0  # threads that wait for answers
        self._changed = threading.Condition()  # guards these two

    # torch calls the store from C++ under some names and from Python under others.

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", _key(key), _text(value))

    def get(self, key: str) -> bytes:
        return _bytes(self._ask("get", _key(key)))

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", _key(key), operator.index(value)))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return _bytes(self._ask("compare_set", _key(key), _text(expected), _text(desired)))

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", _key(key), _text(value))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", _keys(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", _keys(keys), timeout=timeout)

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", _key(key)))

    deleteKey = delete_key

    def num_keys(self) -> int:
        return int(self._ask("num_keys"))

    getNumKeys = num_keys

    def list_keys(self) -> list[str]:
        return list(self._ask("list_keys"))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [_bytes(text) for text in self._ask("multi_get", _keys(keys))]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self._ask("multi_set", _keys(keys), [_text(value) for value in values])

    def has_extended_api(self) -> bool:
        return True

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._ask("queue_push", _key(key), _text(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        value = self._ask("queue_pop", _key(key), block)
        if value is None:
            raise dist.QueueEmptyError(f"rank {self._transport.rank}: queue {key!r} is empty")
        return _bytes(value)

    def queue_len(self, key: str) -> int:
        return int(self._ask("queue_len", _key(key)))

    def look_for(self, key: str) -> Callable[[], bool | None]:
        """Ask whether a key is there, without a wait; what is returned tells, None if not yet."""
        find = self._post("check", ([key],), self._deadline_s)
        answer: list[Any] = []

        def told() -> bool | None:
            if not answer:
                answer.extend(find())
            return bool(answer[1]) if answer else None

        return told

    def clone(self) -> MpiStore:
        return self

    def close(self) -> None:
        """Use MPI no more, since it ends. Threads that wait for answers get a CommError.

        Such threads may be the script's, or NCCL's, which looks for keys every second.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._users, ANSWER_S)

    # -- inside --

    def _ask(self, operation: str, *arguments: Any, timeout: timedelta | None = None) -> Any:
        def call() -> str:
            return f"{operation}({', '.join(map(repr, arguments))})"

        self.process.refuse_forked(lambda: f"the store's {call()}")
        with self._in_use(call) as check:
            return self._answer_to(call, check, operation, arguments, timeout)

    @contextmanager
    def _in_use(self, call: Callable[[], str]) -> Iterator[Callable[[], None]]:
        """Keep `close` waiting; what is yielded raises CommError when it has begun."""

        def check() -> None:
            if self._closed:
                rank = self.process.rank
                raise CommError(f"rank {rank}: the store's {call()}: the job has ended")

        with self._changed:
            check()
            self._users += 1
        try:
            yield check
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _answer_to(
        self,
        call: Callable[[], str],
        check: Callable[[], None],
        operation: str,
        arguments: tuple[Any, ...],
        timeout: timedelta | None,
    ) -> Any:
        asked = self.timeout if timeout is None else timeout
        wait_s = self._deadline_s if asked in TORCH_DEFAULTS else asked.total_seconds()
        find = self._post(operation, arguments, wait_s)
        replies: list[Any] = []

        def poll() -> bool:
            check()
            replies.extend(find())
            return bool(replies)

        describe = self._group.lacking(
            lambda: f"the store on rank {KEEPER} to answer {call()}", lambda: [KEEPER]
        )
        self._transport.waiter(poll, describe, max(wait_s + ANSWER_S, self._deadline_s))()
        kind, value = replies
        if kind == LATE:
            late = StoreTimeout(
                f"rank {self._transport.rank}: the store has no {', '.join(map(repr, value))} "
                f"after {wait_s:g} s: a rank that should set it is stuck, or slower than the "
                "timeout"  # torch's word: scripts look for it
            )
            # Any of them may be the one; those that wait themselves are left out of the report.
            me = self._group.names[self._group.rank]
            late.missing = tuple(rank for rank in self._group.names if rank != me)
            raise late
        if kind == REFUSED:
            raise CommError(f"rank {self.process.rank}: the store's {call()}: {value}")
        return value

    def _post(
        self, operation: str, arguments: tuple[Any, ...], wait_s: float
    ) -> Callable[[], Sequence[Any]]:
        """Send a request; return what looks for its answer: (kind, value), or nothing yet."""
        if self._keeper is not None:
            answer: list[Any] = []
            reply = partial(_note, answer)
            self._keeper.ask(Request(reply, operation, arguments, time.monotonic() + wait_s))
            return lambda: answer
        if not self._tags:
            raise CommError(
                f"rank {self.process.rank}: {ANSWER_TAGS} requests to the store have no answer yet"
            )
        tag = self._tags.popleft()
        words = json.dumps([tag, wait_s, operation, arguments]).encode()
        data = np.frombuffer(words, np.uint8)
        send = self._transport.isend(data, KEEPER, REQUEST_TAG)

        def find() -> Sequence[Any]:
            if not self._transport.test_all([send]):
                return []
            came = self._transport.iprobe(KEEPER, tag)
            if came is None:
                return []
            answer = np.empty(came[1], np.uint8)
            receive = self._transport.irecv(answer, KEEPER, tag)
            self._transport.wait_all([receive], lambda: "the answer of the store")
            self._tags.append(tag)
            return list(json.loads(answer.tobytes()))

        return find


def _note(answer: list[Any], kind: str, value: object) -> None:
    answer[:] = kind, value


def _key(key: str | bytes) -> str:
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"the store: expected text as a key, got {key!r}")
    return key if isinstance(key, str) else key.decode()


def _keys(keys: Sequence[str]) -> list[str]:
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"the store: expected a list of keys, got {keys!r}")
    return [_key(key) for key in keys]


def _text(value: str | bytes) -> str:
    if not isinstance(value, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"the store: expected text or bytes as a value, got {value!r}")
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")

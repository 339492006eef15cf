"""The state of a job's store on rank 0: keys, values, queues. No messages, no clock.

A request is a list: operation, its arguments, bytes as text (latin-1), so that JSON carries it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

LATE = "late"  # the answer to a request whose keys have not come in time
ANSWER = "answer"
REFUSED = "refused"  # the answer to a request that does not fit what is there: why


@dataclass(frozen=True)
class Request:
    """What a rank asks: ``needs`` are keys without which it waits, until ``late`` (seconds)."""

    asker: Hashable
    operation: str
    arguments: tuple[Any, ...]
    late: float


class StoreTable:
    """Keys with values, queues, and the requests that wait for them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._queues: dict[str, deque[str]] = defaultdict(deque)
        self._waiting: list[Request] = []

    def ask(self, request: Request) -> list[tuple[Hashable, str, Any]]:
        """Take a request; return the answers that can be given now: (asker, kind, value)."""
        self._waiting.append(request)
        answers = []
        while ready := next(filter(self._is_ready, self._waiting), None):
            self._waiting.remove(ready)
            try:
                answer = getattr(self, f"_{ready.operation}")(*ready.arguments)
            except ValueError as error:
                answers.append((ready.asker, REFUSED, str(error)))
            else:
                answers.append((ready.asker, ANSWER, answer))
        return answers

    def expire(self, now: float) -> list[tuple[Hashable, str, Any]]:
        """Return the answers to requests that have waited for too long: what they lack."""
        late = [request for request in self._waiting if request.late <= now]
        self._waiting = [request for request in self._waiting if request.late > now]
        return [(request.asker, LATE, self._lacking(request)) for request in late]

    def _is_ready(self, request: Request) -> bool:
        return not self._lacking(request)

    def _lacking(self, request: Request) -> list[str]:
        operation, arguments = request.operation, request.arguments
        if operation == "get":
            return [key for key in arguments if key not in self._values]
        if operation == "multi_get":
            return [key for key in arguments[0] if key not in self._values]
        if operation == "wait":
            return [key for key in arguments[0] if not self._check([key])]
        if operation == "queue_pop" and arguments[1]:
            return [] if self._queues.get(arguments[0]) else [arguments[0]]
        return []

    # -- operations --

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value

    def _get(self, key: str) -> str:
        return self._values[key]

    def _add(self, key: str, amount: int) -> int:
        total = int(self._values.get(key) or "0") + amount
        self._values[key] = str(total)
        return total

    def _compare_set(self, key: str, expected: str, desired: str) -> str:
        # As TCPStore: a key that is not there equals an empty text.
        if self._values.get(key, "") == expected:
            self._values[key] = desired
        return self._values.get(key, expected)

    def _append(self, key: str, value: str) -> None:
        self._values[key] = self._values.get(key, "") + value

    def _check(self, keys: list[str]) -> bool:
        # As TCPStore: a queue with something in it is a key, too.
        return all(key in self._values or self._queues.get(key) for key in keys)

    def _wait(self, keys: list[str]) -> None:
        """Do nothing: all keys are here."""

    def _delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def _num_keys(self) -> int:
        return len(self._values)

    def _list_keys(self) -> list[str]:
        return list(self._values)

    def _multi_get(self, keys: list[str]) -> list[str]:
        return [self._values[key] for key in keys]

    def _multi_set(self, keys: list[str], values: list[str]) -> None:
        self._values.update(dict(zip(keys, values, strict=True)))

    def _queue_push(self, key: str, value: str) -> None:
        self._queues[key].append(value)

    def _queue_pop(self, key: str, block: bool) -> str | None:
        queue = self._queues.get(key)
        return queue.popleft() if queue else None

    def _queue_len(self, key: str) -> int:
        return len(self._queues.get(key, ()))

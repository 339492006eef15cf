"""Detects trainers that have sent nothing for too long although they are not waiting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LOOK_S = 0.1  # how often to look, at most


@dataclass(frozen=True)
class Silence:
    """A trainer that has sent nothing for ``seconds``."""

    trainer: int
    seconds: float


class Heartbeat:
    """Compares what has been heard of every trainer, look by look.

    A silence is told once; it ends when the trainer is heard again, or waits for others.
    """

    def __init__(self, trainers: int, interval_s: float) -> None:
        self._interval_s = interval_s
        self._heard = [-1] * trainers
        self._since = [0.0] * trainers
        self._reported = [False] * trainers
        self._next_look = 0.0

    def due(self, now_s: float) -> bool:
        """Return whether it is time to look again."""
        if now_s < self._next_look:
            return False
        self._next_look = now_s + LOOK_S
        return True

    def look(self, now_s: float, heard: Sequence[int], owing: Sequence[bool]) -> list[Silence]:
        """Return new silences; ``heard[k]`` grows with every message of trainer k.

        ``owing[k]``: the next message is trainer k's, not the server's.
        """
        silent = []
        for k, (count, owes) in enumerate(zip(heard, owing)):
            if count != self._heard[k] or not owes:
                self._heard[k], self._since[k], self._reported[k] = count, now_s, False
            elif not self._reported[k] and now_s - self._since[k] >= self._interval_s:
                self._reported[k] = True
                silent.append(Silence(k, now_s - self._since[k]))
        return silent

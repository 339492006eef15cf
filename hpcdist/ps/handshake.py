"""Which trainers have sent HELLO, and which of them a server may answer."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from hpcdist.base.errors import CommError
from hpcdist.ps.messages import Hello, difference, parse_hello


class Greetings:
    """The HELLOs of trainers, compared with what the server expects.

    They are answered all at once, so that every trainer continues or all have the same error; or,
    ``one_by_one``, each as it comes. An empty fingerprint takes that of the first trainer answered.
    """

    def __init__(self, expected: Hello, trainers: int, *, one_by_one: bool) -> None:
        self._expected = expected
        self._trainers = trainers
        self._one_by_one = one_by_one
        self._heard: dict[int, Hello] = {}
        self.answered: set[int] = set()

    def __contains__(self, trainer: int) -> bool:
        return trainer in self._heard

    @property
    def pending(self) -> bool:
        """Whether trainers wait for others to come before the first step."""
        return bool(self._heard) and not self.answered

    def take(self, trainer: int, payload: object) -> None:
        """Note a HELLO."""
        if trainer in self._heard:
            raise CommError(f"a second HELLO from trainer {trainer}")
        self._heard[trainer] = parse_hello(payload)

    def forget(self, trainer: int) -> None:
        """Drop the HELLO of a trainer that has died."""
        self._heard.pop(trainer, None)

    def missing(self, closed: Set[int]) -> tuple[int, ...]:
        """Return the trainers that have neither come nor ``closed``."""
        return tuple(k for k in range(self._trainers) if k not in self._heard and k not in closed)

    def due(self, closed: Set[int]) -> list[int]:
        """Return the trainers that may be answered now."""
        if self.missing(closed) and not self._one_by_one:
            return []
        return sorted(self._heard.keys() - self.answered)

    def objection(self, trainers: Iterable[int]) -> tuple[int, str] | None:
        """Return the first of these that expects something else, and what."""
        for trainer in trainers:
            hello = self._heard[trainer]
            if not self._expected.fingerprint:
                self._expected = replace(self._expected, fingerprint=hello.fingerprint)
            objection = difference(self._expected, hello)
            if objection:
                return trainer, objection
        return None

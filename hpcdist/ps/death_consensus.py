"""Consensus among trainers that share batches on who has died, through a server. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hpcdist.base.errors import CommError

Part = tuple[int, int, str]  # (join, trainer, what it gave the others there, in base64)


@dataclass(frozen=True)
class Witness:
    """What one trainer knows: who is dead, its last batch, what the dead gave in its last join."""

    dead: frozenset[int]
    batch: int
    parts: tuple[Part, ...]

    def payload(self) -> list[Any]:
        """Return this as JSON says it."""
        return [sorted(self.dead), self.batch, [list(part) for part in self.parts]]


def parse_witness(payload: Any) -> Witness:
    """Return the Witness in a payload, or raise CommError."""
    try:
        dead, batch, parts = payload
        seen = tuple((int(b), int(k), str(data)) for b, k, data in parts)
        return Witness(frozenset(int(k) for k in dead), int(batch), seen)
    except (TypeError, ValueError) as error:
        raise CommError(f"malformed message: DIED payload {payload!r}") from error


class Verdicts:
    """Hears every trainer that is left, then tells them all the same.

    The verdict is a Witness too: the dead that all know of, the last batch that anyone has begun,
    and what anyone has got from these dead, each part once.
    """

    def __init__(self) -> None:
        self._heard: dict[int, Witness] = {}

    def hear(self, trainer: int, witness: Witness) -> None:
        """Take what a trainer knows; it then waits for the verdict."""
        self._heard[trainer] = witness

    def forget(self, trainer: int) -> None:
        """Drop what a trainer knew: it has died."""
        self._heard.pop(trainer, None)

    def reached(self, trainers: Iterable[int]) -> tuple[Witness, tuple[int, ...]] | None:
        """Return the verdict and whom to tell, once ``trainers`` were all heard."""
        if not self._heard or not self._heard.keys() >= set(trainers):
            return None
        heard, self._heard = self._heard, {}
        dead = frozenset.intersection(*(w.dead for w in heard.values()))
        parts = {(b, k): data for w in heard.values() for b, k, data in w.parts if k in dead}
        last = max(w.batch for w in heard.values())
        verdict = Witness(dead, last, tuple((b, k, parts[b, k]) for b, k in sorted(parts)))
        return verdict, tuple(sorted(heard))

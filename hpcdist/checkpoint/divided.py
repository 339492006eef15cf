"""How what trainers keep divides among them, and what each takes up of what others saved. Pure.

Saving declares it beside each value, so that any number of trainers can take up the job's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SAME = "same"  # on all trainers
SUMMED = "summed"  # each has counted its rows
WINDOWED = "summed, but for its last element"  # which counts batches, and is the same on all
LARGEST, SMALLEST = "largest", "smallest"  # of each trainer's rows
OWN = "per trainer"
KINDS = frozenset({SAME, SUMMED, WINDOWED, LARGEST, SMALLEST, OWN})
SUMS = {SUMMED, WINDOWED}


@dataclass(frozen=True)
class Combined:
    """A value that is made of several saved ones; who does not hold it begins with zeros.

    ``further``: what is added to it.
    """

    names: tuple[str, ...]
    how: str
    holds: bool = True
    further: int = 0

    def of(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Combine the values that trainers have saved into this trainer's."""
        stack = np.stack(values)
        if self.how in (LARGEST, SMALLEST):
            made = stack.max(0) if self.how == LARGEST else stack.min(0)
        else:
            made = stack.sum(0, dtype=stack.dtype)
        made = made + made.dtype.type(self.further) if self.further else made
        if not self.holds:
            made = np.zeros_like(made)
        if self.how == WINDOWED:
            made.reshape(-1)[-1] = values[0].reshape(-1)[-1]
        return made


def name_of_own(name: str, trainer: int) -> str:
    """Return the name under which a trainer's own value is saved."""
    return f"{name}@trainer_{trainer}"


def taken_up(
    common: str, saved: Sequence[str], before: str, now: str, trainer: int, trainers: int
) -> str | Combined:
    """Return which value a trainer takes up: one that was saved, or several of them combined.

    ``saved`` are the names of each former trainer's value, ``common`` that of the one that all
    begin with; ``before`` and ``now`` are how they divided then and divide now.
    """
    if now == OWN and before in SUMS:
        now = before
    if len(saved) == trainers and before == now:
        return saved[trainer]
    if before in (SAME, OWN):
        saved = [common]
    holds = trainer == 0 or now not in SUMS
    if len(saved) == 1 and holds:
        return saved[0]
    return Combined(tuple(saved), before if before not in (SAME, OWN) else now, holds)

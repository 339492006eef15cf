"""What a script with tables is told once: rows that never move, look-ups that take longer."""

from __future__ import annotations

from collections.abc import Collection

from hpcdist.base.warned import warn

MANY = 4  # tables, whose exchanges one by one are worth a word
MANY_DROPPED = 20  # times that gradients are dropped before any step
MANY_WAITING = 1000  # gradients that wait for the first step


class FirstSteps:
    """Looks at what comes before a model's first step, and at that step."""

    def __init__(self) -> None:
        self._stepped = False
        self._dropped = 0

    def of_gradients(self, waiting: int) -> None:
        """Take note of gradients, of which so many wait for a step."""
        if not self._stepped and waiting == MANY_WAITING:
            self._never_moved(f"{waiting} gradients wait")

    def of_dropped(self) -> None:
        """Take note of gradients that `zero_grad` has dropped."""
        self._dropped += 1
        if not self._stepped and self._dropped == MANY_DROPPED:
            self._never_moved(f"gradients were dropped {MANY_DROPPED} times")

    def of_step(self, alone: Collection[str]) -> None:
        """Say after the first step that the tables ``alone`` take an exchange each."""
        if not self._stepped and len(alone) >= MANY:
            warn(
                f"{len(alone)} tables are looked up one by one ({', '.join(sorted(alone)[:MANY])}, "
                "...), each in a separate exchange: announce their ids with "
                "hpcdist.torch.rows_ahead, or put slots of the same width into one table"
            )
        self._stepped = True

    def _never_moved(self, how: str) -> None:
        warn(f"no row of a table has moved, and {how}: call step() of the TableOptimizer, too")

"""Metrics of this process before they are written: `log_metrics` adds them, a thread writes
them."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from hpcdist.base.errors import MetricError, MetricTypeError

RESERVED = ("start", "step", "unix_s")  # what a line says beside the metrics
FETCHED = 200  # steps whose fetched values are noted from one writing to the next, about
LONG = 2**17  # steps noted, after which only half of the following are


@dataclass(frozen=True)
class Noted:
    """Metrics of one step, and the wall clock then."""

    step: int
    unix_s: float
    values: dict[str, float]


class MetricLog:
    """Holds what was noted until it is taken. Any thread may note and take.

    ``on``: whether somebody takes it. ``fetches``: whether fetched numbers are noted, those of the
    steps n where ``n & mask`` is 0: all, until there are too many of them.
    """

    def __init__(self) -> None:
        self.on = self.fetches = False
        self.mask = 0
        self.step = 0  # the latest that the script has named
        self._drained = 0
        self._owner = 0
        self._pending: deque[Noted] = deque()

    def begin(self, *, fetches: bool) -> None:
        """Note from now on, in this process and in none that it forks."""
        self.on, self.fetches, self.mask, self._owner = True, fetches, 0, os.getpid()
        self._drained = 0
        self._pending.clear()

    def end(self) -> None:
        """Note nothing any more."""
        self.on = self.fetches = False

    def note(self, step: int, values: dict[str, float]) -> None:
        """Note metrics of a step, if somebody takes them; MetricError in a forked process."""
        if not self.on:
            return
        if os.getpid() != self._owner:
            raise MetricError(
                f"log_metrics in process {os.getpid()}, which rank process {self._owner} has "
                "forked: only the rank itself writes metrics; hand the values to it"
            )
        self.step = step
        self._pending.append(Noted(step, time.time(), values))

    def fetched(self, step: int, names: Sequence[str], values: Sequence[object]) -> None:
        """Note those fetched values of a step that are one number; the mean over devices.

        A variable with a reserved name, such as ``step``, has a ``_`` after it.
        """
        numbers: dict[str, list[float]] = {}
        for name, value in zip(names, values):
            if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiu":
                free = f"{name}_" if name in RESERVED else name
                numbers.setdefault(free, []).append(float(value.item()))
        if not numbers or os.getpid() != self._owner:
            return
        means = {name: sum(numbers_of) / len(numbers_of) for name, numbers_of in numbers.items()}
        self._pending.append(Noted(step, time.time(), means))
        if len(self._pending) > FETCHED * (self.mask + 2):
            self.mask = 2 * self.mask + 1  # until the next taking, which sets it by the pace

    def taken(self) -> list[Noted]:
        """Return the notes since the last call, and set how many steps are noted.

        Of the next ones ever fewer, so that files grow as the logarithm of the number of steps.
        """
        entries = []
        while self._pending:
            entries.append(self._pending.popleft())
        self._drained += len(entries)
        least = 2 ** (self._drained // LONG) - 1
        steps = len(entries) * (self.mask + 1)
        while self.mask and steps / (self.mask + 1) < FETCHED / 4:
            self.mask //= 2
        while steps / (self.mask + 1) > FETCHED:
            self.mask = 2 * self.mask + 1
        self.mask = max(self.mask, least)
        return entries


metric_log = MetricLog()  # `--metrics` begins it


def log_metrics(step: int, **values: object) -> None:
    """Log metrics of a step: ``log_metrics(step, loss=0.3, accuracy=0.9)``.

    They go where ``python -m hpcdist --metrics DIR`` says, within two seconds, and nowhere without
    it. Every rank that calls this writes files of its own; `is_first` tells whether to, where the
    values are the same on all. ``values``: numbers, or arrays and tensors of one element.
    MetricTypeError (a TypeError) for what is none, MetricError (a ValueError) for a step or a name
    that cannot be; so also without ``--metrics``.
    """
    if not isinstance(step, Integral) or isinstance(step, bool):
        raise MetricTypeError(f"log_metrics: expected an integer as step, got {step!r}")
    if not 0 <= step < 2**63:  # what event files can hold
        raise MetricError(f"log_metrics: expected a step of 0 or more, below 2**63, got {step}")
    if not values:
        raise MetricError(f"log_metrics: step {step} has no metrics; expected name=value")
    metric_log.note(int(step), {_name(n): _number(n, v) for n, v in values.items()})


def _name(name: str) -> str:
    if name in RESERVED or not name or not name.isprintable():
        raise MetricError(
            f"log_metrics: a metric cannot be called {name!r}; {', '.join(RESERVED)} are reserved"
        )
    return name


def _number(name: str, value: Any) -> float:
    number = value
    if not isinstance(value, Real) and callable(getattr(value, "item", None)):
        if math.prod(value.shape) != 1:
            raise MetricTypeError(
                f"log_metrics: {name}: expected one number, got an array of shape "
                f"{list(value.shape)}; log its mean, or one element"
            )
        number = value.item()
    if not isinstance(number, Real):
        raise MetricTypeError(f"log_metrics: {name}: expected a number, got {value!r}")
    return float(number)

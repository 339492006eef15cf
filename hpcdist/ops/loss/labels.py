"""Integer operands: the check of their range, and where class labels point to in an array."""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.device import tell_later
from hpcdist.base.errors import FeedError
from hpcdist.ops.types import ArrayModule, Call, DeviceArray

MOST_PENDING = 4096  # more checks between two looks have the host wait once


class LateCheck:
    """The check of ids on a GPU: the greatest is kept there, and looked at before any value.

    Until then a wrong id reads some other row. The host waits for no check.
    """

    def __init__(self, xp, ids, count: int, op_type: str, of: str) -> None:
        self._flat = ids.reshape(-1).view(f"u{ids.dtype.itemsize}")  # negative ones become huge
        self.signed = ids.dtype
        self.count, self._op_type, self._of = count, op_type, of
        self._words = pending_checks(xp, xp.cuda.Device().id)
        self._maximum = xp.maximum

    def __call__(self) -> None:
        if self._flat.size:
            worst = self._words.of(self)
            self._maximum(worst, self._flat.max(), out=worst)

    def error(self, worst: np.uint64) -> FeedError:
        """Return the error about an id."""
        bad_id = int(worst.astype(self._flat.dtype).astype(self.signed))
        return FeedError(
            f"{self._op_type}: id {bad_id} is outside 0..{self.count - 1}, the {self.count} "
            f"{self._of}; on a GPU this is told when a value is fetched: the id may be of an "
            "earlier step, and parameters were updated with it"
        )


class PendingChecks:
    """The greatest ids that the checks of one GPU have seen since the host last looked."""

    def __init__(self, xp: ArrayModule) -> None:
        self._array = xp.zeros(MOST_PENDING, "uint64")
        self._slots: dict[LateCheck, Any] = {}  # those that have run since then

    def of(self, check: LateCheck) -> DeviceArray:
        """Return the word of a check, which is looked at before a value is next given out."""
        if check not in self._slots:
            if len(self._slots) == len(self._array):
                self.look()
            self._slots[check] = self._array[len(self._slots)]
        tell_later(self)
        return self._slots[check]

    def settle(self) -> None:
        """Nothing here depends on other ranks."""

    def look(self) -> None:
        """Raise FeedError if an id was outside; forget all of them."""
        checks, self._slots = self._slots, {}
        worst_values = self._array[: len(checks)].get()
        self._array.fill(0)
        for check, worst in zip(checks, worst_values):
            if worst >= check.count:
                raise check.error(worst)


@functools.cache
def pending_checks(xp: ArrayModule, device_id: int) -> PendingChecks:
    """Return those of a GPU, the same for all its operators."""
    return PendingChecks(xp)


def range_check(xp: ArrayModule, ids, count: int, op_type: str, of: str) -> Call:
    """Return a call that raises FeedError unless all ``ids`` are in ``0 .. count - 1``.

    Of ids on a GPU it is raised later: when the host next waits for the GPU, see `LateCheck`.
    """
    if not isinstance(ids, np.ndarray):
        return LateCheck(xp, ids, count, op_type, of)
    flat = ids.reshape(-1)
    unsigned = flat.view(f"u{ids.dtype.itemsize}")  # a negative id becomes a huge one

    def check() -> None:
        if unsigned.size and int(unsigned.max()) >= count:
            at = int(xp.flatnonzero(unsigned >= count)[0])
            raise FeedError(
                f"{op_type}: id {int(flat[at])} (element {at} of {flat.size}) is outside "
                f"0..{count - 1}, the {count} {of}"
            )

    return check


def take(xp: ArrayModule, source, index, out, axis: int | None = None) -> Call:
    """Return a call that writes ``source`` at checked ``index`` into ``out``."""
    # numpy's default mode makes a copy of `out` first, lest an index be wrong; cupy has no modes.
    mode = {"mode": "clip"} if xp.__name__ == "numpy" else {}
    return partial(xp.take, source, index, axis, out, **mode)


def put_where(xp: ArrayModule, array, value: float, where) -> Call:
    """Return a call that writes a number into the elements that a mask selects."""
    # A scalar of the array's own type: for a Python number cupy asks numpy, which refuses since 2.
    return partial(xp.copyto, array, array.dtype.type(value), where=where)


class HardLabels:
    """Where the labelled class of each sample lies in an array of scores.

    ``label`` has the scores' shape with 1 at ``axis``. After the ``refresh`` calls, ``flat``
    holds one index into the flattened scores per label, and ``ignored`` tells which labels
    equal ``ignore_index``; those point to class 0.
    """

    def __init__(
        self,
        xp: ArrayModule,
        label,
        shape: tuple[int, ...],
        axis: int,
        ignore_index: int,
        type: str,
    ) -> None:
        axis %= len(shape)
        classes, inner = shape[axis], math.prod(shape[axis + 1 :])
        outer = math.prod(shape[:axis])
        labels = label.reshape(-1)
        base = xp.arange(outer).reshape(-1, 1) * (classes * inner) + xp.arange(inner)
        base = base.reshape(-1)
        self.ignored = xp.empty(labels.shape, bool)
        self.flat = xp.empty(labels.shape, "int64")
        self.locate: list[Call] = [
            partial(xp.equal, labels, ignore_index, self.ignored),
            partial(xp.copyto, self.flat, labels),
            put_where(xp, self.flat, 0, self.ignored),
        ]
        if inner != 1:
            self.locate.append(partial(xp.multiply, self.flat, inner, self.flat))
        self.locate.append(partial(xp.add, self.flat, base, self.flat))
        check = range_check(xp, self.flat, classes, type, "classes")
        self.refresh: list[Call] = [*self.locate[:3], check, *self.locate[3:]]

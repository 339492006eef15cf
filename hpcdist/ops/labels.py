"""Integer operands: the check of their range, and where class labels point to in an array."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from hpcdist.errors import FeedError

Call = Callable[[], Any]


def range_check(xp: Any, ids: Any, count: int, op_type: str, of: str) -> Call:
    """Return a call that raises FeedError unless all ``ids`` are in ``0 .. count - 1``."""
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


def take(xp: Any, source: Any, index: Any, out: Any, axis: int | None = None) -> Call:
    """Return a call that writes ``source`` at checked ``index`` into ``out``."""
    # numpy's default mode makes a copy of `out` first, lest an index be wrong; cupy has no modes.
    mode = {"mode": "clip"} if xp.__name__ == "numpy" else {}
    return functools.partial(xp.take, source, index, axis, out, **mode)


def put_where(xp: Any, array: Any, value: float, where: Any) -> Call:
    """Return a call that writes a number into the elements that a mask selects."""
    # A scalar of the array's own type: for a Python number cupy asks numpy, which refuses since 2.
    return functools.partial(xp.copyto, array, array.dtype.type(value), where=where)


class HardLabels:
    """Where the labelled class of each sample lies in an array of scores.

    ``label`` has the scores' shape with 1 at ``axis``. After the ``refresh`` calls, ``flat``
    holds one index into the flattened scores per label, and ``ignored`` tells which labels
    equal ``ignore_index``; those point to class 0.
    """

    def __init__(
        self, xp: Any, label: Any, shape: tuple[int, ...], axis: int, ignore_index: int, type: str
    ) -> None:
        axis %= len(shape)
        classes, inner = shape[axis], math.prod(shape[axis + 1 :])
        outer = math.prod(shape[:axis])
        given = label.reshape(-1)
        base = xp.arange(outer).reshape(-1, 1) * (classes * inner) + xp.arange(inner)
        base = base.reshape(-1)
        self.ignored = xp.empty(given.shape, bool)
        self.flat = xp.empty(given.shape, "int64")
        self.locate: list[Call] = [
            functools.partial(xp.equal, given, ignore_index, self.ignored),
            functools.partial(xp.copyto, self.flat, given),
            put_where(xp, self.flat, 0, self.ignored),
        ]
        if inner != 1:
            self.locate.append(functools.partial(xp.multiply, self.flat, inner, self.flat))
        self.locate.append(functools.partial(xp.add, self.flat, base, self.flat))
        check = range_check(xp, self.flat, classes, type, "classes")
        self.refresh: list[Call] = [*self.locate[:3], check, *self.locate[3:]]

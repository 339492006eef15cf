"""average_accumulates: sums of a parameter over a window of steps."""

from __future__ import annotations

from hpcdist.graph.registry import define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.types import ArrayModule

MOST = 16384  # steps that one sum takes up, lest it lose digits
_SLOTS = ("sum_1", "sum_2", "sum_3", "num_accumulates", "old_num_accumulates", "num_updates")


def _accumulate(
    xp: ArrayModule,
    param,
    *state,
    average_window: float,
    min_average_window: int,
    max_average_window: int,
) -> None:
    """Add the parameter to sum_1; a sum that is full moves on to sum_2, a full window to sum_3."""
    old, new = state[: len(_SLOTS)], state[len(_SLOTS) :]
    for source, target in zip(old, new):
        if target is not source:
            target[...] = source
    sum_1, sum_2, sum_3, accumulated, before, updates = new
    accumulated += 1
    updates += 1
    sum_1 += param
    if int(updates[0]) % MOST == 0:
        sum_2 += sum_1
        sum_1.fill(0)
    window = min(max_average_window, int(int(updates[0]) * average_window))
    if int(accumulated[0]) >= min_average_window and int(accumulated[0]) >= window:
        sum_3[...] = sum_1 + sum_2
        sum_1.fill(0)
        sum_2.fill(0)
        before[...] = accumulated
        accumulated.fill(0)


define(
    "average_accumulates",
    "param, "
    + ", ".join(f"in_{slot}" for slot in _SLOTS)
    + " -> "
    + ", ".join(f"out_{slot}" for slot in _SLOTS),
    rows=not_on_rows,
    attrs={"average_window": 0.0, "min_average_window": 10000, "max_average_window": 10000},
    infer=lambda param, *state, **_: tuple(state),
    kernel=_accumulate,
    inplace={f"out_{slot}": f"in_{slot}" for slot in _SLOTS},
)

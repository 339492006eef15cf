"""Steps and collectives of a PyTorch script, recorded for traces, the report and `top`.

The loop is the script's, so a step is the time between two steps of an optimizer.
"""

from __future__ import annotations

import functools
import weakref
from time import monotonic_ns
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder
from hpcdist.torch.signature import Call


class StepLog:
    """Notes a step whenever one optimizer, of those that step in turns, has stepped."""

    def __init__(self) -> None:
        self._counting: weakref.ref[Optimizer] | None = None
        self._others: set[int] = set()  # that have stepped since the counting one has
        self._number = self._details = 0
        self._begin = 0  # unknown for the first step

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """Note the end of a step; torch calls it after each step of any optimizer."""
        if self._counting is None or self._counting() is not optimizer:
            counted = self._counting is not None and self._counting() is not None
            if counted and id(optimizer) not in self._others:
                self._others.add(id(optimizer))
                return
            self._counting = weakref.ref(optimizer)  # the one before has stepped its last
        self._others.clear()
        now = monotonic_ns()
        begin, self._begin = self._begin or now, now
        recorder.record(EventKind.STEP, recorder.name("step"), begin, now, step=self._number)
        if self.detailed:
            recorder.detailed(self._details + 1, now)
        self._number += 1
        here.script_step += 1
        self._details = 0

    @property
    def detailed(self) -> bool:
        """Whether details of this step are noted."""
        return not self._number & recorder.mask

    def collective(self, call: Call, begin: int) -> None:
        """Note a collective that has been under way since ``begin`` and has just ended."""
        self._details += 1
        nbytes = (call.length or 0) * call.dtype.itemsize
        name = recorder.name(call.kind)
        recorder.record(EventKind.SUM, name, begin, monotonic_ns(), nbytes, step=self._number)


steps = StepLog()


@functools.cache
def observe() -> None:
    """Note the steps of this process from now on; once is enough."""
    register_optimizer_step_post_hook(lambda *of: steps(*of))

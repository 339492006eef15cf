"""What looks on while an Executor takes steps: the recorder, metrics, and the watch for NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

import numpy as np

from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.metric_log import metric_log
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import OF_A_DETAILED_STEP, recorder
from hpcdist.executor.nan_watch import NanWatch

_FEED, _FETCH, _STEP, _RUN = map(recorder.name, ("feed", "fetch", "step", "run"))

Ended = Callable[[list[Any], int, int], None]  # (fetched values, begin in ns, step): it has ended


class StepObserver:
    """Observes the steps of one Executor; details (``fed``, ``fetched``) those of some."""

    def __init__(self) -> None:
        self._nan_watch = NanWatch()
        recorder.start()

    def fed(self, begin: int, rows: int) -> None:
        """Note that the arrays of a batch with this many rows have been copied since ``begin``."""
        recorder.record(EventKind.FEED, _FEED, begin, monotonic_ns(), rows, step=here.step)

    def fetched(
        self, names: Sequence[str], values: Sequence[Any], begin: int, operators: int
    ) -> None:
        """Note how long fetching has taken, and what has been fetched if that is one number."""
        now = monotonic_ns()
        recorder.record(EventKind.FETCH, _FETCH, begin, now, step=here.step)
        for name, value in zip(names, values):
            if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiu":
                number = float(value.item())
                recorder.record(
                    EventKind.VALUE, recorder.name(name), now, now, number, step=here.step
                )
        recorder.detailed(operators + 2 + len(names) + OF_A_DETAILED_STEP, now)

    def ended(self, trains: bool, names: Sequence[str], values: Sequence[Any], begin: int) -> None:
        """Note a step that has ended: look for NaN, keep its metrics, record how long it took."""
        self.bound(trains, names, plain=False)(list(values), begin, here.step)

    def bound(self, trains: bool, names: Sequence[str], *, plain: bool) -> Ended:
        """Return `ended` for steps that fetch these names; ``plain``: one float, as it is."""
        watch, record = self._nan_watch, recorder
        if not trains:
            return lambda _, begin, step: record.record(
                EventKind.RUN, _RUN, begin, monotonic_ns(), 0.0, -1, step
            )

        def ended(results: list[Any], begin: int, step: int) -> None:
            if watch.watching and (not plain or (value := results[0].item()) != value):
                watch.look(names, results)
            if metric_log.fetches and not step & metric_log.mask:
                metric_log.fetched(step, names, results)
            record.record(EventKind.STEP, _STEP, begin, monotonic_ns(), 0.0, -1, step)

        return ended

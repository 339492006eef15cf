"""Steps that a script prepares, to take them without a look-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.executor.bound_step import BoundStep

Bound = Callable[[], "BoundStep | None"]  # how such steps are taken now, if that is known


class PreparedStep:
    """A step of one Program with one ``fetch_list`` in one scope: ``run(feed)`` takes it.

    `Executor.prepare` returns it.
    """

    def __init__(self, run: Callable[[Any, bool], list[Any]], bound: Bound) -> None:
        """``run(feed, return_numpy)`` is the Executor's."""
        self._run, self._look_up = run, bound
        self._bound: BoundStep | None = None

    def run(
        self, feed: Mapping[str, Any] | Sequence[Any] | None = None, return_numpy: bool = True
    ) -> list[Any]:
        """Take a step and return what `Executor.run` would, with the same effects and errors."""
        bound = self._bound
        if bound is not None and type(feed) is dict:
            results = bound.run(feed, return_numpy)
            if results is not None:
                return results
        results = self._run(feed, return_numpy)  # the first step, or something has changed
        self._bound = self._look_up()
        return results

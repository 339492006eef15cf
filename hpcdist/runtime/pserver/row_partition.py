"""Cuts full gradients and parameters into the slices of the servers, for the communicator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.ps.plan import Plan
from hpcdist.runtime.pserver.exchange_plan import is_pushed, keys_of


@dataclass(frozen=True)
class RowCut:
    """A full gradient and the parameter that answers it, in pieces of rows for the servers.

    Rows ``starts[i]:starts[i + 1]`` are called ``gradients[i]`` and ``parameters[i]``.
    """

    gradient: str
    parameter: str
    starts: tuple[int, ...]
    gradients: tuple[str, ...]
    parameters: tuple[str, ...]  # none for a table that trainers do not receive
    endpoints: tuple[str, ...]

    def rows(self, names: Sequence[str], value: Any) -> dict[str, Any]:
        """Return the pieces of an array by name."""
        ends = zip(self.starts, self.starts[1:])
        return {name: value[begin:end] for name, (begin, end) in zip(names, ends)}


def cuts_of(plan: Plan) -> tuple[RowCut, ...]:
    """Return the cuts and joins of the communicator."""
    return tuple(
        RowCut(
            route.gradient,
            route.parameter,
            (0, *(piece.end for piece in route.slices)),
            tuple(keys_of(plan, route)),
            () if is_pushed(plan, route) else tuple(piece.name for piece in route.slices),
            route.endpoints,
        )
        for route in plan.routes
    )

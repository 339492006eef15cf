"""What the network operators of a trainer's step do; there is a class for each mode."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.runtime.pserver.connection import ServerConnection, StepProtocol
from hpcdist.runtime.staging import Staging
from hpcdist.transpiler.plan import ProgramPlan

# A step of an asynchronous mode ends with the last operator of these types.
_ENDS = ("recv", "send", "send_barrier", "push_sparse")


class BoundSteps(StepProtocol):
    """The protocol of the steps of a Program, which is bound to their calls."""

    plan: ProgramPlan

    def __init__(self, plan: ProgramPlan, connection: ServerConnection) -> None:
        super().__init__(plan, connection)

    def contiguous(self) -> list[list[str]]:
        """Return the names that must be adjacent because they travel in one message."""
        return []

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return each network operator's call in a step; None where another one does it."""
        raise NotImplementedError


def staged(connection: ServerConnection, binding: Binding) -> Staging:
    """Return a Program's arrays as messages see them."""
    return Staging(binding.arrays, binding.backend, connection.copies)


def last_of(ops: Sequence[Operator]) -> int:
    """Return the index of the network operator that ends an asynchronous step."""
    return max(i for i, op in enumerate(ops) if op.type in _ENDS)

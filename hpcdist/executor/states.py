"""State of operators between runs: how often they have drawn random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hpcdist.graph.operator import Operator
from hpcdist.graph.pipeline import MICRO


class State(Protocol):
    """What one operator keeps; ``count`` is what a checkpoint holds of it."""

    count: int


class OperatorStates:
    """The states of an executor's operators; they can be written down and taken up again.

    An operator is known by its type and the first variable it writes: so it continues in another
    process, where the Program is built anew, and in variants of a Program.
    """

    def __init__(self) -> None:
        self._states: dict[str, State] = {}
        self._restored: dict[str, int] = {}

    def of(self, op: Operator, make: Callable[[str], State]) -> State:
        """Return the state of an operator; ``make(name)`` returns that of a new one.

        Micro-batches of a pipeline draw apart, each what belongs to its rows.
        """
        name = _name(op)
        if name not in self._states:
            self._states[name] = make(_of_all(name))
            self._states[name].count = self._restored.get(_of_all(name), 0)
        return self._states[name]

    def positions(self) -> dict[str, int]:
        """Return how far every operator is, as plain data."""
        positions = dict(self._restored)
        # A test program draws less often than the micro-batches of its training program.
        for name, state in self._states.items():
            of_all = _of_all(name)
            positions[of_all] = max(state.count, positions.get(of_all, 0))
        return positions

    def load(self, positions: Mapping[str, Any], step: int) -> None:
        """Restore the positions of all operators that draw random numbers.

        Earlier versions drew from other generators, whose positions tell nothing here: after those
        an operator continues as if it had drawn once in each of the ``step`` steps.
        """
        states = {}
        for name, position in positions.items():
            count = step if isinstance(position, Mapping) else int(position)
            if not 0 <= count < 2**63:
                raise ValueError(f"{name} cannot have drawn {count} times")
            states[str(name)] = count
        self._restored = states
        for name, state in self._states.items():
            state.count = states.get(_of_all(name), state.count)


def _name(op: Operator) -> str:
    return f"{op.type}:{op.output_arg_names[0]}"


def _of_all(name: str) -> str:
    """Return the name of an operator without the number of its micro-batch."""
    return name.partition(MICRO)[0]

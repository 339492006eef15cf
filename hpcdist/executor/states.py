"""What operators keep from run to run: the streams of random numbers they draw from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hpcdist.graph.operator import Operator


class OperatorStates(WeakKeyDictionary[Operator, Any]):
    """The streams of an executor's operators; they can be written down and taken up again.

    An operator is known by its type and the first variable it writes: so a stream goes on in
    another process, where the Program is built anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._taken_up: dict[str, Any] = {}

    def __setitem__(self, op: Operator, state: Any) -> None:
        super().__setitem__(op, state)
        position = self._taken_up.get(_key(op))
        if position is not None and isinstance(state, np.random.Generator):
            _move(state, position)

    def positions(self) -> dict[str, Any]:
        """Return where every stream is, as plain data.

        Of operators that go by one name (a Program and its clone for tests) the one counts that has
        drawn most.
        """
        found = dict(self._taken_up)
        for op, state in self.items():
            if isinstance(state, np.random.Generator):
                position, key = _position(state), _key(op)
                if key not in found or _drawn(found[key]) < _drawn(position):
                    found[key] = position
        return found

    def take_up(self, positions: Mapping[str, Any]) -> None:
        """Let every stream go on from where it was when ``positions`` were written down."""
        self._taken_up = dict(positions)
        for op, state in self.items():
            if _key(op) in positions:
                _move(state, positions[_key(op)])


def _key(op: Operator) -> str:
    return f"{op.type}:{op.output_arg_names[0]}"


def _position(generator: np.random.Generator) -> dict[str, Any]:
    state: Any = generator.bit_generator.state
    counter = [int(word) for word in state["state"]["counter"]]
    key = [int(word) for word in state["state"]["key"]]
    rest = {k: int(state[k]) for k in ("buffer_pos", "has_uint32", "uinteger")}
    return {"counter": counter, "key": key, "buffer": [int(b) for b in state["buffer"]], **rest}


def _move(generator: np.random.Generator, position: Mapping[str, Any]) -> None:
    words = {name: np.array(position[name], np.uint64) for name in ("counter", "key", "buffer")}
    rest = {k: int(position[k]) for k in ("buffer_pos", "has_uint32", "uinteger")}
    state = {"counter": words["counter"], "key": words["key"]}
    generator.bit_generator.state = {
        "bit_generator": "Philox",
        "state": state,
        "buffer": words["buffer"],
        **rest,
    }


def _drawn(position: Mapping[str, Any]) -> tuple[int, int]:
    """Return how far a stream is: Philox counts blocks of four, lowest word first."""
    count = sum(word << (64 * i) for i, word in enumerate(position["counter"]))
    return count, position["buffer_pos"]

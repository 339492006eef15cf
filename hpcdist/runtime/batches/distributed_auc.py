"""Areas under curves over trainers that share batches: each counts its rows, the counts add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.base.device import assign, on_host
from hpcdist.executor.control import Fetched
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ops.metric.auc import area, counted
from hpcdist.runtime.batches.gather import Value
from hpcdist.runtime.job.membership import Membership


class DistributedAuc:
    """The `auc` operators of a Program, by their areas and by the variables of their counts."""

    def __init__(self, program: Program) -> None:
        ops = [op for op in program.global_block().ops if op.type == "auc"]
        self._by_area = {op.output("AUC")[0]: op for op in ops}
        slots = "StatPos", "StatNeg"
        self._by_counts = {name: op for op in ops for slot in slots for name in op.input(slot)}

    @property
    def states(self) -> frozenset[str]:
        """The variables of their counts."""
        return frozenset(self._by_counts)

    def counts(self, name: str) -> bool:
        """Return whether a value is made of the counts of an `auc` operator."""
        return name in self._by_area or name in self._by_counts

    def part(self, name: str, value: Value, scope: Scope) -> Value:
        """Return this trainer's summand: of an area, its counts of positives and negatives."""
        op = self._by_area.get(name)
        if op is None:
            return value
        variables = [scope.find_var(op.input(slot)[0]) for slot in ("StatPos", "StatNeg")]
        arrays = [np.asarray(var.get_tensor()) for var in variables if var is not None]
        return np.stack([counted(array, *_sizes(op)) for array in arrays])

    def of_all(self, name: str, joined: Any, local: Value) -> Any:
        """Return a value of the job from the sum of what the trainers added."""
        op = self._by_area.get(name)
        if op is not None:
            value = np.array(area(joined[0], joined[1], op.attrs["curve"]), np.float64)
            return value if op.attrs["scalar"] else value.reshape(1)
        op = self._by_counts.get(name)
        if op is not None and op.attrs["slide_steps"]:
            joined[-1] = np.asarray(local)[-1]  # the number of batches
        return joined


class CountsOfAll:
    """Counts that a Program such as a test continues from, which every trainer runs whole.

    Before it runs each trainer takes those of all; afterwards only the first one keeps them, for
    they add up.
    """

    def __init__(self, program: Program, names: frozenset[str], membership: Membership) -> None:
        self._areas = DistributedAuc(program)
        self._names = sorted(self._areas.states & names)
        self._membership = membership
        self._scope: Scope | None = None

    def gather(self, scope: Scope) -> None:
        """Take the counts of all trainers. Collective."""
        self._scope = scope
        for name in self._names:
            variable = scope.find_var(name)
            if variable is None or variable.value is None:
                continue  # not initialized: compiling says so
            counts = on_host(variable.value)
            gathered = self._membership.join(counts.tobytes(), f"the other trainers' {name!r}")
            came = [
                np.frombuffer(t, counts.dtype).reshape(counts.shape)
                for t in gathered
                if t is not None
            ]
            assign(variable.value, self._areas.of_all(name, np.sum(came, axis=0), counts))

    def handing_back(self) -> Callable[[Fetched], list[Any]] | None:
        """Return the call that ends such a run; None if it counts nothing."""
        return self._hand_back if self._names else None

    def _hand_back(self, fetched: Fetched) -> list[Any]:
        assert self._scope is not None
        for name in () if self._membership.is_first else self._names:
            variable = self._scope.find_var(name)
            if variable is not None and variable.value is not None:
                empty = np.zeros_like(on_host(variable.value))
                assign(variable.value, self._areas.of_all(name, empty, on_host(variable.value)))
        return [value for _, value in fetched]


def _sizes(op: Operator) -> tuple[int, int]:
    return op.attrs["num_thresholds"], op.attrs["slide_steps"]

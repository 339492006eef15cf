"""Areas under curves over trainers that share batches: each counts its rows, the counts add up."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ops.auc import area, counted
from hpcdist.runtime.batches.gather_batch import Value


class DistributedAuc:
    """The `auc` operators of a Program, by their areas and by the variables of their counts."""

    def __init__(self, program: Program) -> None:
        ops = [op for op in program.global_block().ops if op.type == "auc"]
        self._by_area = {op.output("AUC")[0]: op for op in ops}
        slots = "StatPos", "StatNeg"
        self._by_counts = {name: op for op in ops for slot in slots for name in op.input(slot)}

    def counts(self, name: str) -> bool:
        """Tell whether a value is made of the counts of an `auc` operator."""
        return name in self._by_area or name in self._by_counts

    def part(self, name: str, value: Value, scope: Scope) -> Value:
        """Return what this trainer adds: of an area, its counts of positives and negatives."""
        op = self._by_area.get(name)
        if op is None:
            return value
        held = [scope.find_var(op.input(slot)[0]) for slot in ("StatPos", "StatNeg")]
        arrays = [np.asarray(var.get_tensor()) for var in held if var is not None]
        return np.stack([counted(array, *_sizes(op)) for array in arrays])

    def whole(self, name: str, joined: Any, own: Value) -> Any:
        """Return a value of the job from the sum of what the trainers added."""
        op = self._by_area.get(name)
        if op is not None:
            return np.array([area(joined[0], joined[1], op.attrs["curve"])], np.float64)
        op = self._by_counts.get(name)
        if op is not None and op.attrs["slide_steps"]:
            joined[-1] = np.asarray(own)[-1]  # the number of batches
        return joined


def _sizes(op: Operator) -> tuple[int, int]:
    return op.attrs["num_thresholds"], op.attrs["slide_steps"]

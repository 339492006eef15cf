"""Metrics over all trainers, from what each has counted (fleet's ``metrics``).

Every function is collective: all trainers call it, in the same order, and all get the same
result. Arguments are arrays, numbers, or variables (or names) whose values are in a scope.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from hpcdist import runtime
from hpcdist.base.errors import FleetError
from hpcdist.comm.cluster import Ranks
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.graph.variable import Variable
from hpcdist.ops.metric.auc import area

__all__ = ["acc", "auc", "mae", "max", "min", "mse", "rmse", "sum"]


def sum(input: Any, scope: Scope | None = None, util: object = None) -> np.ndarray:
    """Return the sum over trainers."""
    return np.asarray(np.sum(everyones(input, scope), axis=0))


def max(input: Any, scope: Scope | None = None, util: object = None) -> np.ndarray:
    """Return the largest value of any trainer, element by element."""
    return np.asarray(np.max(everyones(input, scope), axis=0))


def min(input: Any, scope: Scope | None = None, util: object = None) -> np.ndarray:
    """Return the smallest value of any trainer, element by element."""
    return np.asarray(np.min(everyones(input, scope), axis=0))


def auc(stat_pos: Any, stat_neg: Any, scope: Scope | None = None, util: object = None) -> float:
    """Return the area under the ROC curve of all trainers' rows.

    ``stat_pos``, ``stat_neg``: the counts of all batches that `layers.auc` returns, the third and
    fourth of its list.
    """
    return area(sum(stat_pos, scope), sum(stat_neg, scope))


def mae(abserr: Any, total_ins_num: Any, scope: Scope | None = None, util: object = None) -> float:
    """Return the mean absolute error, from each trainer's sum of errors and number of samples."""
    return _mean(abserr, total_ins_num, scope)


def mse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None, util: object = None) -> float:
    """Return the mean squared error, from each trainer's sum of squares and number of samples."""
    return _mean(sqrerr, total_ins_num, scope)


def rmse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None, util: object = None) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(_mean(sqrerr, total_ins_num, scope)))


def acc(correct: Any, total: Any, scope: Scope | None = None, util: object = None) -> float:
    """Return the accuracy, from each trainer's numbers of correct and of all samples."""
    return _mean(correct, total, scope)


def _mean(total: Any, count: Any, scope: Scope | None) -> float:
    totals, counts = sum(total, scope), sum(count, scope)
    return float(totals.sum() / counts.sum()) if counts.sum() else 0.0


def everyones(
    value: Any, scope: Scope | None = None, among: Ranks = Ranks.TRAINERS
) -> list[np.ndarray]:
    """Return every rank's array, number or variable, all of one shape. Collective among them."""
    array = _array(value, scope)
    awaited = f"the other ranks' values, {array.dtype}{list(array.shape)}"
    messages = runtime.everyones(array.tobytes(), awaited, among)
    if builtins.any(len(message) != array.nbytes for message in messages):
        sizes = [len(message) for message in messages]
        raise FleetError(
            f"metrics: expected {array.nbytes} bytes from every rank, got {sizes}: all must "
            "call the same functions (barrier_worker, all_reduce, ...) in the same order, with "
            "values of one size"
        )
    return [np.frombuffer(message, array.dtype).reshape(array.shape) for message in messages]


def _array(value: Any, scope: Scope | None) -> np.ndarray:
    if not isinstance(value, (str, Variable)):
        return np.ascontiguousarray(value)
    name = value if isinstance(value, str) else value.name
    variable = (scope or global_scope()).find_var(name)
    if variable is None:
        raise FleetError(f"metrics: the scope has no variable {name!r}")
    return np.array(variable.get_tensor())

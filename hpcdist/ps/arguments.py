"""What callers of tables give: ids, gradients, the facts of a table; refused by name. Pure."""

from __future__ import annotations

import math

import numpy as np

from hpcdist.base.checks import directory, integer
from hpcdist.base.errors import TableError
from hpcdist.base.nearest import did_you_mean
from hpcdist.comm.base import Array
from hpcdist.ps.facts import (
    PUBLISH_EVERY,
    Initial,
    OptimizerFacts,
    Publishing,
    TableFacts,
    TrainingMode,
)
from hpcdist.ps.optimizers import ROW_KINDS
from hpcdist.ps.row_policy import RowPolicy

MODES = ("sync", "async")
KIND_OF = {kind.lower(): kind for kind in ROW_KINDS}


def table_facts(
    name: object, width: object, rows: object, initial: object, policy: object
) -> TableFacts:
    """Return the facts of a table; TableError for what cannot be."""
    if not (isinstance(name, str) and name):
        raise TableError(f"name of a table: expected a text that is not empty, got {name!r}")
    for what, value in (("width", width), ("rows", rows)):
        fits = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0
        if not (fits or (what == "rows" and value is None)):
            none = " or None" * (what == "rows")
            raise TableError(
                f"table {name!r}: {what}: expected a positive number{none}, got {value!r}"
            )
    if not isinstance(initial, Initial):
        raise TableError(
            f"table {name!r}: initial: expected hpcdist.ps.Initial, such as "
            f'Initial("uniform", -0.1, 0.1), got {initial!r}'
        )
    assert isinstance(width, (int, np.integer)), "checked above"
    most = int(rows) if isinstance(rows, (int, np.integer)) else -1
    kept = row_policy(f"table {name!r}: row_policy", policy, "hpcdist.ps.RowPolicy")
    return TableFacts(name, int(width), most, None, initial, policy=kept)


def row_policy(what: str, policy: object, made_by: str) -> RowPolicy | None:
    """Return the policy that a script without a Program gives; TableError if it cannot be one."""
    if policy is None:
        return None
    if not isinstance(policy, RowPolicy):
        raise TableError(f"{what}: expected {made_by}(...), got {policy!r}")
    if policy.shows:
        raise TableError(
            f"{what}: shows= takes numbers of shows and clicks from a Program's variables: leave "
            "it out, a step that looks an id up counts as one show"
        )
    return policy


def optimizer_facts(
    table: TableFacts, kind: object, l2_decay: float, arguments: dict[str, float]
) -> OptimizerFacts:
    """Return the facts of a table's optimizer; TableError or PlanError for what cannot be."""
    known = KIND_OF.get(kind.lower()) if isinstance(kind, str) else None
    if known is None:
        raise TableError(
            f"table {table.name!r}: optimizer {kind!r}: expected one of {', '.join(KIND_OF)}"
            f"{did_you_mean(str(kind), KIND_OF)}"
        )
    if known == "Adam":
        arguments = {"lazy_mode": True, **arguments}  # only the rows of a step move
    facts = OptimizerFacts(known, arguments, l2_decay)
    facts.check()  # refuses arguments that it does not take
    facts.check_table(table.name, table.policy)
    return facts


def learning_rate(name: str, value: object) -> float:
    """Return a learning rate; TableError for what cannot be one."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not (number and math.isfinite(rate := float(value)) and rate >= 0):  # type: ignore[arg-type]
        raise TableError(
            f"table {name!r}: lr: expected a finite number that is not negative, got {value!r}"
        )
    return rate


def training_mode(name: str, max_staleness: int | None) -> TrainingMode:
    """Return how trainers and servers train together; TableError for what cannot be."""
    mode = TrainingMode(name, max_staleness)
    mode.check(MODES)
    return mode


def publishing(table: str, chosen: object, every: int | None) -> Publishing | None:
    """Return where a table is published; TableError or PlanError for what cannot be."""
    called = f"table {table!r}: publish_every"
    number = PUBLISH_EVERY if every is None else integer(called, every, 1)
    if chosen is None:
        if every is not None:
            raise TableError(f"{called}: say where to: publish='published'")
        return None
    path = directory(f"table {table!r}: publish", chosen, TableError)
    return Publishing(str(path.resolve()), number, (table,))


def ids_of(table: str, ids: object) -> Array:
    """Return ids as int64, C-contiguous, in their shape; TableError for what are none."""
    array = np.asarray(ids)
    if not array.size and not isinstance(ids, np.ndarray):
        array = array.astype(np.int64)  # an empty list has no integers
    if array.dtype.kind not in "iu" or not np.can_cast(array.dtype, np.int64):
        raise TableError(
            f"table {table!r}: ids: expected integers that fit into int64, got "
            f"{array.dtype} {list(array.shape)}"
            + ("; use ids.astype(numpy.int64) if that loses nothing" if array.size else "")
        )
    return np.ascontiguousarray(array, np.int64).reshape(array.shape)


def gradients_of(table: str, ids: Array, gradients: object, width: int) -> Array:
    """Return a copy of the gradients of ids as float32 [n, width]; TableError for what are none.

    The shape must be that of the ids and the width, and all must be finite numbers.
    """
    array = np.asarray(gradients)
    expected = (*ids.shape, width)
    if array.dtype.kind != "f" or array.shape != expected:
        raise TableError(
            f"table {table!r}: gradients: expected float32 {list(expected)} for ids "
            f"{list(ids.shape)}, got {array.dtype} {list(array.shape)}"
        )
    with np.errstate(over="ignore"):  # infinity is named below
        rows = np.array(array, np.float32).reshape(ids.size, width)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise TableError(
            f"table {table!r}: the gradient of id {ids.reshape(-1)[row]} has {rows[row, column]} "
            f"at column {column}; nothing was pushed; look for a division by zero or an overflow, "
            "or lower the learning rate"
        )
    return rows

"""The optimizers that servers have for scripts without a Program: their arguments, checked. Pure.

They move each element by itself: a server has slices, of which it knows no norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Real

from hpcdist.base.checks import is_within
from hpcdist.base.errors import PlanError
from hpcdist.base.optimizer_kind import Argument
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.ps.table_metadata import RowOptimizer

# Those without formulas move rows of tables, but no parameters on servers.
_BY_NAME = {k.name: k for k in OPTIMIZERS.values() if k.of_fluid and (k.formulas or k.rows)}
_OWN = {name: kind.arguments for name, kind in _BY_NAME.items()}
_ADAMW = {
    **{name: argument for name, argument in _OWN["Adam"].items() if name != "lazy_mode"},
    "weight_decay": Argument(0.01, "rate_decay"),
}
_ARGUMENTS: dict[str, Mapping[str, Argument]] = {**_OWN, "AdamW": _ADAMW}
KINDS = tuple(name for name, kind in _BY_NAME.items() if kind.formulas)
FOR_ROWS = tuple(sorted(_ARGUMENTS.keys() - set(KINDS)))
ROW_KINDS = (*(n for n, k in _BY_NAME.items() if k.formulas and k.rows), *FOR_ROWS)


def check_optimizer(kind: str, arguments: Mapping[str, object], l2_decay: object) -> None:
    """Raise PlanError for an optimizer that is not there, or that takes other arguments."""
    if kind not in _ARGUMENTS:
        raise PlanError(f"servers have no optimizer {kind!r}: expected one of {', '.join(KINDS)}")
    taken = _ARGUMENTS[kind]
    unknown = sorted(arguments.keys() - taken.keys())
    if unknown:  # torch's names are others
        raise PlanError(
            f"optimizer {kind} does not take {', '.join(unknown)}: its arguments are "
            f"{', '.join(taken) or 'none but lr'}, as Fluid calls them"
        )
    for name, value in {**arguments, "l2_decay": l2_decay}.items():
        _check_argument(kind, name, value)
    for name, argument in taken.items():
        if argument.required and name not in arguments:
            raise PlanError(f"optimizer {kind}: missing 1 required argument: {name!r}")


def _check_argument(kind: str, name: str, value: object) -> None:
    """Refuse what is no number, or none that torch's optimizers would take either."""
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise PlanError(f"optimizer {kind}: {name}: expected a finite number, got {value!r}")
    number = float(value)
    declared = _ARGUMENTS[kind].get(name, Argument(0.0))
    if not is_within(declared.range, number):
        raise PlanError(f"optimizer {kind}: {name}: expected {declared.range}, got {value!r}")


def type_of(kind: str) -> str:
    """Return the type of the operator that updates by an optimizer."""
    return "adam" if kind == "AdamW" else _BY_NAME[kind].type


def row_attributes(kind: str, arguments: Mapping[str, float], l2_decay: float) -> dict[str, float]:
    """Return the fields of the `RowOptimizer` that moves rows as this optimizer does."""
    known = {field.name for field in fields(RowOptimizer)}
    attributes: dict[str, float] = {}
    for name, argument in _ARGUMENTS[kind].items():
        if (attr := argument.attr or name) in known:
            attributes[attr] = type(argument.default)(arguments.get(name, argument.default))
    return attributes | ({"l2_decay": float(l2_decay)} if l2_decay else {})

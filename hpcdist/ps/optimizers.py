"""The optimizers that servers have for scripts without a Program: their arguments, checked. Pure.

They move each element by itself: a server has slices, of which it knows no norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Real

from hpcdist.base.errors import PlanError
from hpcdist.ps.table_metadata import STATE_NAMES, RowOptimizer

_EPSILON, _BETAS = {"epsilon": 1e-6}, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

# The arguments of Fluid's classes but the rate, in their order, with defaults; None: it has none.
KINDS: dict[str, dict[str, float | None]] = {
    "SGD": {},
    "Momentum": {"momentum": None, "use_nesterov": False},
    "Adagrad": {**_EPSILON, "initial_accumulator_value": 0.0},
    "DecayedAdagrad": {"decay": 0.95, **_EPSILON},
    "Adadelta": {**_EPSILON, "rho": 0.95},
    "Adam": {**_BETAS, "lazy_mode": False},
    "Adamax": {**_BETAS},
    "RMSProp": {"rho": 0.95, **_EPSILON, "momentum": 0.0, "centered": False},
    "Ftrl": {"l1": 0.0, "l2": 0.0, "lr_power": -0.5},
}
# Those that move rows of tables, but no parameters on servers.
FOR_ROWS: dict[str, dict[str, float | None]] = {
    "AdamW": {**_BETAS, "weight_decay": 0.01},
    "Lamb": {"lamb_weight_decay": 0.01, **_BETAS, "epsilon": 1e-6},
}
_ARGUMENTS = {**KINDS, **FOR_ROWS}
ROW_KINDS = (*(kind for kind in KINDS if kind.lower() in STATE_NAMES), *FOR_ROWS)
BELOW_1 = ("beta1", "beta2")
OF_ANY_SIGN = ("lr_power",)
# The fields of a `RowOptimizer` that have other names; others have the same.
_OF_ROWS = {
    "Momentum": {"momentum": "mu"},
    "Adagrad": {"initial_accumulator_value": "initial_moment"},
    "RMSProp": {"rho": "decay"},
    "AdamW": {"weight_decay": "rate_decay"},
    "Lamb": {"lamb_weight_decay": "weight_decay"},
}


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
    missing = [name for name, default in taken.items() if default is None]
    for name in missing:
        if name not in arguments:
            raise PlanError(f"optimizer {kind}: missing 1 required argument: {name!r}")


def _check_argument(kind: str, name: str, value: object) -> None:
    """Refuse what is no number, or none that torch's optimizers would take either."""
    if not (isinstance(value, Real) and math.isfinite(value)):
        raise PlanError(f"optimizer {kind}: {name}: expected a finite number, got {value!r}")
    number = float(value)
    if name in BELOW_1 and not 0 <= number < 1:
        raise PlanError(f"optimizer {kind}: {name}: expected 0 to 1, not 1 itself, got {value!r}")
    if name not in OF_ANY_SIGN and number < 0:
        raise PlanError(f"optimizer {kind}: {name}: expected no negative number, got {value!r}")


def type_of(kind: str) -> str:
    """Return the type of the operator that updates by an optimizer."""
    return "adam" if kind == "AdamW" else kind.lower()


def row_attributes(kind: str, arguments: Mapping[str, float], l2_decay: float) -> dict[str, float]:
    """Return the fields of the `RowOptimizer` that moves rows as this optimizer does."""
    known = {field.name for field in fields(RowOptimizer)}
    given, fields_of = {**_ARGUMENTS[kind], **arguments}, _OF_ROWS.get(kind, {})
    named = {fields_of.get(name, name): (name, value) for name, value in given.items()}
    attributes: dict[str, float] = {}
    for field, (name, value) in named.items():
        if field in known:
            assert value is not None, "it has been checked"
            attributes[field] = bool(value) if _ARGUMENTS[kind][name] is False else float(value)
    return attributes | ({"l2_decay": float(l2_decay)} if l2_decay else {})

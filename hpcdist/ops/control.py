"""Control flow: operators that run a nested block. The executor runs them; they have no kernel."""

from __future__ import annotations

from hpcdist.graph.registry import define
from hpcdist.graph.rows import not_on_rows

define(
    "conditional_block",
    "Cond*, Input* -> Out*, Scope?",
    rows=not_on_rows,
    attrs={"sub_block": -1, "is_scalar_condition": False},
)

"""Control flow: operators that run a nested block. The executor runs them; they have no kernel."""

from __future__ import annotations

from hpcdist.graph.registry import define

define(
    "conditional_block",
    "Cond*, Input* -> Out*, Scope?",
    attrs={"sub_block": -1, "is_scalar_condition": False},
)

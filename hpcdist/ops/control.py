"""Control flow: operators that run a nested block. The executor runs them; they have no kernel."""

from __future__ import annotations

from typing import Any

from hpcdist.graph.registry import Meta, define
from hpcdist.ops.arrays import in_loops
from hpcdist.ops.common import grad_by

_BRANCH = {"sub_block": -1, "is_scalar_condition": False}
_LOOP = {"sub_block": -1, "is_test": False}
_RECURRENT: dict[str, Any] = {
    "sub_block": -1,
    "has_states": True,
    "ex_states": (),
    "states": (),
    "reverse": False,
}


def _like(metas: list[Meta]) -> list[Meta]:
    return [Meta(m.shape, m.dtype, m.type, lod=m.lod) for m in metas]


_BRANCH_GRAD = "Cond*, Input*, Out*, Out@GRAD*, Scope? -> Input@GRAD*"
define(
    "conditional_block",
    "Cond*, Input* -> Out*, Scope?",
    rows=in_loops,
    attrs=_BRANCH,
    grad=grad_by("conditional_block_grad", _BRANCH_GRAD),
)
define(
    "conditional_block_grad",
    _BRANCH_GRAD,
    attrs=_BRANCH,
    infer=lambda cond, inputs, *_, **__: _like(inputs),
)
_LOOP_GRAD = "X*, Out*, Out@GRAD*, StepScopes? -> X@GRAD*"
define(
    "while",
    "X*, Condition -> Out*, StepScopes?",
    rows=in_loops,
    attrs=_LOOP,
    grad=grad_by("while_grad", _LOOP_GRAD),
)
define("while_grad", _LOOP_GRAD, attrs=_LOOP, infer=lambda x, *_, **__: _like(x))


_RECURRENT_GRAD = """inputs*, initial_states*, parameters*, outputs*, outputs@GRAD*, step_scopes? ->
    inputs@GRAD*, initial_states@GRAD*, parameters@GRAD*"""
define(
    "recurrent",
    "inputs*, initial_states*, parameters* -> outputs*, step_scopes?",
    rows=in_loops,
    attrs=_RECURRENT,
    grad=grad_by("recurrent_grad", _RECURRENT_GRAD),
)
define(
    "recurrent_grad",
    _RECURRENT_GRAD,
    attrs=_RECURRENT,
    infer=lambda *operands, **_: tuple(map(_like, operands[:3])),
)

"""Control flow: operators that run a nested block. The executor runs them; they have no kernel."""

from __future__ import annotations

from hpcdist.graph.registry import Meta
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.tensor.tensor_array import in_loops
from hpcdist.ops.types import Attrs

_BRANCH = {"sub_block": -1, "is_scalar_condition": False}
_LOOP = {"sub_block": -1, "is_test": False}
_RECURRENT: Attrs = {
    "sub_block": -1,
    "has_states": True,
    "ex_states": (),
    "states": (),
    "reverse": False,
}


def _like(metas: list[Meta]) -> list[Meta]:
    return [Meta(m.shape, m.dtype, m.type, lod=m.lod) for m in metas]


define_with_grad(
    "conditional_block",
    "Cond*, Input* -> Out*, Scope?",
    "Cond*, Input*, Out*, Out@GRAD*, Scope? -> Input@GRAD*",
    rows=in_loops,
    attrs=_BRANCH,
    grad_infer=lambda cond, inputs, *_, **__: _like(inputs),
)
define_with_grad(
    "while",
    "X*, Condition -> Out*, StepScopes?",
    "X*, Out*, Out@GRAD*, StepScopes? -> X@GRAD*",
    rows=in_loops,
    attrs=_LOOP,
    grad_infer=lambda x, *_, **__: _like(x),
)


_RECURRENT_GRAD = """inputs*, initial_states*, parameters*, outputs*, outputs@GRAD*, step_scopes? ->
    inputs@GRAD*, initial_states@GRAD*, parameters@GRAD*"""
define_with_grad(
    "recurrent",
    "inputs*, initial_states*, parameters* -> outputs*, step_scopes?",
    _RECURRENT_GRAD,
    rows=in_loops,
    attrs=_RECURRENT,
    grad_infer=lambda *operands, **_: tuple(map(_like, operands[:3])),
)

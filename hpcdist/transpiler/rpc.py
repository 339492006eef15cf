"""Operators that talk to servers, as every rewrite makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator


def control_name(number: int) -> str:
    """Return the name of a value that only orders operators."""
    return f"__control_var@{number}"


def rpc_op(
    block: Block, type: str, inputs: dict[str, Any], outputs: dict[str, Any], **attrs: Any
) -> Operator:
    """Return an operator that talks to servers, not added to the block."""
    return Operator(block, type, inputs, outputs, {ROLE_ATTR: int(OpRole.RPC), **attrs})


def send_op(
    block: Block,
    names: Sequence[str],
    endpoints: Sequence[str],
    role_var: Sequence[str],
    **facts: Any,
) -> Operator:
    """Return a send, not added."""
    attrs = {
        "epmap": list(endpoints),
        "sections": [],
        "send_varnames": [],
        "merge_add": False,
        "use_send_handler": True,
        "trainer_id": 0,
    }
    if role_var:
        attrs[ROLE_VAR_ATTR] = list(role_var)
    return rpc_op(block, "send", {"X": names}, {}, **{**attrs, **facts})
